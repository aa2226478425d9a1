"""Statistics pools of rows 2 and 38: their formulas by hand, padding, constant frames."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mhlib import cost
from mhlib.pooling import (
    AttentiveStatisticsPool,
    DualResolutionStatisticsPool,
    MultiHeadStatisticsPool,
    StatisticsPool,
)

POOLS = {
    "statistics": lambda: StatisticsPool(6),
    "variance": lambda: StatisticsPool(6, second="variance"),
    "attentive": lambda: AttentiveStatisticsPool(6, hidden=4),
    "heads": lambda: MultiHeadStatisticsPool(6, 2),
    "heads' deviation": lambda: MultiHeadStatisticsPool(6, 2, second="deviation"),
    "dual": lambda: DualResolutionStatisticsPool(6, segment=2, hidden=4),
    "dual, frames": lambda: DualResolutionStatisticsPool(6, segment=2, hidden=4, within=True),
}


def frames(batch=3, tokens=9, dim=6):
    return torch.randn(batch, tokens, dim, dtype=torch.float64)


@pytest.mark.parametrize("name", POOLS)
def test_constant_frames_have_no_spread(name):
    pool = POOLS[name]().double()
    x = frames(tokens=1).expand(-1, 5, -1).clone().requires_grad_()
    y = pool(x)
    mean, spread = y.chunk(2, -1)
    torch.testing.assert_close(mean, x[:, 0])
    torch.testing.assert_close(spread, torch.full_like(spread, getattr(pool, "eps", 0.0) ** 0.5))
    gradient = torch.autograd.grad(y.sum(), x)[0]
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", POOLS)
def test_adding_a_constant_moves_the_mean_alone(name):
    """With weights that do not look at the frames; those that do are moved too."""
    pool = POOLS[name]().double()
    with torch.no_grad():
        for p in (*getattr(pool, "scorer", [torch.nn.Identity()])[-1].parameters(), *([pool.query] if hasattr(pool, "query") else [])):
            p.zero_()
    x = frames()
    moved, still = pool(x + 7.0).chunk(2, -1), pool(x).chunk(2, -1)
    torch.testing.assert_close(moved[0], still[0] + 7.0)
    torch.testing.assert_close(moved[1], still[1])


def test_attentive_by_hand():
    pool, x = AttentiveStatisticsPool(6, hidden=4).double(), frames()
    w, v = pool.scorer[0], pool.scorer[2].weight[0]
    a = (torch.tanh(x @ w.weight.T + w.bias) @ v).softmax(1)[..., None]
    mean = (a * x).sum(1)
    second = (a * x.square()).sum(1) - mean.square()
    y, weights = pool(x, return_weights=True)
    torch.testing.assert_close(y, torch.cat([mean, second.sqrt()], -1))
    torch.testing.assert_close(weights[:, 0], a[..., 0])


def test_heads_by_hand():
    pool, x = MultiHeadStatisticsPool(6, 2).double(), frames()
    means, variances = [], []
    for h in range(2):
        part = x[..., 3 * h : 3 * h + 3]
        a = (part @ pool.query[0, 3 * h : 3 * h + 3] / 3**0.5).softmax(1)[..., None]
        means.append((a * part).sum(1))
        variances.append((a * part.square()).sum(1) - means[-1].square())
    torch.testing.assert_close(pool(x), torch.cat([*means, *variances], -1))


@pytest.mark.parametrize("second, width", [(None, 6), ("variance", 12)])
def test_cost_is_counted(second, width):
    pool = MultiHeadStatisticsPool(6, 2, second=second)
    x = torch.randn(2, 9, 6)
    counted = cost.of(pool, queries=1, keys=9, batch=2)
    assert counted.parameters == sum(p.numel() for p in pool.parameters()) == 6
    with FlopCounterMode(display=False) as counter:
        y = pool(x, return_weights=True)[0]
    assert y.shape == (2, width) and counted.matmul_flops == counter.get_total_flops()


@pytest.mark.parametrize("within", [False, True])
def test_dual_resolution_by_hand_with_a_short_last_segment(within):
    pool = DualResolutionStatisticsPool(6, segment=4, hidden=3, fuse="concat", within=within, eps=0.0).double()
    x = frames(tokens=9)  # segments of 4, 4 and 1
    parts = x.split(4, 1)
    s = torch.stack([part.mean(1) for part in parts], 1)
    a = pool.scorer(s).softmax(1)
    mean = (a * s).sum(1)
    squares = torch.stack([part.square().mean(1) for part in parts], 1) if within else s.square()
    fine = ((a * squares).sum(1) - mean.square()).sqrt()
    y, weights, aux = pool(x, return_weights=True, return_aux=True)
    want = torch.cat([x.mean(1), x.std(1, correction=0), mean, fine], -1)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(aux["segments"], a[..., 0])
    lengths = torch.tensor([4, 4, 1])
    torch.testing.assert_close(weights[:, 0], (a[..., 0] / lengths).repeat_interleave(lengths, 1))


def test_padding_does_not_add_a_segment():
    pool = DualResolutionStatisticsPool(6, segment=4, hidden=3).double()
    x = frames(tokens=15)
    mask = torch.arange(15) < torch.tensor([5, 8, 15])[:, None]
    y, aux = pool(torch.where(mask[..., None], x, 1e3), mask, return_aux=True)
    for i, length in enumerate((5, 8, 15)):
        torch.testing.assert_close(y[i], pool(x[i : i + 1, :length])[0])
    assert (aux["segments"] > 0).sum(1).tolist() == [2, 2, 4]


def test_order_counts_between_segments_only():
    pool = DualResolutionStatisticsPool(6, segment=3, hidden=4).double()
    x = frames(tokens=9)
    inside, across = [2, 0, 1, 4, 5, 3, 6, 8, 7], [3, 0, 1, 2, 4, 5, 6, 7, 8]
    torch.testing.assert_close(pool(x[:, inside]), pool(x))
    torch.testing.assert_close(pool(x[:, [6, 7, 8, 0, 1, 2, 3, 4, 5]]), pool(x))
    assert not torch.allclose(pool(x[:, across]), pool(x))


def test_errors(as_a_user):
    for call, text in (
        (lambda: StatisticsPool(4, second="skew"), "second must be one of deviation, variance, got 'skew'"),
        (lambda: MultiHeadStatisticsPool(4, second="skew"), "second must be one of deviation, variance or None, got 'skew'"),
        (lambda: AttentiveStatisticsPool(4, hidden=0), "hidden must be at least 1, got 0"),
        (lambda: AttentiveStatisticsPool(4, eps=-1.0), "eps must not be negative, got -1.0"),
        (lambda: DualResolutionStatisticsPool(4, segment=0), "segment must be at least 1 frame, got 0"),
        (lambda: DualResolutionStatisticsPool(4, fuse="mean"), "fuse must be 'sum' or 'concat', got 'mean'"),
        (lambda: DualResolutionStatisticsPool(4, eps=-1.0), "eps must not be negative, got -1.0"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
