"""Bag pools: their gradients as derived in the paper, their order, streams of a million instances, and the prediction grid."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mhlib import pooling
from mhlib.experiments.memory import peak_memory
from mhlib.pooling import prediction_grid

FIVE = [
    pooling.MeanInstancePool,
    pooling.ExponentialSoftmaxPool,
    pooling.LinearSoftmaxPool,
    pooling.MaxInstancePool,
    pooling.AttentionInstancePool,
]


def bags(batch=3, tokens=7, dim=5):
    return torch.randn(batch, tokens, dim, dtype=torch.float64)


def of_probabilities(make, *, tokens=9, spread=2.0):
    """A pool whose one feature is the logit itself, probabilities p to feed it, and dy/dp by autograd."""
    pool = make(1).double()
    with torch.no_grad():
        pool.score.weight.fill_(1.0)
        pool.score.bias.zero_()
    p = (spread * torch.randn(1, tokens, 1, dtype=torch.float64)).sigmoid().requires_grad_()
    y = pool(p.logit())
    return y.item(), p.detach().flatten(), torch.autograd.grad(y.sum(), p)[0].flatten(), pool


def test_gradient_of_linear_softmax():
    y, p, slope, _ = of_probabilities(pooling.LinearSoftmaxPool)
    torch.testing.assert_close(slope, (2 * p - y) / p.sum())
    assert torch.equal(slope > 0, p > y / 2)


def test_gradient_of_exponential_softmax():
    y, p, slope, _ = of_probabilities(pooling.ExponentialSoftmaxPool)
    torch.testing.assert_close(slope, (1 - y + p) * p.exp() / p.exp().sum())
    assert (slope > 0).all()


def test_gradient_of_average_and_maximum():
    _, p, slope, _ = of_probabilities(pooling.MeanInstancePool)
    torch.testing.assert_close(slope, torch.full_like(p, 1 / 9))
    _, p, slope, _ = of_probabilities(pooling.MaxInstancePool)
    torch.testing.assert_close(slope, F.one_hot(p.argmax(), 9).double())


def test_gradients_of_attention():
    pool, x = pooling.AttentionInstancePool(5).double(), bags(1)
    p = pool.score(x).sigmoid().detach().requires_grad_()
    w = pool.attend(x).exp().detach().requires_grad_()
    y = (w * p).sum() / w.sum()
    torch.testing.assert_close(y, pool(x)[0, 0])
    by_p, by_w = torch.autograd.grad(y, (p, w))
    _, a = pool(x, return_weights=True)
    torch.testing.assert_close(by_p.flatten(), a.flatten())
    torch.testing.assert_close(by_w, (p - y) / w.sum())


def test_average_exponential_linear_maximum_are_in_this_order():
    x = 3 * bags(200)
    pools = [make(5, 2).double() for make in FIVE[:4]]
    for pool in pools[1:]:
        pool.load_state_dict(pools[0].state_dict())
    found = torch.stack([pool(x) for pool in pools])
    assert (found.diff(dim=0) > 0).all()
    same = torch.stack([pool(x[:, :1].expand(-1, 4, -1)) for pool in pools])
    torch.testing.assert_close(same, same[:1].expand_as(same))


def test_powers_rise_from_average_to_maximum():
    x, first = bags(50), pooling.LinearSoftmaxPool(5).double()
    found = []
    for power in (0.0, 0.5, 1.0, 2.0, 8.0):
        pool = pooling.LinearSoftmaxPool(5, power=power).double()
        pool.load_state_dict(first.state_dict())
        found.append(pool(x))
    assert (torch.stack(found).diff(dim=0) > 0).all()


def test_linear_softmax_of_zeros_and_ones_is_one_if_any_is():
    pool = pooling.LinearSoftmaxPool(1).double()
    with torch.no_grad():
        pool.score.weight.fill_(1.0)
        pool.score.bias.zero_()
    certain = torch.tensor([[-60.0, 60, -60, -60], [60, 60, 60, -60], [-60, -60, -60, -60]]).double()
    torch.testing.assert_close(pool(certain[..., None])[:, 0], torch.tensor([1.0, 1.0, 0.0]).double())


def test_probabilities_below_the_released_clamp_keep_their_gradient():
    """The released code clamps at 1e-7, where the gradient ends; log-weights from logits go on."""
    z = torch.tensor([-20.0, -21.0, -22.0], requires_grad=True)
    p = z.sigmoid().clamp(1e-7, 1 - 1e-7)
    assert torch.autograd.grad(p.square().sum() / p.sum(), z)[0].abs().max() == 0
    pool = pooling.LinearSoftmaxPool(1)
    with torch.no_grad():
        pool.score.weight.fill_(1.0)
        pool.score.bias.zero_()
    slope = torch.autograd.grad(pool(z[None, :, None]).log().sum(), z)[0]
    assert slope.isfinite().all() and slope[0] > 0.5


@pytest.mark.parametrize("make", FIVE)
def test_weights_average_the_reported_instances(make):
    pool, x = make(5, 2).double(), bags()
    keep = torch.rand(3, 7) > 0.4
    keep[:, 0] = True
    y, weights, aux = pool(x, keep, return_weights=True, return_aux=True)
    p = aux["instances"]
    torch.testing.assert_close(p, pool.score(x).sigmoid() * keep[..., None])
    torch.testing.assert_close((weights.mT * p).sum(1), y)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, dtype=torch.float64))


def test_instances_that_tie_for_the_maximum_share_it():
    pool, x = pooling.MaxInstancePool(5).double(), bags(1, 1).expand(1, 4, 5).clone().requires_grad_()
    y, weights = pool(x, return_weights=True)
    assert (weights == 0.25).all()
    slope = torch.autograd.grad(y.sum(), x)[0]
    torch.testing.assert_close(slope, slope[:, :1].expand_as(slope))


@pytest.mark.parametrize("make", [*FIVE, pooling.NoisyOrPool])
def test_a_million_instances_in_bounded_memory(make):
    pool, pieces = make(4), 50
    with torch.no_grad():
        pool.score.bias.fill_(-9.0)  # few positive instances, or noisy-or is 1 at once
    piece = lambda seed: torch.randn(1, 20_000, 4, generator=torch.Generator().manual_seed(seed))  # noqa: E731

    @torch.no_grad()
    def streamed():
        state = pool.start(1, torch.empty(0))
        for seed in range(pieces):
            state = pool.update(state, piece(seed))
        return state

    held, whole = peak_memory(streamed), 4 * 4 * 20_000 * pieces
    assert held < whole / 5, f"{held} bytes for a bag of {whole}"
    state = streamed()
    assert all(t.numel() == 1 for t in state)
    with torch.no_grad():
        bag = torch.cat([piece(seed) for seed in range(pieces)], 1).double()
        torch.testing.assert_close(pool.finish(state).double(), pool.double()(bag), atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("make", [*FIVE[:3], pooling.AttentionInstancePool, pooling.AttentionScorePool])
def test_large_bags_of_half_precision_are_summed_in_float32(make):
    pool = make(4).bfloat16()
    x = torch.randn(1, 20_000, 4, dtype=torch.bfloat16)
    with torch.no_grad():
        y = pool(x)
        assert y.dtype == torch.bfloat16 and pool.start(1, x)[0].dtype == torch.float32
        torch.testing.assert_close(y.float(), pool.float()(x.float()), atol=0.01, rtol=0.02)


def test_noisy_or_counts():
    pool, x = pooling.NoisyOrPool(5).double(), bags()
    once, twice = pool(x), pool(x.repeat(1, 2, 1))
    torch.testing.assert_close(1 - twice, (1 - once).square())
    with pytest.raises(ValueError, match="no weights"):
        pool(x, return_weights=True)


def test_top_share_lies_between_mean_and_maximum_and_moves_smoothly():
    x = bags()
    shares = torch.linspace(0.05, 1, 40).tolist()
    found = torch.stack([pooling.TopSharePool(5, q)(x) for q in shares])
    assert (found.diff(dim=0) <= 1e-12).all()
    assert found.diff(dim=0).abs().max() < 0.3 * (x.amax(1) - x.mean(1)).max()
    torch.testing.assert_close(pooling.TopSharePool(5, 3 / 7)(x), x.topk(3, 1).values.mean(1))
    y, weights = pooling.TopSharePool(5, 0.5)(x, return_weights=True)
    torch.testing.assert_close((weights.mT * x).sum(1), y)


@pytest.mark.parametrize("exact", [True, False])
def test_the_grid_with_a_norm_adds_up_only_when_it_is_frozen(exact):
    features, norm, head = torch.randn(3, 6, 4, 5).double(), nn.LayerNorm(6).double(), nn.Linear(6, 4).double()
    grid = prediction_grid(features, head, norm, exact=exact)
    logits = head(norm(features.mean((2, 3))))
    gap = (grid.logits.mean((2, 3)) - logits).abs().max()
    assert (gap < 1e-12) == exact
    if not exact:
        torch.testing.assert_close(grid.logits[:, :, 1, 2], head(norm(features[:, :, 1, 2])))


def test_contributions_sum_to_the_logits_without_their_offset():
    features, head = torch.randn(3, 6, 4, 5).double(), nn.Linear(6, 4).double()
    grid = prediction_grid(features, head)
    logits = head(features.mean((2, 3)))
    torch.testing.assert_close(grid.offset, head.bias.expand(3, 4))
    torch.testing.assert_close(grid.contributions.sum((2, 3)), logits - head.bias)
    assert grid.labels.shape == (3, 4, 5) and grid.cells.shape == (3, 20, 4)
    torch.testing.assert_close(pooling.MeanPool(4)(grid.cells), logits)


def test_the_grid_reads_as_mean_or_maximum_by_temperature():
    grid = prediction_grid(torch.randn(3, 6, 4, 5).double(), nn.Linear(6, 4).double())
    soft = lambda t: pooling.LogSumExpPool(4, t)(grid.cells)  # noqa: E731
    torch.testing.assert_close(soft(1e6), grid.cells.mean(1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(soft(1e-5), grid.cells.amax(1), atol=1e-3, rtol=1e-3)


def test_errors(as_a_user):
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        pooling.MeanInstancePool(4, 0)
    with pytest.raises(ValueError, match="power must not be negative, got -1"):
        pooling.LinearSoftmaxPool(4, power=-1)
    with pytest.raises(ValueError, match="share must be above 0 and at most 1, got 0"):
        pooling.TopSharePool(4, 0)
    with pytest.raises(ValueError, match=r"features must be \(batch, 6, height, width\) for this head, got \(2, 5, 3, 3\)"):
        prediction_grid(torch.zeros(2, 5, 3, 3), nn.Linear(6, 4))
