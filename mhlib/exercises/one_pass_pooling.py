"""Exercises of the chapter on one-pass pooling kernels."""

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.exercises.declare import Random, exercise

Moments = tuple[Float[Tensor, ""], Float[Tensor, " channels"], Float[Tensor, " channels"]]


def _moments(x: Tensor) -> Moments:
    mean = x.mean(0) if len(x) else x.new_zeros(x.shape[1])
    return x.new_tensor(float(len(x))), mean, (x - mean).square().sum(0)


def _merge_cases(random: Random):
    for first, second in ((2, 1), (3, 3), (1, random.integer(4, 9)), (0, 3), (4, 0), (0, 0)):
        yield _moments(random.normal(first, 2)), _moments(3 + random.normal(second, 2))
    yield _moments(1e8 + random.normal(5, 2)), _moments(1e8 + random.normal(7, 2))


def _by_squares(a: Moments, b: Moments) -> Moments:
    count, mean, _ = merge_moments(a, b)
    squares = a[2] + a[0] * a[1].square() + b[2] + b[0] * b[1].square()
    return count, mean, squares - count * mean.square()


def _without(part: str):
    def wrong(a: Moments, b: Moments) -> Moments:
        count, mean, squares = merge_moments(a, b)
        apart = (b[1] - a[1]).square() * a[0] * b[0] / count.clamp_min(1)
        if part == "between":
            return count, mean, squares - apart
        if part == "count":
            return count, mean, squares - apart + (b[1] - a[1]).square()
        return count, (a[1] + b[1]) / 2, squares

    return wrong


def _no_guard(a: Moments, b: Moments) -> Moments:
    count = a[0] + b[0]
    apart = b[1] - a[1]
    return count, a[1] + apart * b[0] / count, a[2] + b[2] + apart.square() * a[0] * b[0] / count


@exercise(
    "merge_moments",
    cases=_merge_cases,
    mistakes=(
        ("The means count as much as their tokens are many: weigh them by the counts.", _without("mean")),
        ("The squared deviations lack what lies between the two means.", _without("between")),
        ("What lies between the means has a factor: n_a n_b / (n_a + n_b).", _without("count")),
        ("Nothing merged with nothing is nothing: divide by 1 where both counts are zero.", _no_guard),
        ("Sums of squares lose the deviation where the mean is large; use the difference of the means.", _by_squares),
    ),
)
def merge_moments(a: Moments, b: Moments) -> Moments:
    """Count, mean and sum of squared deviations of two sets together, from those of each."""
    count = a[0] + b[0]
    some = torch.where(count == 0, 1.0, count)
    apart = b[1] - a[1]
    return count, a[1] + apart * b[0] / some, a[2] + b[2] + apart.square() * a[0] * b[0] / some


def _slope_cases(random: Random):
    for tokens, p in ((2, 1.0), (4, 2.0), (5, -1.0), (6, random.uniform(2.0, 9.0)), (7, random.uniform(-9.0, -2.0))):
        yield random.normal(tokens).exp(), p
    yield 1e100 * random.normal(5).exp(), 20.0


def _parts(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """The mean, and KL(w || uniform)."""
    log_w = (p * x.log()).log_softmax(0)
    y = (((p * x.log()).logsumexp(0) - torch.tensor(float(len(x))).double().log()) / p).exp()
    return y, (log_w.exp() * (log_w + torch.tensor(float(len(x))).double().log())).sum()


@exercise(
    "exponent_gradient",
    cases=_slope_cases,
    mistakes=(
        ("The factor y is missing.", lambda x, p: _parts(x, p)[1] / p**2),
        ("The divergence is divided by p squared.", lambda x, p: _parts(x, p)[0] * _parts(x, p)[1] / p),
        (
            "This is the entropy of the weights; the divergence from uniform weights is log N less.",
            lambda x, p: _parts(x, p)[0] * (_parts(x, p)[1] - torch.tensor(float(len(x))).double().log()) / p**2,
        ),
        (
            "The powers left the range of float64 here. Take the softmax of p log x.",
            lambda x, p: torch.func.grad(lambda q: (x**q).mean() ** (1 / q))(torch.tensor(p, dtype=torch.float64)),
        ),
    ),
)
def exponent_gradient(x: Float[Tensor, " tokens"], p: float) -> Float[Tensor, ""]:
    """dy/dp of the generalized mean of positive tokens."""
    mean, divergence = _parts(x, p)
    return mean * divergence / p**2
