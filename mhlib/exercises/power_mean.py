"""Exercises of the chapter on one exponent."""

import math

from jaxtyping import Float
from torch import Tensor

from mhlib.exercises.declare import Random, exercise


def _positive(random: Random, tokens: int) -> Tensor:
    return random.normal(tokens).exp()


def _mean_cases(random: Random):
    for tokens, p in ((3, 1.0), (4, 2.0), (5, -1.0), (6, random.uniform(3.0, 9.0)), (7, random.uniform(-9.0, -3.0))):
        yield _positive(random, tokens), p
    yield 1e-200 * _positive(random, 5), 50.0
    yield 1e200 * _positive(random, 5), -50.0


@exercise(
    "power_mean",
    cases=_mean_cases,
    mistakes=(
        ("This is the sum of the powers, a p-norm; divide by the number of tokens first.", lambda x, p: x.pow(p).sum() ** (1 / p)),
        ("The root is missing: raise the mean of the powers to 1 / p.", lambda x, p: x.pow(p).mean()),
        (
            "Dividing by N after the root is not the mean of the powers.",
            lambda x, p: x.pow(p).sum() ** (1 / p) / len(x),
        ),
        (
            "The powers left the range of float64 here. Take logarithms, z = p log x, and logsumexp of them.",
            lambda x, p: x.pow(p).mean() ** (1 / p),
        ),
        ("This is the logarithm of the mean; take exp at the end.", lambda x, p: power_mean(x, p).log()),
    ),
)
def power_mean(x: Float[Tensor, " tokens"], p: float) -> Float[Tensor, ""]:
    """(mean of x^p)^(1/p) of positive numbers, whatever their size."""
    return (((p * x.log()).logsumexp(0) - math.log(len(x))) / p).exp()


def _count_cases(random: Random):
    for tokens, p in ((4, 0.0), (5, 1.0), (6, 3.0), (3, -2.0), (8, random.uniform(1.0, 5.0))):
        yield _positive(random, tokens), p
    yield 1e-100 * _positive(random, 4), 20.0


@exercise(
    "effective_tokens",
    cases=_count_cases,
    mistakes=(
        ("This is the entropy in nats; the number of tokens is its exponential.", lambda x, p: effective_tokens(x, p).log()),
        (
            "The exponential of the entropy was asked for, not the inverse of the sum of squared weights.",
            lambda x, p: 1 / (p * x.log()).softmax(0).square().sum(),
        ),
        ("The sign of the entropy is wrong: -sum of w log w.", lambda x, p: 1 / effective_tokens(x, p)),
        ("Softmax of p x takes exponentials of x; the weights are its powers, softmax of p log x.", lambda x, p: _count(p * x)),
        ("The weights are the powers of x, not x itself.", lambda x, p: _count(x.log())),
    ),
)
def effective_tokens(x: Float[Tensor, " tokens"], p: float) -> Float[Tensor, ""]:
    """exp of the entropy of the weights x^p / sum of x^p."""
    return _count(p * x.log())


def _count(logits: Tensor) -> Tensor:
    log_w = logits.log_softmax(0)
    return (-(log_w.exp() * log_w).sum()).exp()
