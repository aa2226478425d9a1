"""Exercises of the chapter on statistics for speech."""

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.exercises.declare import Random, exercise


def _weighted_cases(random: Random):
    for frames, dim in ((3, 2), (5, 3), (8, 4)):
        yield random.normal(frames, dim), random.normal(frames)
    yield 1e7 + random.normal(6, 2), random.normal(6)


def _moments(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    mean = a @ x
    return mean, a @ (x - mean).square()


@exercise(
    "weighted_statistics",
    cases=_weighted_cases,
    mistakes=(
        (
            "The deviations are taken from the plain mean; take them from the weighted one.",
            lambda x, logits: torch.cat([logits.softmax(0) @ x, (logits.softmax(0) @ (x - x.mean(0)).square()).sqrt()]),
        ),
        (
            "The mean is weighted, the spread is not: weigh the squared deviations as well.",
            lambda x, logits: torch.cat(
                [logits.softmax(0) @ x, (x - logits.softmax(0) @ x).square().mean(0).sqrt()]
            ),
        ),
        ("This is the variance; take its root.", lambda x, logits: torch.cat(_moments(x, logits.softmax(0)))),
        (
            "The weights sum to one already; do not divide by the number of frames.",
            lambda x, logits: torch.cat([logits.softmax(0) @ x / len(x), (_moments(x, logits.softmax(0))[1] / len(x)).sqrt()]),
        ),
        (
            "The square of the mean was subtracted from the mean of the squares, two huge numbers that agree in most of their "
            "digits. Subtract the mean first, then square.",
            lambda x, logits: torch.cat(
                [logits.softmax(0) @ x, (logits.softmax(0) @ x.square() - (logits.softmax(0) @ x).square()).clamp_min(0).sqrt()]
            ),
        ),
    ),
)
def weighted_statistics(x: Float[Tensor, "frames dim"], logits: Float[Tensor, " frames"]) -> Float[Tensor, " two_dim"]:
    """Mean, then standard deviation, of each feature under softmax weights."""
    mean, variance = _moments(x, logits.softmax(0))
    return torch.cat([mean, variance.sqrt()])


def _share_cases(random: Random):
    for segments, length in ((2, 3), (3, 4), (5, 2)):
        yield random.normal(segments * length) * 2 + 1, length
    yield random.normal(12), 1
    yield random.normal(12), 6


@exercise(
    "share_between",
    cases=_share_cases,
    mistakes=(
        (
            "This is the share inside the segments; the other one was asked for.",
            lambda x, length: 1 - share_between(x, length),
        ),
        (
            "This is a share of the deviation; take variances, which add up.",
            lambda x, length: share_between(x, length).sqrt(),
        ),
        (
            "This is the variance between segments itself; divide by the variance of all frames.",
            lambda x, length: share_between(x, length) * x.var(correction=0),
        ),
        (
            "The frames of a segment stand next to each other: reshape to (segments, length), not the other way round.",
            lambda x, length: x.view(length, -1).mean(0).var(correction=0) / x.var(correction=0),
        ),
        (
            "Divide by the number of segments and of frames, not by one less: the law of total variance holds for those.",
            lambda x, length: x.view(-1, length).mean(1).var(correction=1) / x.var(),
        ),
    ),
)
def share_between(x: Float[Tensor, " frames"], length: int) -> Float[Tensor, ""]:
    """Which share of the variance of x lies between the means of segments of ``length`` frames."""
    return x.view(-1, length).mean(1).var(correction=0) / x.var(correction=0)
