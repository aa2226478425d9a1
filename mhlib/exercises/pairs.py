"""Exercises of the chapter on pooling pairs."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.exercises.declare import Random, exercise


def _pair_cases(random: Random):
    for n, m, d in ((2, 3, 2), (4, 3, 3), (5, 7, 4)):
        yield random.normal(n, d), random.normal(m, d), random.normal(d, d)


def _pool(table: Tensor, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return table.amax(1).softmax(0) @ x, table.amax(0).softmax(0) @ other


@exercise(
    "attentive_pair",
    cases=_pair_cases,
    mistakes=(
        ("The tanh is missing.", lambda x, other, form: _pool(x @ form @ other.T, x, other)),
        (
            "The form is transposed: a row of x meets its rows.",
            lambda x, other, form: _pool(torch.tanh(x @ form.T @ other.T), x, other),
        ),
        (
            "A token counts by its best match, the largest entry of its row, not by the mean of them.",
            lambda x, other, form: (
                torch.tanh(x @ form @ other.T).mean(1).softmax(0) @ x,
                torch.tanh(x @ form @ other.T).mean(0).softmax(0) @ other,
            ),
        ),
        (
            "The results are swapped: first that of x.",
            lambda x, other, form: _pool(torch.tanh(x @ form @ other.T), x, other)[::-1],
        ),
        (
            "The weights must sum to one: a softmax over the best matches.",
            lambda x, other, form: (
                torch.tanh(x @ form @ other.T).amax(1) @ x,
                torch.tanh(x @ form @ other.T).amax(0) @ other,
            ),
        ),
    ),
)
def attentive_pair(
    x: Float[Tensor, "tokens d"], other: Float[Tensor, "others d"], form: Float[Tensor, "d d"]
) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    """Both sequences pooled by the softmax of their best matches in tanh(x form other^T)."""
    return _pool(torch.tanh(x @ form @ other.T), x, other)


def _bound_cases(random: Random):
    yield 1.0, 2
    yield 1.0, 100
    yield random.uniform(0.1, 3.0), random.integer(3, 50)
    yield 300.0, 5  # e^600 fits float64, e^(2 * 600) does not
    yield 600.0, 5


@exercise(
    "largest_weight",
    cases=_bound_cases,
    mistakes=(
        (
            "The other logits may be as low as -b, not only 0.",
            lambda b, tokens: 1 / (1 + (tokens - 1) * math.exp(-b)),
        ),
        ("There are N - 1 other tokens, not N.", lambda b, tokens: 1 / (1 + tokens * math.exp(-2 * b))),
        ("This is the smallest weight of all: one token at -b, the others at b.", lambda b, tokens: _smallest(b, tokens)),
        (
            "Exponentials left the range of float64. Divide numerator and denominator by the larger one first.",
            lambda b, tokens: math.exp(b) / (math.exp(b) + (tokens - 1) * math.exp(-b)) if b < 100 else math.nan,
        ),
    ),
)
def largest_weight(b: float, tokens: int) -> float:
    """The largest weight that a softmax over ``tokens`` logits between -b and b can give."""
    return 1 / (1 + (tokens - 1) * math.exp(-2 * b))


def _smallest(b: float, tokens: int) -> float:
    return math.exp(-2 * b) / (math.exp(-2 * b) + tokens - 1)
