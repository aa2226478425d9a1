"""Latent attention: execution forms, cache, conversion of trained layers."""

import pytest
import torch

from mhlib.functional.positions import RelativePositionBias, Rotary
from mhlib.heads import MultiHeadAttention, MultiHeadLatentAttention, choose_rotary_pairs, mha2mla


def latent(**options):
    defaults = dict(kv_rank=6, q_rank=8, rope_dim=2)
    return MultiHeadLatentAttention(16, 4, **defaults | options).double().eval()


VARIANTS = [
    dict(),
    dict(q_rank=None),
    dict(rope_dim=0),
    dict(num_kv_heads=2),
    dict(num_kv_heads=2, rope_heads=2),
    dict(bias=True, latent_norm=False, v_head_dim=3),
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_both_forms_in_one_pass_and_in_decoding(options):
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    expanded, absorbed = latent(execution="expanded", **options), latent(execution="absorbed", **options)
    absorbed.load_state_dict(expanded.state_dict())
    torch.testing.assert_close(absorbed(x, causal=True), expanded(x, causal=True))
    with torch.no_grad():
        for net in (expanded, absorbed):
            cache = net.init_cache(2, 7)
            steps = [net(x[:, :4], causal=True, cache=cache)]
            steps += [net(x[:, i : i + 1], causal=True, cache=cache) for i in range(4, 7)]
            torch.testing.assert_close(torch.cat(steps, 1), expanded(x, causal=True))


def test_the_cache_holds_the_latent_and_one_rotary_key():
    net = MultiHeadLatentAttention(64, 8, kv_rank=12, rope_dim=4)
    assert net.init_cache(1, 10).bytes == 10 * (12 + 4) * 4
    assert net.cache_shapes() == [(1, 16)]


def test_auto_expands_prompts_and_absorbs_single_tokens(monkeypatch):
    net = MultiHeadLatentAttention(64, 8, head_dim=8, kv_rank=16, rope_dim=4).eval()
    chosen = []
    decide = net.absorbed
    monkeypatch.setattr(net, "absorbed", lambda call: chosen.append(decide(call)) or chosen[-1])
    with torch.no_grad():
        cache = net.init_cache(1, 200)
        net(torch.randn(1, 150, 64), causal=True, cache=cache)
        prompt, chosen[:] = set(chosen), []
        net(torch.randn(1, 1, 64), causal=True, cache=cache)
    assert prompt == {False} and set(chosen) == {True}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("strategy", ["high", "low", "uniform", "2-norm"])
@pytest.mark.parametrize("factorization", ["joint", "split"])
def test_conversion_is_exact_for_a_single_token_at_full_rank(interleaved, strategy, factorization):
    """Without a distance between tokens no rotation matters, so dropping some changes nothing."""
    mha = MultiHeadAttention(32, 4, num_kv_heads=2, rope=Rotary(8, interleaved=interleaved)).double()
    x = torch.randn(3, 1, 32, dtype=torch.float64)
    mla = mha2mla(mha, kv_rank=64, rope_dim=4, strategy=strategy, calibration=x, factorization=factorization)
    torch.testing.assert_close(mla(x), mha(x))


@pytest.mark.parametrize("interleaved", [False, True])
def test_conversion_keeps_the_original_frequencies(interleaved):
    """The logits are those of the original with the dropped pairs left unrotated."""
    mha = MultiHeadAttention(32, 4, num_kv_heads=2, rope=Rotary(8, base=50.0, interleaved=interleaved)).double()
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    mla = mha2mla(mha, kv_rank=64, rope_dim=4, strategy="uniform")
    kept = torch.tensor([0, 2])
    theta = mha.rope.angles(torch.tensor(1), torch.float64)
    theta[~torch.isin(torch.arange(4), kept)] = 0.0
    mha.rope = Rotary(8, interleaved=interleaved, frequencies=tuple(theta.tolist()))
    torch.testing.assert_close(mla(x, causal=True), mha(x, causal=True))
    torch.testing.assert_close(mla(x, causal=True, return_weights=True)[1], mha(x, causal=True, return_weights=True)[1])


def test_conversion_without_rotary_and_with_all_rotary_is_exact():
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    plain = MultiHeadAttention(32, 4).double()
    torch.testing.assert_close(MultiHeadLatentAttention.from_multi_head(plain, kv_rank=32)(x), plain(x))
    rotary = MultiHeadAttention(32, 4, num_kv_heads=2, rope=Rotary(8)).double()
    torch.testing.assert_close(mha2mla(rotary, kv_rank=16, rope_dim=8)(x, causal=True), rotary(x, causal=True))


def test_conversion_copies_a_learned_position_bias():
    mha = MultiHeadAttention(32, 4, position_bias=RelativePositionBias(4)).double()
    with torch.no_grad():
        mha.position_bias.weight.normal_()
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    mla = mha2mla(mha, kv_rank=32)
    torch.testing.assert_close(mla(x), mha(x))
    assert mla.position_bias is not mha.position_bias
    assert torch.equal(mla.position_bias.weight, mha.position_bias.weight)


def test_error_falls_with_the_rank():
    mha = MultiHeadAttention(32, 4).double()
    x = torch.randn(4, 16, 32, dtype=torch.float64)
    errors = [(mha2mla(mha, kv_rank=rank)(x) - mha(x)).norm().item() for rank in (4, 12, 24, 32)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-9 < errors[-2]


def test_pairs_of_each_strategy():
    mha = MultiHeadAttention(32, 4, num_kv_heads=2, rope=Rotary(8)).double()
    assert choose_rotary_pairs(mha, 2, "high") == [[0, 1]] * 2
    assert choose_rotary_pairs(mha, 2, "low") == [[2, 3]] * 2
    assert choose_rotary_pairs(mha, 2, "uniform") == [[0, 2]] * 2
    with torch.no_grad():  # pair 3 of key head 0 and pair 1 of key head 1 are made to matter
        mha.k_proj.weight.view(2, 8, 32)[0, [3, 7]] *= 100
        mha.k_proj.weight.view(2, 8, 32)[1, [1, 5]] *= 100
    calibration = torch.randn(2, 20, 32, dtype=torch.float64)
    assert choose_rotary_pairs(mha, 1, "2-norm", calibration) == [[3], [1]]


@pytest.mark.parametrize(
    "ranks, percent",
    [((64, 16), 31.25), ((32, 16), 18.75), ((16, 16), 12.5)],
)
def test_cache_of_a_converted_llama_2_7b(ranks, percent):
    """Row 85's figures: 32 heads of 128, kv_rank given per head."""
    from mhlib.heads.latent.conversion import cache_ratio

    per_head, rope_dim = ranks
    assert 100 * cache_ratio(32, 128, 32 * per_head, rope_dim) == percent


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: latent(execution="fast"), "execution must be one of auto, expanded, absorbed, got 'fast'"),
        (lambda: latent(rope=Rotary(4)), "rope must turn rope_dim=2 numbers, got rope.dim=4"),
        (
            lambda: latent(rope=Rotary(2, frequencies=((1.0,),) * 4)),
            "frequencies for 4 heads, which must divide the 4 query heads and the 1 key heads",
        ),
        (lambda: latent(kv_rank=0), "kv_rank must be at least 1, got 0"),
        (lambda: latent(rope_heads=3), "rope_heads must be 1 or num_kv_heads=4, got 3"),
        (lambda: mha2mla(MultiHeadAttention(16, 4), kv_rank=-1), "kv_rank must be at least 1 for factorization 'joint', got -1"),
        (lambda: mha2mla(MultiHeadAttention(16, 4), kv_rank=1, factorization="split"), "kv_rank must be at least 2 for .*'split', got 1"),
        (lambda: mha2mla(MultiHeadAttention(16, 4), kv_rank=4, rope_dim=2), "no rotary positions to keep"),
        (lambda: mha2mla(MultiHeadAttention(16, 4, bias=True), kv_rank=4), "without biases"),
        (lambda: mha2mla(MultiHeadAttention(16, 4, rope=Rotary(4)), kv_rank=4, rope_dim=6), "at most 4.*got 6"),
        (lambda: mha2mla(MultiHeadAttention(16, 4, rope=Rotary(4)), kv_rank=4, rope_dim=2, strategy="x"), "strategy must be"),
        (
            lambda: mha2mla(MultiHeadAttention(16, 4, rope=Rotary(4)), kv_rank=4, rope_dim=2, strategy="2-norm"),
            "give calibration tokens",
        ),
        (lambda: mha2mla(MultiHeadAttention(16, 4), kv_rank=4, factorization="x"), "factorization must be one of joint, split"),
    ],
)
def test_errors(make, match):
    with pytest.raises(ValueError, match=match):
        make()
