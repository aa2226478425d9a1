"""The encoder, small and random: padding, segments, what is returned, exchanged layers."""

import torch

from mhlib.checkpoints import TextEncoder
from mhlib.heads import GroupedQueryAttention, MultiHeadAttention


def encoder():
    net = TextEncoder(
        13, 12, num_layers=2, hidden_dim=20, max_tokens=9, attention=lambda: MultiHeadAttention(12, 3, bias=True)
    )
    return net.double().eval()


def test_padding_changes_nothing():
    net, ids = encoder(), torch.randint(13, (2, 8))
    key_mask = torch.tensor([[True] * 8, [True] * 5 + [False] * 3])
    torch.testing.assert_close(net(ids, key_mask)[1, :5], net(ids[1:, :5])[0])


def test_what_is_returned():
    net, ids = encoder(), torch.randint(13, (2, 6))
    tokens = net(ids)
    out = net(ids, return_weights=True, return_hidden=True)
    torch.testing.assert_close(out.tokens, tokens)
    assert [w.shape for w in out.weights] == [(2, 3, 6, 6)] * 2 and len(out.hidden) == 3
    torch.testing.assert_close(out.hidden[-1], tokens)
    torch.testing.assert_close(net.blocks[0](out.hidden[0])[0], out.hidden[1])
    torch.testing.assert_close(out.hidden[0].mean(-1), torch.zeros(2, 6, dtype=torch.float64))  # normed


def test_order_and_segments_matter():
    net, ids = encoder(), torch.arange(6)[None]
    assert not torch.allclose(net(ids)[0, 0], net(ids.flip(1))[0, -1])
    torch.testing.assert_close(net(ids), net(ids, segments=torch.zeros_like(ids)))
    assert not torch.allclose(net(ids), net(ids, segments=torch.ones_like(ids)))


def test_layers_can_be_exchanged():
    net, ids = encoder(), torch.randint(13, (2, 6))
    net.blocks[1].attention = GroupedQueryAttention.from_multi_head(net.blocks[1].attention, 3)
    before = net(ids)
    net.blocks[1].attention = GroupedQueryAttention.from_multi_head(net.blocks[1].attention, 1)
    assert not torch.allclose(net(ids), before)
