"""Time computations in turn, so that a busy moment of the machine disturbs all of them alike."""

import math
from collections.abc import Callable
from timeit import Timer
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.benchmark import timer

__all__ = ["in_turn"]


def in_turn(*runs: Callable[[], Any], repeats: int = 9, least: float = 0.0) -> Float[Tensor, "repeats runs"]:
    """Seconds that each of ``runs`` takes, in ``repeats`` rounds that go through all of them.

    The clock waits for the accelerator, if there is one. Each run is called once beforehand, untimed. Compare within a
    round, then take the median over rounds: ``(times[:, 0] / times[:, 1]).median()``.

    Args:
        least: a run that is faster than so many seconds is called several times in a row in each round, until it has taken
            about that long, and its mean counts: single calls of some microseconds say little.

    Raises:
        ValueError: there is nothing to run, or no round.
    """
    if not runs or repeats < 1:
        raise ValueError(f"in_turn needs at least one run and one round, got {len(runs)} runs and repeats={repeats}")
    timers = [Timer(run, timer=timer) for run in runs]
    first = [each.timeit(1) for each in timers]  # untimed in the result: the first call sets things up that stay
    calls = [1 if seconds >= least else math.ceil(least / max(each.timeit(1), 1e-9)) for each, seconds in zip(timers, first)]
    rounds = [[each.timeit(count) / count for each, count in zip(timers, calls)] for _ in range(repeats)]
    return torch.tensor(rounds, dtype=torch.float64)
