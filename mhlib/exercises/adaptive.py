"""Exercises of the chapter on what pooling throws away."""

import math

from jaxtyping import Float
from torch import Tensor

from mhlib.exercises.declare import Random, exercise


def _margin_cases(random: Random):
    for signal, noise, share in ((1, 10, 0.1), (3, 7, 0.25), (8, 56, 0.01)):
        yield signal, noise, share
    yield random.integer(2, 9), random.integer(20, 90), random.uniform(0.02, 0.3)


@exercise(
    "margin_needed",
    cases=_margin_cases,
    mistakes=(
        (
            "Odds, not shares: noise has share / (1 - share) of the signal's weight.",
            lambda signal, noise, share: math.log(noise / signal) - math.log(share),
        ),
        (
            "The more noise, the larger the margin: the ratio of the numbers is upside down.",
            lambda signal, noise, share: math.log(signal / noise) - math.log(share / (1 - share)),
        ),
        (
            "The smaller the share that noise may have, the larger the margin: check the sign of its log-odds.",
            lambda signal, noise, share: math.log(noise / signal) + math.log(share / (1 - share)),
        ),
        (
            "This is the factor between the weights; the margin is a difference of logits, its logarithm.",
            lambda signal, noise, share: noise / signal * (1 - share) / share,
        ),
        (
            "The noise vectors compete with the signal vectors only, not with all vectors.",
            lambda signal, noise, share: math.log((noise + signal) / signal) - math.log(share / (1 - share)),
        ),
    ),
)
def margin_needed(signal: int, noise: int, share: float) -> float:
    """The least margin of logits that leaves noise at most that share of the weight."""
    return math.log(noise * (1 - share) / (signal * share))


def _focal_cases(random: Random):
    for tokens, dim in ((3, 2), (5, 4), (4, 3)):
        yield random.normal(tokens, dim), random.integer(0, tokens - 1), *(random.normal(dim, dim) for _ in range(3))


def _focal(x: Tensor, query: Tensor, w_k: Tensor, w_v: Tensor, scale: float) -> Tensor:
    return ((x @ w_k) @ query * scale).softmax(0) @ (x @ w_v)


@exercise(
    "focal_pool",
    cases=_focal_cases,
    mistakes=(
        (
            "The focal token itself is added to the output.",
            lambda x, focus, w_q, w_k, w_v: _focal(x, x[focus] @ w_q, w_k, w_v, x.shape[-1] ** -0.5),
        ),
        (
            "What is added at the end is the token, not its projection to a query.",
            lambda x, focus, w_q, w_k, w_v: focal_pool(x, focus, w_q, w_k, w_v) - x[focus] + x[focus] @ w_q,
        ),
        (
            "Scale the logits by one over the root of the width.",
            lambda x, focus, w_q, w_k, w_v: _focal(x, x[focus] @ w_q, w_k, w_v, 1.0) + x[focus],
        ),
        (
            "Ask with the focal token, not with the mean of the set.",
            lambda x, focus, w_q, w_k, w_v: _focal(x, x.mean(0) @ w_q, w_k, w_v, x.shape[-1] ** -0.5) + x[focus],
        ),
        (
            "The softmax runs over the tokens, and no feature is left out of the sum: the values are x W_V.",
            lambda x, focus, w_q, w_k, w_v: ((x @ w_k) @ (x[focus] @ w_q) / x.shape[-1] ** 0.5).softmax(0) @ x + x[focus],
        ),
    ),
)
def focal_pool(
    x: Float[Tensor, "tokens dim"],
    focus: int,
    w_q: Float[Tensor, "dim dim"],
    w_k: Float[Tensor, "dim dim"],
    w_v: Float[Tensor, "dim dim"],
) -> Float[Tensor, " dim"]:
    """AdaPool with one head that asks with the token ``focus``, which is also added to the result."""
    return _focal(x, x[focus] @ w_q, w_k, w_v, x.shape[-1] ** -0.5) + x[focus]
