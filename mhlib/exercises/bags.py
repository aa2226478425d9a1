"""Exercises of the chapters on bags."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.exercises.declare import Random, exercise


def _push_cases(random: Random):
    for frames, label in ((3, 1), (4, 0), (7, 1), (12, 0)):
        yield random.normal(frames).sigmoid(), label


def _slope(p):
    return (2 * p - p.square().sum() / p.sum()) / p.sum()


@exercise(
    "linear_softmax_push",
    cases=_push_cases,
    mistakes=(
        ("This is the derivative of the loss; descent goes against it.", lambda p, label: -linear_softmax_push(p, label)),
        (
            "This is the derivative of y alone; the cross-entropy multiplies it by 1 / y or -1 / (1 - y).",
            lambda p, label: _slope(p),
        ),
        (
            "The weights depend on the probabilities too: p / sum of p is only a part of the derivative of y.",
            lambda p, label: linear_softmax_push(p, label) / _slope(p) * p / p.sum(),
        ),
        (
            "The square of p has the derivative 2 p, not p.",
            lambda p, label: linear_softmax_push(p, label) / _slope(p) * (p - p.square().sum() / p.sum()) / p.sum(),
        ),
        (
            "A clip without the event has the loss -log(1 - y), whose derivative by y is 1 / (1 - y).",
            lambda p, label: linear_softmax_push(p, 1) if label else -linear_softmax_push(p, 1),
        ),
    ),
)
def linear_softmax_push(p: Float[Tensor, " frames"], label: int) -> Float[Tensor, " frames"]:
    """Minus the derivative of the clip's cross-entropy with respect to the probability of each frame."""
    y = p.square().sum() / p.sum()
    return _slope(p) * (1 / y if label else -1 / (1 - y))


def _mean_cases(random: Random):
    for visits, sample, gamma in ((1, 2, 0.5), (2, 3, 0.3), (5, 2, 0.1), (4, 3, 1.0)):
        yield random.normal(visits, sample), gamma
    yield 500 + random.normal(3, 2), 0.4
    yield random.normal(3, 2) - 2000, 0.4


def _in_the_open(phi: Tensor, gamma: float) -> Tensor:
    s, *later = phi.exp().mean(1)
    for mean in later:
        s = (1 - gamma) * s + gamma * mean
    return s.log()


def _log_means(phi: Tensor) -> Tensor:
    return phi.logsumexp(1) - math.log(phi.shape[1])


def _fold(phi: Tensor, gamma: float, head_start: float) -> Tensor:
    s, *later = _log_means(phi)
    s = s + head_start
    old, new = torch.tensor([1 - gamma, gamma], dtype=phi.dtype).log()  # minus infinity where a share is 0
    for mean in later:
        s = torch.logaddexp(s + old, mean + new)
    return s


def _average_of_logs(phi: Tensor, gamma: float) -> Tensor:
    s, *later = _log_means(phi)
    for mean in later:
        s = (1 - gamma) * s + gamma * mean
    return s


def _sums(phi: Tensor, gamma: float) -> Tensor:
    return running_log_mean(phi, gamma) + math.log(phi.shape[1])


@exercise(
    "running_log_mean",
    cases=_mean_cases,
    mistakes=(
        (
            "This averages logarithms. The estimate is of the mean of the exponentials; take the logarithm at the end.",
            _average_of_logs,
        ),
        ("The exponentials left the range of float64 here: merge logarithms with logaddexp.", _in_the_open),
        (
            "The first sample is to be taken over whole; this starts from an estimate of zero.",
            lambda phi, gamma: _fold(phi, gamma, math.log(gamma)),
        ),
        (
            "gamma is the share of the new sample, 1 - gamma that of the old estimate.",
            lambda phi, gamma: running_log_mean(phi, 1 - gamma),
        ),
        ("This is the logarithm of a sum over the sample; divide by its size.", _sums),
    ),
)
def running_log_mean(phi: Float[Tensor, "visits sample"], gamma: float) -> Float[Tensor, ""]:
    """The logarithm of the running mean of exp(phi) after all visits, the first taken over whole."""
    return _fold(phi, gamma, 0.0)
