"""Pools with many queries: how results are combined, limits, and what the papers' modules do at the edges."""

import pytest
import torch
from contract.common import perturbed
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mhlib import cost
from mhlib.pooling import (
    ClassQueryDecoder,
    ClassQueryPool,
    CoordinateDecoder,
    CountTokens,
    CrissCrossGatedMLP,
    CrossAttentionBlock,
    InducedPool,
    JointAttentionEstimator,
    JointTokenPool,
    MapFusion,
    MeanPool,
    PreNormBlock,
    RegisterDecoder,
    RegisterPredictor,
    SetAutoencoder,
    StampAdapter,
    StampPool,
    negative_binomial_nll,
)

COMBINATIONS = ["weighted_sum", "max", "learned_weights", "all_concat"]
POOLS = {
    **{f"stamp {how}": lambda how=how: StampPool(8, 2, num_queries=3, combine=how) for how in COMBINATIONS},
    "induced": lambda: InducedPool(8, 2, num_queries=3),
    "registers": lambda: RegisterPredictor(8, 2, num_queries=3),
    "joint": lambda: JointTokenPool(8, 2),
    "classes": lambda: ClassQueryPool(8, 4, 2),
    "class decoder": lambda: ClassQueryDecoder(8, 4, 2, num_layers=2, hidden_dim=6),
}


@pytest.fixture
def x():
    return torch.randn(3, 6, 8, dtype=torch.float64)


@pytest.fixture(params=POOLS)
def pool(request):
    return perturbed(POOLS[request.param]())


@pytest.mark.parametrize("name", sorted(set(POOLS) - {"joint"}))  # to the joint token it matters how many others there are
def test_constant_tokens_are_one_token(name, x):
    pool, one = perturbed(POOLS[name]()), x[:, :1]
    torch.testing.assert_close(pool(one.expand(-1, 9, -1)), pool(one))


def test_gradients_are_finite_where_tokens_do_not_vary(pool, x):
    for constant in (torch.zeros_like(x), x[:, :1].expand_as(x)):
        tokens = constant.clone().requires_grad_()
        gradient = torch.autograd.grad(pool(tokens).square().sum(), tokens)[0]
        assert gradient.isfinite().all()


def test_junk_in_padding_changes_nothing_and_ragged_is_padded(pool, x):
    lengths = torch.tensor([4, 1, 6])
    keep = torch.arange(6) < lengths[:, None]
    y, weights = pool(x, key_mask=keep, return_weights=True)
    junk = torch.where(keep[..., None], x, 1e3)
    torch.testing.assert_close(pool(junk, key_mask=keep), y)
    torch.testing.assert_close(torch.cat([pool(x[i : i + 1, :n]) for i, n in enumerate(lengths)]), y)
    assert (weights.movedim(-1, 1)[~keep] == 0).all()
    if not isinstance(pool, JointTokenPool):  # the rest of its weight is on itself
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


# STAMP ------------------------------------------------------------------------------------------------------------------


def test_the_default_combination_is_the_mean_over_queries(x):
    """In evaluation, by its own definition: the weights of each query sum to one, so a softmax of the sums is uniform."""
    pool = perturbed(StampPool(8, 2, num_queries=5))
    y, weights = pool(x, return_weights=True)
    tokens = pool.kv_proj(x).unflatten(-1, (2, 4)).transpose(1, 2)
    shares = weights.sum(-1).softmax(-1)
    torch.testing.assert_close(shares, torch.full_like(shares, 0.2))
    by_definition = (shares[..., None] * (weights @ tokens)).sum(2)
    by_mean = (weights.mean(2, keepdim=True) @ tokens)[:, :, 0]
    torch.testing.assert_close(by_definition, by_mean)
    torch.testing.assert_close(y, pool.o_proj(by_mean.flatten(1)) + 0.1 * x.mean(1))


def test_dropout_of_weights_is_what_moves_the_shares(x):
    pool = StampPool(8, 2, num_queries=5, dropout=0.5).double().train()
    seen = {}
    shares = pool.shares
    pool.shares = lambda heads, call: seen.setdefault("shares", shares(heads, call))
    pool(x)
    assert seen["shares"].std(-1).min() > 1e-3
    torch.testing.assert_close(seen["shares"].sum(-1), torch.ones(3, 2, dtype=torch.float64))
    seen.clear()
    pool.eval()(x)
    assert (seen["shares"] == 0.2).all()


def test_max_in_evaluation_is_the_first_query(x):
    pool = perturbed(StampPool(8, 2, num_queries=5, combine="max"))
    first = StampPool(8, 2, num_queries=1).double()
    first.load_state_dict(pool.state_dict() | {"query": pool.query[:1]})
    torch.testing.assert_close(pool(x), first(x))
    torch.testing.assert_close(pool(x, return_weights=True)[0], first(x))


def test_learned_shares_of_all_heads_together_sum_to_one(x):
    pool = perturbed(StampPool(8, 2, num_queries=3, combine="learned_weights"))
    seen = {}
    shares = pool.shares
    pool.shares = lambda heads, call: seen.setdefault("shares", shares(heads, call))
    pool(x)
    torch.testing.assert_close(seen["shares"].sum((1, 2)), torch.ones(3, dtype=torch.float64))


def test_one_query_makes_three_combinations_the_same(x):
    pools = [StampPool(8, 2, num_queries=1, combine=how).double().eval() for how in ("weighted_sum", "max", "all_concat")]
    for pool in pools[1:]:
        pool.load_state_dict(pools[0].state_dict())
        torch.testing.assert_close(pool(x), pools[0](x))


def test_fused_and_explicit_training_agree(x):
    pool = StampPool(8, 2, num_queries=3, dropout=0.3).double().train()
    torch.manual_seed(1)
    fused = pool(x)
    torch.manual_seed(1)
    torch.testing.assert_close(pool(x, return_weights=True)[0], fused)


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_stamp_costs_are_counted(combine):
    pool = StampPool(8, 2, num_queries=3, combine=combine).eval()
    counted = cost.of(pool, queries=3, keys=7, batch=2)
    assert counted.parameters == sum(p.numel() for p in pool.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        pool(torch.randn(2, 7, 8), return_weights=True)
    assert counted.matmul_flops == counter.get_total_flops()


@pytest.mark.parametrize("combine", ["concat", "add", "weighted_add"])
def test_criss_cross_mixes_along_both_axes_and_no_further(combine):
    layer = perturbed(CrissCrossGatedMLP(4, 6, times=3, channels=5, combine=combine))
    grid = torch.randn(1, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    moved = torch.autograd.grad(layer(grid)[0, 1, 2].sum(), grid)[0][0].abs().sum(-1) > 0
    cross = torch.zeros(3, 5, dtype=torch.bool)
    cross[1], cross[:, 2] = True, True
    assert torch.equal(moved, cross)


def test_criss_cross_starts_without_mixing():
    layer = CrissCrossGatedMLP(4, 6, times=3, channels=5).double()
    grid = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    other = grid.clone()
    other[:, 0] = 7.0
    assert (layer(grid) - layer(other))[:, 1:].abs().max() < 1e-4


def test_the_adapter_has_the_size_that_the_paper_states():
    """About 750,000 weights with its defaults, for embeddings of width 1024."""
    adapter = StampAdapter(1024, 6, times=5, channels=16)
    assert 0.7e6 < sum(p.numel() for p in adapter.parameters()) < 0.8e6
    assert adapter(torch.randn(2, 5, 16, 1024)).shape == (2, 6)


def test_the_adapter_without_mixing_knows_places_by_its_tables_alone():
    frozen = torch.randn(2, 3, 4, 5)
    shuffled = frozen.flatten(1, 2)[:, torch.randperm(12)].unflatten(1, (3, 4))
    for positions, same in (((), True), (("channel",), False)):
        adapter = StampAdapter(5, 2, times=3, channels=4, dim=8, num_blocks=0, positions=positions).eval()
        assert torch.allclose(adapter(frozen), adapter(shuffled), atol=1e-5) == same


# Inducing points --------------------------------------------------------------------------------------------------------


def test_unpooling_follows_the_order_of_asking(x):
    block = perturbed(CrossAttentionBlock(8, 2))
    asked, order = torch.randn(3, 9, 8, dtype=torch.float64), torch.randperm(9)
    torch.testing.assert_close(block(asked[:, order], x), block(asked, x)[:, order])
    torch.testing.assert_close(block(asked[:, :2], x), block(asked, x)[:, :2])  # no output depends on what else is asked
    torch.testing.assert_close(block(asked, x[:, torch.randperm(6)]), block(asked, x))


@pytest.fixture
def cells():
    items = torch.stack([torch.randperm(20)[:12] for _ in range(3)])
    return items, torch.randint(1, 9, (3, 12)).double()


@pytest.mark.parametrize("num_queries", [1, 4])
def test_a_set_autoencoder_has_no_order(cells, num_queries):
    items, counts = cells
    model = perturbed(SetAutoencoder(20, num_queries, dim=8, latent_dim=4, num_heads=2))
    order = torch.randperm(12)
    latent = model.encode(items, counts)
    assert latent.shape == (3, num_queries, 4)
    torch.testing.assert_close(model.encode(items[:, order], counts[:, order]), latent)
    mean, theta = model.decode(latent, items, counts.sum(-1))
    torch.testing.assert_close(model.decode(latent, items[:, order], counts.sum(-1)), (mean[:, order], theta[:, order]))
    torch.testing.assert_close(mean.sum(-1), counts.sum(-1))
    keep = torch.arange(12).expand(3, -1) < torch.tensor([[5], [12], [1]])
    masked = model.encode(items, torch.where(keep, counts, 999.0), keep)
    torch.testing.assert_close(masked[:1], model.encode(items[:1, :5], counts[:1, :5]))


def test_a_layer_norm_erases_counts_that_scale_the_token(cells):
    """Row 9's released configuration: the encoder sees which items are there, not how often."""
    items, counts = cells
    other = torch.randint(1, 1000, counts.shape).double()
    for how, blind in (("scale", True), ("concat", False)):
        model = perturbed(SetAutoencoder(20, 3, dim=8, latent_dim=4, num_heads=2, how=how))
        distance = (model.encode(items, counts) - model.encode(items, other)).abs().max()
        assert (distance < 1e-6) == blind, f"{how}: {distance}"
    with pytest.raises(ValueError, match="how must be 'scale' or 'concat', got 'log'"):
        CountTokens(20, 8, "log")


def test_negative_binomial():
    from scipy.stats import nbinom

    counts = torch.tensor([0.0, 1.0, 7.0, 300.0], dtype=torch.float64)
    mean, theta = torch.rand(2, 4, dtype=torch.float64) * 9 + 0.1
    want = -torch.tensor(nbinom.logpmf(counts.numpy(), theta.numpy(), (theta / (theta + mean)).numpy()))
    torch.testing.assert_close(negative_binomial_nll(counts, mean, theta), want)
    poisson = -torch.distributions.Poisson(mean).log_prob(counts)  # its limit for large theta
    torch.testing.assert_close(negative_binomial_nll(counts, mean, torch.full_like(mean, 1e7)), poisson, atol=1e-2, rtol=1e-3)
    assert negative_binomial_nll(counts[:1], mean[:1] * 0, theta[:1]) == 0  # nothing expected, nothing seen


# Registers --------------------------------------------------------------------------------------------------------------


def test_registers_are_predicted_in_standard_units(x):
    pool = perturbed(RegisterPredictor(8, 2, num_queries=3))
    real = 5 + 3 * torch.randn(40, 3, 8, dtype=torch.float64)
    pool.fit(real)
    torch.testing.assert_close(pool.registers(x), pool(x) * real.std(0, correction=0) + real.mean(0))
    with torch.no_grad():  # predicts zero, the mean in standard units
        for p in (*pool.o_proj.parameters(), *pool.mlp[2].parameters()):
            p.zero_()
    torch.testing.assert_close(pool.loss((torch.randn(40, 6, 8, dtype=torch.float64), real)), torch.tensor(1.0).double())
    with pytest.raises(ValueError, match=r"registers must be \(images, 3, 8\), got \(2, 4, 8\)"):
        pool.fit(torch.zeros(2, 4, 8))


def test_a_constant_register_divides_by_no_zero(x):
    pool = RegisterPredictor(8, 2, num_queries=1).double()
    pool.fit(torch.ones(5, 1, 8, dtype=torch.float64))
    assert pool.loss((torch.randn(5, 6, 8, dtype=torch.float64), torch.ones(5, 1, 8, dtype=torch.float64))).isfinite()


def test_decoder_reads_registers_and_places_patches():
    decoder = RegisterDecoder(5, num_registers=2, grid=(2, 3), patch=4, dim=8, num_heads=2)
    patches, registers = torch.randn(2, 6, 5), torch.randn(2, 2, 5)
    image = decoder(patches, registers)
    assert image.shape == (2, 3, 8, 12)
    assert not torch.allclose(image, decoder(patches, registers + 1))
    with torch.no_grad():  # without attention each patch stays where it is
        for block in decoder.blocks:
            block.attention.o_proj.weight.zero_()
    other = patches.clone()
    other[:, 4] += 1  # the middle patch of the lower row
    moved = (decoder(patches) != decoder(other)).any(1)[0]
    assert moved[4:, 4:8].all() and not moved[:4].any() and not moved[:, :4].any() and not moved[:, 8:].any()
    with pytest.raises(ValueError, match="takes 2 registers"):
        decoder(patches, registers[:, :1])
    with pytest.raises(ValueError, match=r"grid of \(2, 3\) has 6 patches"):
        decoder(patches[:, :5])


def test_pre_norm_block_with_dead_branches_is_the_identity(x):
    block = PreNormBlock(8, 2).double()
    with torch.no_grad():
        for p in (*block.attention.o_proj.parameters(), *block.mlp[2].parameters()):
            p.zero_()
    assert torch.equal(block(x), x)


# Joint attention --------------------------------------------------------------------------------------------------------


def test_the_joint_token_starts_by_looking_at_all_alike(x):
    _, weights = JointTokenPool(8, 2, num_layers=2).double()(x, return_weights=True)
    torch.testing.assert_close(weights[:, 0], torch.full((3, 2, 6), 1 / 7, dtype=torch.float64))


def test_absent_people_change_nothing(x):
    model = JointAttentionEstimator(8, 8).double()
    keep = torch.rand(3, 6) > 0.5
    keep[:, 0] = True
    torch.testing.assert_close(
        model(torch.where(keep[..., None], x, 1e3), keep, grid=(4, 5)), model(x, keep, grid=(4, 5))
    )
    order = torch.randperm(6)
    torch.testing.assert_close(model(x[:, order], grid=(4, 5)), model(x, grid=(4, 5)))


def test_a_map_of_any_size_is_the_same_function():
    decoder = CoordinateDecoder(8, num_hidden=2).double()
    g = torch.randn(3, 2, 8, dtype=torch.float64)
    fine = decoder(g, (9, 15))
    assert fine.shape == (3, 2, 9, 15)
    torch.testing.assert_close(decoder(g, (3, 5)), fine[..., 1::3, 1::3])  # centres of 3 by 3 pixels


def test_fusion_is_a_weighted_mean():
    fusion, maps = MapFusion(), torch.rand(2, 1, 3, 4)
    torch.testing.assert_close(fusion(*maps), maps.mean(0))
    with torch.no_grad():
        fusion.logits.copy_(torch.tensor([50.0, 0.0]))
    torch.testing.assert_close(fusion(*maps), maps[0])
    with pytest.raises(ValueError, match="fuses 2 maps, got 1"):
        fusion(maps[0])


# Class queries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_logits_are_weights_times_scores(x, kv_heads):
    pool = perturbed(ClassQueryPool(8, 5, 4, num_kv_heads=kv_heads))
    logits, weights, aux = pool(x, return_weights=True, return_aux=True)
    added = (weights * aux["scores"][:, :, None]).sum((1, 3)) + pool.presence.bias
    torch.testing.assert_close(logits, added)
    torch.testing.assert_close(logits, pool.presence(aux["found"])[..., 0])


@pytest.mark.parametrize("build", [POOLS["classes"], POOLS["class decoder"]])
def test_classes_are_told_apart_by_their_queries_alone(x, build):
    pool, order = perturbed(build()), torch.randperm(4)
    before = pool(x)
    with torch.no_grad():
        pool.query.copy_(pool.query[order].clone())
    torch.testing.assert_close(pool(x), before[:, order])
    with torch.no_grad():
        pool.query.copy_(pool.query[:1].expand_as(pool.query).clone())
    torch.testing.assert_close(pool(x), pool(x)[:, :1].expand(-1, 4))


def test_the_first_self_attention_of_a_decoder_says_the_same_to_all():
    """What the released first layer computes, with values of zero: its biases."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
    nn.init.normal_(attention.in_proj_bias)
    nn.init.normal_(attention.out_proj.bias)
    query = torch.randn(1, 5, 8, dtype=torch.float64)
    y = attention(query, query, torch.zeros_like(query))[0]
    constant = attention.out_proj(attention.in_proj_bias[16:])
    torch.testing.assert_close(y, constant.expand_as(y))


@pytest.mark.parametrize(
    "call, match",
    [
        (lambda: StampPool(8, 2, combine="mean"), "combine must be one of weighted_sum, max.*got 'mean'"),
        (lambda: StampPool(8, 2, num_queries=0), "num_queries must be at least 1, got 0"),
        (lambda: CrissCrossGatedMLP(4, 5, times=2, channels=2), "hidden_dim must be even.*got 5"),
        (lambda: CrissCrossGatedMLP(4, 6, times=2, channels=2, combine="sum"), "combine must be one of concat.*got 'sum'"),
        (lambda: CrissCrossGatedMLP(4, 6, times=2, channels=3)(torch.zeros(1, 3, 2, 4)), r"\(batch, 2, 3, 4\), got \(1, 3, 2, 4\)"),
        (lambda: StampAdapter(4, 2, times=2, channels=3, positions=("place",)), "token, time and channel, got place"),
        (lambda: StampAdapter(4, 2, times=2, channels=3)(torch.zeros(1, 3, 2, 4)), r"\(batch, 2, 3, 4\), got \(1, 3, 2, 4\)"),
        (lambda: JointTokenPool(8, 2, num_layers=0), "num_layers must be at least 1"),
        (lambda: CoordinateDecoder(8, num_hidden=0), "num_hidden must be at least 1, got 0"),
        (lambda: CoordinateDecoder(8)(torch.zeros(1, 7), (2, 2)), r"x must be \(..., 8\), got \(1, 7\)"),
        (lambda: ClassQueryPool(8, 1), "num_classes must be at least 2, got 1"),
        (lambda: ClassQueryDecoder(8, 2, num_layers=0), "at least 2 classes and 1 layer.*num_layers=0"),
    ],
)
def test_errors(call, match, as_a_user):
    with pytest.raises(ValueError, match=match):
        call()


def test_mean_pool_in_place_of_the_joint_token(x):
    """The ablation of row 179: anything that pools people fits."""
    model = JointAttentionEstimator(8, 16, pool=MeanPool(16)).double()
    assert model(x, grid=(2, 3)).shape == (3, 2, 3)
