"""Exercise of the page that compares all pools."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mhlib.exercises.declare import Random, exercise


def _cases(random: Random):
    yield (torch.tensor([[0.9, 0.1], [0.7, 0.6], [0.2, 1.4]], dtype=torch.float64),)
    # One pool is best on average and on one set, another has the best worst score, a third the least regret.
    yield (torch.tensor([[99.0, 60.0], [70.0, 72.0], [90.0, 70.0], [70.5, 90.0]], dtype=torch.float64),)
    yield (torch.tensor([[10.0, 50.0, 30.0], [40.0, 20.0, 35.0], [35.0, 45.0, 12.0], [28.0, 40.0, 29.0]], dtype=torch.float64),)
    yield (random.normal(6, 4),)


@exercise(
    "least_regret",
    cases=_cases,
    mistakes=(
        ("This is the pool with the best mean score; regret looks at the worst data set.", lambda scores: scores.mean(1).argmax()),
        ("This is the pool with the largest regret; the smallest was asked for.", lambda scores: _regret(scores).argmax()),
        (
            "This is the pool whose worst score is best. Data sets differ in difficulty: compare with the best pool on each.",
            lambda scores: scores.amin(1).argmax(),
        ),
        ("This is the value of the regret; its index was asked for.", lambda scores: _regret(scores).amin()),
    ),
)
def least_regret(scores: Float[Tensor, "pools sets"]) -> Int[Tensor, ""]:
    """The row whose largest distance from the best of each column is the smallest."""
    return _regret(scores).argmin()


def _regret(scores: Tensor) -> Tensor:
    return (scores.amax(0) - scores).amax(1)
