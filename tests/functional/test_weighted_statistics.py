"""Weighted mean and deviation: what they become for plain, whole-numbered and grouped weights."""

import pytest
import torch

from mhlib.functional import masked_mean, masked_std, weighted_statistics


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_equal_weights_are_plain_statistics():
    x, keep = random(3, 7, 6), torch.rand(3, 7) > 0.3
    for weights in (None, torch.full((3, 7, 1), 0.2, dtype=torch.float64), torch.full((3, 7, 6), 5.0, dtype=torch.float64)):
        mean, deviation = weighted_statistics(x, weights, keep)
        torch.testing.assert_close(mean, masked_mean(x, keep))
        torch.testing.assert_close(deviation, masked_std(x, keep))


def test_a_weight_of_two_is_the_token_twice():
    x, times = random(1, 5, 4), torch.tensor([1, 2, 0, 3, 1])
    repeated = x.repeat_interleave(times, 1)
    for a, b in zip(weighted_statistics(x, times.double()[None, :, None]), weighted_statistics(repeated)):
        torch.testing.assert_close(a, b)


def test_each_group_of_channels_has_its_own_weights():
    x, w = random(2, 5, 6), torch.rand(2, 5, 3, dtype=torch.float64)
    whole = weighted_statistics(x, w)
    parts = [weighted_statistics(x[..., 2 * g : 2 * g + 2], w[..., g : g + 1]) for g in range(3)]
    for i in range(2):
        torch.testing.assert_close(whole[i], torch.cat([part[i] for part in parts], -1))


def test_the_least_variance():
    x = torch.ones(1, 4, 2, dtype=torch.float64, requires_grad=True)
    _, deviation = weighted_statistics(x, eps=0.25)
    assert (deviation == 0.5).all() and (torch.autograd.grad(deviation.sum(), x)[0] == 0).all()


def test_nothing_gives_zeros():
    x = random(2, 4, 2)
    for weights, keep in ((torch.zeros(2, 4, 1, dtype=torch.float64), None), (None, torch.zeros(2, 4, dtype=torch.bool))):
        mean, deviation = weighted_statistics(x, weights, keep, eps=0.1)
        assert (mean == 0).all() and (deviation == 0).all()
        assert (torch.autograd.grad((mean + deviation).sum(), x)[0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_summed_in_float32(dtype):
    x = torch.cat([300 * torch.randn(1, 70_000, 1), torch.full((1, 70_000, 1), 100.0)], -1).to(dtype)
    weights = torch.rand(1, 70_000, 1).to(dtype)
    for w in (weights, None):
        want = weighted_statistics(x.double(), None if w is None else w.double())
        for ours, exact in zip(weighted_statistics(x, w), want):
            assert ours.dtype == dtype
            torch.testing.assert_close(ours.double(), exact, atol=0.1, rtol=2 * torch.finfo(dtype).eps)


def test_gradients():
    weights = torch.rand(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(weighted_statistics, (random(2, 4, 6), weights), fast_mode=True)


def test_weights_that_do_not_divide_the_channels():
    with pytest.raises(ValueError, match="must divide dim=6, got 4"):
        weighted_statistics(random(2, 4, 6), torch.ones(2, 4, 4, dtype=torch.float64))
