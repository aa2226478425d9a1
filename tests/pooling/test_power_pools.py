"""Log-sum-exp and generalized means: limits in temperature and exponent, order between them, what learning changes."""

import math

import pytest
import torch

from mhlib.pooling import GeneralizedMeanPool, GroupGeneralizedMeanPool, LogSumExpPool


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_temperature_goes_from_the_minimum_over_the_mean_to_the_maximum():
    x = doubles(3, 7, 5)
    limits = ((1e-4, x.amax(1)), (-1e-4, x.amin(1)), (1e6, x.mean(1)), (-1e6, x.mean(1)))
    for temperature, want in limits:
        torch.testing.assert_close(LogSumExpPool(5, temperature)(x), want, atol=2e-3, rtol=0)
    steps = torch.stack([LogSumExpPool(5, t)(x) for t in (-0.1, -1, -10, 10, 1, 0.1)])
    assert (steps.diff(dim=0) > 0).all(), "log-sum-exp should grow from minimum to maximum"


def test_exponent_goes_from_the_minimum_over_the_mean_to_the_maximum():
    x = doubles(3, 7, 5).abs() + 0.1
    pools = {p: GeneralizedMeanPool(5, p) for p in (-1e5, -1.0, 1.0, 2.0, 1e5)}
    y = {p: pool.double()(x) for p, pool in pools.items()}
    torch.testing.assert_close(y[1e5], x.amax(1), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(y[-1e5], x.amin(1), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(y[1.0], x.mean(1))
    torch.testing.assert_close(y[2.0], x.square().mean(1).sqrt())
    torch.testing.assert_close(y[-1.0], 1 / (1 / x).mean(1))  # harmonic
    near_zero = GeneralizedMeanPool(5, 1e-3).double()(x)
    torch.testing.assert_close(near_zero, x.log().mean(1).exp(), atol=5e-3, rtol=5e-3)  # geometric
    assert (torch.stack([y[p] for p in sorted(y)]).diff(dim=0) > 0).all(), "a generalized mean should grow with p"


@pytest.mark.parametrize("p", [3.0, 60.0, 1e4])
@pytest.mark.parametrize("size", [1e-5, 1.0, 1e5])
def test_large_exponents_neither_overflow_nor_vanish(p, size):
    x = (size * (torch.rand(2, 9, 4) + 0.01)).requires_grad_()
    y = GeneralizedMeanPool(4, p, eps=1e-12)(x)
    assert ((y <= x.amax(1) * 1.0001) & (y >= x.mean(1) * 0.9999)).all()
    assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()
    if p > 50 and size != 1:
        naive = x.pow(p).mean(1).pow(1 / p)
        assert not ((naive > 0) & naive.isfinite()).all(), "the literal formula was meant to fail here"


def test_low_precision_is_computed_in_float32():
    x = torch.rand(2, 50, 4) + 0.5
    want = GeneralizedMeanPool(4, 7.0)(x.bfloat16().float())
    got = GeneralizedMeanPool(4, 7.0)(x.bfloat16())
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want, rtol=2**-8, atol=0)  # one rounding, at the end


def test_clamp_hides_what_is_negative_and_shift_does_not():
    x = -doubles(2, 6, 4).abs() - 0.1
    clamped, shifted = GeneralizedMeanPool(4), GeneralizedMeanPool(4, negative="shift").double()
    torch.testing.assert_close(clamped(x), torch.full((2, 4), 1e-6, dtype=torch.float64))
    assert ((shifted(x) > x.mean(1)) & (shifted(x) < x.amax(1))).all()
    moved = x + 10 * doubles(2, 1, 4)
    torch.testing.assert_close(shifted(moved) - shifted(x), (moved - x)[:, 0])  # moves with the set
    large = GeneralizedMeanPool(4, 1e5, negative="shift").double()
    torch.testing.assert_close(large(x), x.amax(1), atol=1e-3, rtol=0)
    with pytest.raises(ValueError, match="cannot come in pieces"):
        shifted.start(1, x)


def test_the_exponent_learns_and_keeps_its_sign():
    x = torch.rand(8, 9, 4) + 0.1
    target = GeneralizedMeanPool(4, 5.0)(x).detach()
    for start in (1.0, 8.0):
        pool = GeneralizedMeanPool(4, start)
        optimizer = torch.optim.Adam(pool.parameters(), 0.1)
        for _ in range(400):
            optimizer.zero_grad()
            (pool(x) - target).square().sum().backward()
            optimizer.step()
        assert abs(pool.p.item() - 5) < 0.1
    pool = GeneralizedMeanPool(4, 1.0)
    with torch.no_grad():
        pool.p.fill_(-3.0)
    assert pool.sharpness().item() == pytest.approx(1e-3) and pool(x).isfinite().all()
    assert not GeneralizedMeanPool(4, learned=False).p.requires_grad


def test_gradient_of_the_exponent_by_hand():
    x = doubles(3, 7, 1).abs() + 0.1
    pool = GeneralizedMeanPool(1, 2.3).double()
    y = pool(x)[:, 0]
    w = x[..., 0].pow(pool.p) / x[..., 0].pow(pool.p).sum(1, keepdim=True)
    by_hand = y / pool.p * ((w * x[..., 0].log()).sum(1) - y.log())
    torch.testing.assert_close(torch.autograd.grad(y.sum(), pool.p)[0], by_hand.sum()[None])


def test_each_group_has_its_own_exponent():
    pool = GroupGeneralizedMeanPool(6, 3).double()
    x = (doubles(2, 5, 6).abs() + 0.1).requires_grad_()
    with torch.no_grad():
        pool.p.copy_(torch.tensor([1.0, 2.0, 1e5]))
    y = pool(x)
    torch.testing.assert_close(y[:, :2], x[..., :2].mean(1))
    torch.testing.assert_close(y[:, 2:4], x[..., 2:4].square().mean(1).sqrt())
    torch.testing.assert_close(y[:, 4:], x[..., 4:].amax(1), atol=1e-3, rtol=0)
    gradient = torch.autograd.grad(y[:, 2:4].sum(), pool.p)[0]
    assert (gradient != 0).tolist() == [False, True, False]


def test_learned_temperature_stays_positive():
    pool = LogSumExpPool(3, 2.0, learned=True)
    assert pool.sharpness().item() == pytest.approx(0.5)
    torch.testing.assert_close(pool(torch.ones(1, 2, 3)), torch.ones(1, 3))
    with torch.no_grad():
        pool.log_sharpness.fill_(-5.0)
    assert pool.sharpness() > 0


def test_the_sum_form_is_larger_by_the_logarithm_of_the_number():
    x = doubles(2, 6, 3)
    difference = LogSumExpPool(3, 0.7, average=False)(x) - LogSumExpPool(3, 0.7)(x)
    torch.testing.assert_close(difference, torch.full_like(difference, 0.7 * math.log(6)))


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: LogSumExpPool(4, 0.0), "other than 0, got 0.0"),
        (lambda: LogSumExpPool(4, math.inf), "must be finite, got inf; for the mean use MeanPool"),
        (lambda: LogSumExpPool(4, math.nan), "must be finite, got nan"),
        (lambda: LogSumExpPool(4, -1.0, learned=True), "positive to be learned, got -1.0"),
        (lambda: GeneralizedMeanPool(4, 0.0), "not 0, got 0.0"),
        (lambda: GeneralizedMeanPool(4, math.inf), "use MaxPool"),
        (lambda: GeneralizedMeanPool(4, eps=0.0), "eps must be positive"),
        (lambda: GeneralizedMeanPool(4, negative="abs"), "'clamp' or 'shift', got 'abs'"),
        (lambda: GroupGeneralizedMeanPool(6, 4), "groups=4 for dim=6"),
    ],
)
def test_wrong_arguments(make, text, as_a_user):
    with pytest.raises(ValueError, match=text):
        make()
