"""The small language model: it takes every causal head, looks at nothing ahead, decodes, and learns."""

import pytest
import torch
from torch.nn import functional as F

from mhlib.experiments import TinyLM, train
from mhlib.functional import Rotary
from mhlib.heads import GroupedQueryAttention, MultiHeadAttention
from mhlib.registry import mechanisms

CAUSAL = [name for name, m in mechanisms().items() if m.kind == "head" and "causal" in m.properties]


def heads(dim):
    return MultiHeadAttention(dim, 4, rope=Rotary(dim // 4))


@pytest.mark.parametrize("name", CAUSAL)
def test_takes_every_registered_causal_head(name):
    mechanism = mechanisms()[name]
    torch.manual_seed(0)
    model = TinyLM(11, lambda dim: mechanism.example(), dim=mechanism.example().dim, max_len=16).eval()
    ids = torch.randint(11, (2, 9))
    later = torch.cat([ids[:, :5], torch.randint(11, (2, 4))], 1)
    with torch.no_grad():
        logits = model(ids)
        torch.testing.assert_close(model(later)[:, :5], logits[:, :5])
    assert logits.shape == (2, 9, 11)
    model.loss(ids).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    if "decodes" in mechanism.properties:
        assert model.generate(ids, 3).shape == (2, 3)


def test_loss_is_the_cross_entropy_of_the_next_token():
    torch.manual_seed(0)
    model, ids = TinyLM(11, heads), torch.randint(11, (2, 6))
    chosen = model(ids)[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
    torch.testing.assert_close(model.loss(ids), -chosen.mean())
    with pytest.raises(ValueError, match=r"at least two tokens .* got \(2, 1\)"):
        model.loss(ids[:, :1])


def test_starts_near_the_uniform_guess_with_logits_of_variance_one():
    torch.manual_seed(0)
    model, ids = TinyLM(500, heads, dim=128, num_layers=4), torch.randint(500, (4, 32))
    assert 0.8 < model(ids).std() < 1.2
    assert model.embedding.weight.shape == (500, 128) and not any("head" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("max_len", [None, 12])
def test_decoding_with_caches_is_one_pass(max_len):
    torch.manual_seed(0)
    model, ids = TinyLM(11, heads, max_len=max_len).eval(), torch.randint(11, (2, 9))
    with torch.no_grad():
        caches = model.init_caches(2, 9)
        steps = [model(ids[:, :4], caches=caches)] + [model(ids[:, i : i + 1], caches=caches) for i in range(4, 9)]
        torch.testing.assert_close(torch.cat(steps, 1), model(ids))


def test_learns_to_copy_what_stood_four_tokens_before():
    """Attention alone can know it: bigrams are uniform."""
    torch.manual_seed(0)
    model = TinyLM(8, heads, dim=32)

    def batches(seed):
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield torch.randint(8, (16, 4), generator=generator).repeat(1, 6)

    before = model.loss(next(batches(1))).item()
    train(model, batches(0), 300, lr=1e-2)
    with torch.no_grad():
        ids = next(batches(1))
        after = F.cross_entropy(model(ids)[:, 4:-1].flatten(0, 1), ids[:, 5:].flatten()).item()
    assert before > 1.8 and after < 0.1


def test_convert_gives_a_model_of_its_own():
    torch.manual_seed(0)
    model, ids = TinyLM(11, heads).eval(), torch.randint(11, (2, 9))
    before = model(ids)
    same = model.convert(lambda layer: GroupedQueryAttention.from_multi_head(layer, 4))
    torch.testing.assert_close(same(ids), before)
    shared = model.convert(lambda layer: GroupedQueryAttention.from_multi_head(layer, 2))
    assert all(block.attention.num_kv_heads == 2 for block in shared.blocks)
    with torch.no_grad():
        for p in shared.parameters():
            p.zero_()
    torch.testing.assert_close(model(ids), before)


def test_unknown_positions_are_refused():
    with pytest.raises(ValueError, match="knows 8 positions"):
        TinyLM(11, heads, max_len=8)(torch.zeros(1, 9, dtype=torch.long))
