"""SoftPool: its limits, its gradient, and what holds in every window."""

import pytest
import torch
from torch.nn import functional as F

from mhlib.functional import soft_pool2d


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("kernel, stride", [(2, None), (3, 2), ((2, 3), (1, 4))])
def test_between_average_and_maximum(kernel, stride):
    x = random(2, 3, 9, 11)
    average, largest = F.avg_pool2d(x, kernel, stride), F.max_pool2d(x, kernel, stride)
    y = soft_pool2d(x, kernel, stride)
    assert (average <= y + 1e-12).all() and (y <= largest + 1e-12).all()
    torch.testing.assert_close(soft_pool2d(x, kernel, stride, beta=0.0), average)
    torch.testing.assert_close(soft_pool2d(x, kernel, stride, beta=1e6), largest)


def test_ratio_of_two_average_pools():
    x = random(2, 3, 8, 8)
    torch.testing.assert_close(soft_pool2d(x, 3, 2), F.avg_pool2d(x * x.exp(), 3, 2) / F.avg_pool2d(x.exp(), 3, 2))


def test_a_constant_moves_through():
    x = random(1, 2, 6, 6)
    torch.testing.assert_close(soft_pool2d(x + 5, 2), soft_pool2d(x, 2) + 5)
    torch.testing.assert_close(soft_pool2d(x, 1), x)


def test_a_window_far_below_the_others_counts_like_any():
    x = torch.randn(1, 1, 4, 4)
    x[..., 2:] += 1000
    torch.testing.assert_close(soft_pool2d(x, 2)[..., :1], soft_pool2d(x[..., :2], 2))


def test_gradient_is_the_one_stated():
    x = random(1, 1, 3, 3)
    y = soft_pool2d(x, 3, beta=2.0)
    weights = (2 * x).flatten().softmax(0).view_as(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, weights * (1 + 2 * (x - y)))
    assert torch.autograd.gradcheck(lambda x: soft_pool2d(x, (2, 3), 1), random(2, 2, 4, 5), fast_mode=True)


@pytest.mark.parametrize(
    "kernel, stride, match",
    [
        (5, None, r"a window of \(5, 5\) does not fit into a map of \(4, 4\)"),
        (0, None, r"kernel_size must be a positive integer or a pair of them \(height, width\), got 0"),
        (2, (1, 2, 3), r"stride must be a positive integer or a pair"),
    ],
)
def test_errors_say_what_was_expected(kernel, stride, match, as_a_user):
    with pytest.raises(ValueError, match=match):
        soft_pool2d(torch.zeros(1, 1, 4, 4), kernel, stride)


def test_a_map_has_four_axes(as_a_user):
    with pytest.raises(ValueError, match=r"wants x of shape \(batch, channels, height, width\), got \(4, 4\)"):
        soft_pool2d(torch.zeros(4, 4), 2)
