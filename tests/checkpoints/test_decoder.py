"""The decoder and its generation, small and random: caches, padding, exchanged layers, what is returned, errors."""

import copy

import pytest
import torch

from mhlib.checkpoints import CausalLM, Tokenizer, generate
from mhlib.functional.positions import Rotary
from mhlib.heads import GroupedQueryAttention, MultiHeadLatentAttention, mha2mla

VOCAB, DIM = 11, 16


class Letters(Tokenizer):
    """A tokenizer of the letters a to h; 9 ends a text and 10 is padding."""

    def __init__(self):
        super().__init__(None, eos=9, pad=10)

    def batch(self, texts, *, side):
        rows = [["abcdefgh".index(c) for c in text] for text in texts]
        length = max(map(len, rows))
        ids = torch.tensor([[self.pad] * (length - len(row)) + row for row in rows])
        return ids, ids != self.pad

    def decode(self, ids):
        return "".join("abcdefghi."[i] for i in ids.tolist() if i != self.pad)


def grouped():
    return GroupedQueryAttention(DIM, 4, num_kv_heads=2, rope=Rotary(4))


def model(attention=grouped, tokenizer=None):
    net = CausalLM(VOCAB, DIM, num_layers=3, hidden_dim=24, attention=attention, tokenizer=tokenizer)
    torch.nn.init.normal_(net.embedding.weight, std=0.2)  # so that answers are neither fixed nor arbitrary
    return net.double().eval()


def ids(batch=2, length=7):
    return torch.randint(VOCAB, (batch, length))


ATTENTIONS = [grouped, lambda: MultiHeadLatentAttention(DIM, 4, kv_rank=6, rope_dim=2)]


@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_step_by_step_equals_one_pass(attention):
    net, tokens = model(attention), ids()
    caches = net.init_caches(2, 7)
    steps = [net(tokens[:, a:b], caches=caches) for a, b in ((0, 3), (3, 4), (4, 7))]
    torch.testing.assert_close(torch.cat(steps, 1), net(tokens))


@torch.no_grad()
def test_no_token_sees_a_later_one_or_padding():
    net, tokens = model(), ids(1)
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % VOCAB
    torch.testing.assert_close(net(tokens)[:, :4], net(changed)[:, :4])
    for padded, key_mask, real in (
        (torch.cat([ids(1, 3), tokens], 1), torch.arange(10)[None] >= 3, slice(3, 10)),
        (torch.cat([tokens, ids(1, 3)], 1), torch.arange(10)[None] < 7, slice(0, 7)),
    ):
        torch.testing.assert_close(net(padded, key_mask=key_mask)[:, real], net(tokens))


@torch.no_grad()
def test_what_is_returned():
    net, tokens = model(), ids()
    logits = net(tokens)
    assert logits.shape == (2, 7, VOCAB)
    torch.testing.assert_close(net(tokens, last_only=True), logits[:, -1:])
    out = net(tokens, return_weights=True)
    torch.testing.assert_close(out.logits, logits)
    assert [w.shape for w in out.weights] == [(2, 4, 7, 7)] * 3 and out.hidden == ()
    out = net(tokens, return_hidden=True)
    assert out.weights == () and len(out.hidden) == 4
    torch.testing.assert_close(out.hidden[0], net.embedding(tokens))
    torch.testing.assert_close(out.hidden[1], net.blocks[0](out.hidden[0])[0])
    torch.testing.assert_close(out.hidden[-1] @ net.embedding.weight.T, logits)


def test_layers_can_be_exchanged_and_trained():
    net, tokens = model(), ids()
    before = net(tokens)
    net.blocks[1].attention = mha2mla(net.blocks[1].attention, kv_rank=8, rope_dim=4)  # exact: all pairs, full rank
    torch.testing.assert_close(net(tokens), before, atol=1e-6, rtol=1e-6)
    with torch.no_grad():
        caches = net.init_caches(2, 7)
        assert [cache.tensors[0].shape for cache in caches[:2]] == [(2, 2, 7, 4), (2, 1, 7, 8)]  # keys, and a latent
        torch.testing.assert_close(net(tokens, caches=caches), before, atol=1e-6, rtol=1e-6)
    net(tokens).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


def test_copies_share_the_tokenizer_but_no_weights():
    net = model(tokenizer=Letters())
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.embedding.weight.zero_()
    assert net.embedding.weight.any()


# Generation ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def likeliest(net, tokens, steps):
    for _ in range(steps):
        tokens = torch.cat([tokens, net(tokens)[:, -1:].argmax(-1)], 1)
    return tokens


def test_greedy_generation_is_the_likeliest_token_again_and_again():
    net, tokens = model(), ids()
    torch.testing.assert_close(torch.cat([tokens, net.generate(tokens, 6)], 1), likeliest(net, tokens, 6))
    assert net.generate(tokens[0].tolist(), 4).tolist() == net.generate(tokens[:1], 4).tolist()
    assert net.generate(tokens, 0).shape == (2, 0)


def test_texts_of_different_lengths_as_if_alone():
    net = model(tokenizer=Letters())
    texts = ["abc", "fedcba", "h"]
    together = net.generate(texts, 5)
    assert together == [net.generate(text, 5) for text in texts]
    assert all(isinstance(text, str) for text in together)


def test_a_sequence_ends_with_its_end_token():
    net = model(tokenizer=Letters())
    with torch.no_grad():
        net.embedding.weight[:9] *= 0.01  # the end token is likely, and padding too
    for seed in range(20):
        new = net.generate(ids(4, 3) % 8, 8, temperature=1.0, seed=seed)
        for row in new.tolist():
            if 9 in row:
                assert set(row[row.index(9) + 1 :]) <= {10}
        assert new.shape[1] == 8 or 9 in new[:, -1]  # it stops when all have ended
    assert "." in net.generate(["a"] * 20, 30, temperature=1.0, seed=0)[0]


def test_draws():
    net, tokens = model(), ids()
    one, again, other = (net.generate(tokens, 12, temperature=1.0, seed=seed) for seed in (1, 1, 2))
    assert one.tolist() == again.tolist() != other.tolist()
    assert net.generate(tokens, 6, temperature=1e-9).tolist() == net.generate(tokens, 6).tolist()
    before = torch.get_rng_state()
    net.generate(tokens, 3, temperature=1.0)
    assert torch.equal(before, torch.get_rng_state())


@torch.no_grad()
def test_draws_follow_the_softmax():
    net, tokens = model(), ids(1, 4)
    want = (net(tokens)[0, -1] / 2.0).softmax(-1)
    drawn = net.generate(tokens.expand(20000, -1), 1, temperature=2.0).flatten().bincount(minlength=VOCAB) / 20000
    assert (drawn - want).abs().max() < 0.02  # over five standard deviations


def test_errors(as_a_user):
    net, tokens = model(), ids()
    with pytest.raises(ValueError, match="no tokenizer: give token numbers"):
        net.generate("abc", 3)
    with pytest.raises(ValueError, match="one cache per block, 3, got 2"):
        net(tokens, caches=net.init_caches(2, 7)[:2])
    with pytest.raises(ValueError, match="at least one token"):
        net.generate([], 3)
    with pytest.raises(ValueError, match="got -1"):
        net.generate(tokens, 3, temperature=-1)
    with pytest.raises(ValueError, match="padded on the left"):
        generate(net, tokens, 3, key_mask=torch.arange(7)[None].expand(2, -1) < 5)
