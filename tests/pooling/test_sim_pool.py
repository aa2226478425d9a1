"""SimPool at its limits, its cost, and what folding saves."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mhlib import cost
from mhlib.pooling import SimPool


def sets(batch=3, tokens=7, dim=8):
    return torch.randn(batch, tokens, dim, dtype=torch.float64)


def test_gamma_of_one_is_the_weighted_mean_shifted():
    pool, plain = SimPool(8, gamma=1.0).double(), SimPool(8, gamma=None).double()
    plain.load_state_dict(pool.state_dict())
    x = sets()
    shift = pool.norm(x).amin((1, 2))[:, None] - 1e-6
    torch.testing.assert_close(pool(x), plain(x) - shift)


def test_large_gamma_is_the_maximum():
    x = sets()
    errors = []
    for gamma in (4.0, 40.0, 4000.0):
        pool = SimPool(8, gamma=gamma).double()
        v = pool.norm(x)
        errors.append((pool(x) - (v - v.amin((1, 2), keepdim=True)).amax(1)).abs().max())
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.01


@pytest.mark.parametrize("gamma", [None, 1.25, 50.0])
def test_one_token_and_constant_tokens(gamma):
    pool = SimPool(8, gamma=gamma).double()
    for x in (sets(tokens=1), sets(tokens=1).expand(-1, 5, -1)):
        x = x.clone().requires_grad_()
        v = pool.norm(x)[:, 0]
        want = v if gamma is None else v - v.amin(1, keepdim=True) + 1e-6
        torch.testing.assert_close(pool(x), want)
        assert torch.autograd.grad(pool(x).square().sum(), x)[0].isfinite().all()
    flat = torch.ones(2, 3, 8, requires_grad=True)  # no variance to normalise by
    assert torch.autograd.grad(pool.float()(flat).sum(), flat)[0].isfinite().all()


def test_a_sample_does_not_depend_on_its_batch():
    pool, x = SimPool(8, gamma=2.0).double(), sets()
    other = torch.cat([x[:1], 5 * x[1:]])
    torch.testing.assert_close(pool(other)[0], pool(x)[0])


def test_beta_starts_at_zero_and_shifts():
    pool, x = SimPool(8, beta=True).double(), sets()
    before = pool(x)
    with torch.no_grad():
        pool.beta += 2.0
    torch.testing.assert_close(pool(x), before + 2)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
def test_cost_is_counted(fold, heads):
    pool, n = SimPool(8, heads, fold=fold, gamma=None, beta=True), 9
    counted = cost.of(pool, queries=1, keys=n, batch=2)
    assert counted.parameters == sum(p.numel() for p in pool.parameters())
    with FlopCounterMode(display=False) as counter:
        pool(torch.randn(2, n, 8), return_weights=True)
    assert counted.matmul_flops == counter.get_total_flops()


def test_folding_takes_the_tokens_out_of_the_square():
    flops = {fold: cost.of(lambda: SimPool(384, fold=fold), queries=1, keys=196).matmul_flops for fold in (True, False)}  # noqa: B023
    assert flops[False] > 60 * flops[True]


def test_errors(as_a_user):
    with pytest.raises(ValueError, match="gamma must not be 0"):
        SimPool(8, gamma=0.0)
    with pytest.raises(ValueError, match=r"SimPool wants x of shape \(batch, tokens, 8\), got \(2, 3, 4\)"):
        SimPool(8)(torch.zeros(2, 3, 4))
