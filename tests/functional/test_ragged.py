"""Packed batches equal padded ones, layer by layer, and cost as much as their tokens."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mhlib.functional import pack, ragged_attention
from mhlib.functional.attention import attention
from mhlib.heads import PackedEncoderLayer


def mask_of(lengths, tokens=None):
    return torch.arange(tokens or max(lengths)) < torch.tensor(lengths)[:, None]


def test_pack_keeps_the_tokens_in_order():
    x = torch.arange(2 * 4 * 3, dtype=torch.float32).view(2, 4, 3)
    key_mask = torch.tensor([[False, True, True, False], [True, False, False, True]])
    packed = pack(x, key_mask)
    assert packed.cu_seqlens.tolist() == [0, 2, 4] and packed.index.tolist() == [1, 2, 4, 7]
    assert torch.equal(packed.rows, torch.stack([x[0, 1], x[0, 2], x[1, 0], x[1, 3]]))
    assert torch.equal(packed.unpack(), torch.where(key_mask[..., None], x, 0.0))
    assert packed.unpack(torch.ones(4, 5)).sum() == 20


def test_gradients_go_through_packing():
    x = torch.randn(2, 3, 4, requires_grad=True)
    packed = pack(x, mask_of([2, 3]))
    packed.unpack(packed.rows * 2).sum().backward()
    assert torch.equal(x.grad, torch.where(mask_of([2, 3])[..., None], 2.0, 0.0).expand_as(x))


@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(window=(2, 1)), dict(scale=0.3)], ids=str)
@pytest.mark.parametrize("backend", ["auto", "reference", "chunked", "sdpa"])
def test_other_keys_than_queries(options, backend):
    """As in a decoder that reads encoders of other lengths."""
    lengths, k_lengths = [3, 0, 2, 1], [4, 2, 0, 5]
    at, k_at = (torch.tensor([0, *n]).cumsum(0) for n in (lengths, k_lengths))
    q, k, v = torch.randn(2, 6, 8), torch.randn(1, 11, 8), torch.randn(1, 11, 5)
    got = ragged_attention(q, k, v, at, cu_seqlens_k=k_at, backend=backend, **options)
    want = [
        attention(q[None, :, a:b], k[None, :, c:d], v[None, :, c:d], backend="reference", **options)[0]
        for a, b, c, d in zip(at, at[1:], k_at, k_at[1:])
    ]
    torch.testing.assert_close(got, torch.cat(want, 1))
    assert (got[:, 3:5] == 0).all()  # the third sequence has no keys


def test_nothing_but_empty_sequences():
    assert ragged_attention(*[torch.zeros(2, 0, 4)] * 3, torch.tensor([0, 0, 0])).shape == (2, 0, 4)


def test_work_is_that_of_the_tokens():
    """Token-wise products times N / (B S), attention times the sum of squares over B S^2."""
    lengths, longest, dim = [9, 3, 6, 2], 12, 16
    layer = PackedEncoderLayer(dim, 4, backend="reference")

    def flops(lengths):
        packed = pack(torch.randn(4, longest, dim), mask_of(lengths, longest))
        with FlopCounterMode(display=False) as counter:
            layer(packed.rows, packed.cu_seqlens)
        return counter.get_total_flops()

    token_wise = 2 * (3 * dim + dim + 4 * dim + 4 * dim) * dim
    assert flops(lengths) == sum(token_wise * n + 4 * dim * n * n for n in lengths)
    assert flops([longest] * 4) == 4 * (token_wise * longest + 4 * dim * longest**2)


@pytest.mark.parametrize(
    "call, match",
    [
        (lambda: pack(torch.zeros(2, 3, 4), torch.ones(2, 3)), r"boolean \(batch, tokens\) = \(2, 3\), got torch.float32 \(2, 3\)"),
        (lambda: pack(torch.zeros(2, 3, 4), mask_of([2, 2, 2])), r"= \(2, 3\), got torch.bool \(3, 2\)"),
        (lambda: ragged_attention(*[torch.zeros(1, 5, 4)] * 3, torch.tensor([0, 3, 4])), r"cu_seqlens must rise from 0 to the number of rows, 5, got \[0, 3, 4\]"),
        (lambda: ragged_attention(*[torch.zeros(1, 5, 4)] * 3, torch.tensor([0, 4, 3, 5])), "must rise from 0"),
        (lambda: ragged_attention(*[torch.zeros(1, 5, 4)] * 3, torch.tensor([0, 5]), cu_seqlens_k=torch.tensor([0, 2, 5])), "as many sequences, got 1 and 2"),
        (lambda: PackedEncoderLayer(10, 3), "num_heads must divide dim, got dim=10, num_heads=3"),
        (lambda: PackedEncoderLayer.from_torch(nn.TransformerEncoderLayer(8, 2)), "activation='gelu'"),
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_errors_say_what_was_expected(call, match):
    with pytest.raises(ValueError, match=match):
        call()
