"""Exercises of the chapter on pools with many queries."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.exercises.declare import Random, exercise


def _query_cases(random: Random):
    for heads, queries, tokens, d in ((1, 2, 3, 2), (2, 3, 4, 3), (3, 4, 7, 5), (2, 6, 9, 4)):
        shares = random.weights(heads, queries)
        yield random.normal(heads, queries, d), random.normal(heads, tokens, d), shares


def _weights(query: Tensor, tokens: Tensor, *, scale: bool = True, axis: int = -1) -> Tensor:
    logits = query @ tokens.mT
    return (logits / math.sqrt(query.shape[-1]) if scale else logits).softmax(axis)


def _combine(weights: Tensor, tokens: Tensor, shares: Tensor) -> Tensor:
    return ((shares[:, None] @ weights) @ tokens)[:, 0]


@exercise(
    "pool_many_queries",
    cases=_query_cases,
    mistakes=(
        (
            "The logits are not divided by the root of d.",
            lambda query, tokens, shares: _combine(_weights(query, tokens, scale=False), tokens, shares),
        ),
        (
            "The weights sum to one over the queries; take the softmax over the tokens, the last axis.",
            lambda query, tokens, shares: _combine(_weights(query, tokens, axis=1), tokens, shares),
        ),
        (
            "Each query counts alike here; it should count by its share.",
            lambda query, tokens, shares: (_weights(query, tokens) @ tokens).mean(1),
        ),
        (
            "The shares sum to one already: no second softmax.",
            lambda query, tokens, shares: _combine(_weights(query, tokens), tokens, shares.softmax(-1)),
        ),
        (
            "The queries are averaged before they attend, so they make one choice together; let each attend, then combine.",
            lambda query, tokens, shares: (_weights(shares[:, None] @ query, tokens) @ tokens)[:, 0],
        ),
    ),
    largest=lambda query, tokens, shares: max(
        query.shape[0] * query.shape[1] * tokens.shape[1], query.numel(), tokens.numel()
    ),
    wasteful="A tensor of heads * K * tokens * d was made. The sum of the weighted sums is one weighted sum: combine the weights "
    "first, or use a matrix product.",
)
def pool_many_queries(
    query: Float[Tensor, "heads queries d"], tokens: Float[Tensor, "heads tokens d"], shares: Float[Tensor, "heads queries"]
) -> Float[Tensor, "heads d"]:
    """Each query attends to its head's tokens, which are keys and values; the results of a head are summed with its shares."""
    return _combine(_weights(query, tokens), tokens, shares)


def _norm_cases(random: Random):
    for d, k in ((4, 3), (6, 2), (5, 7)):
        yield random.normal(d), torch.tensor([random.uniform(1, 9) for _ in range(k)], dtype=torch.float64)


@exercise(
    "tokens_that_keep_counts",
    cases=_norm_cases,
    mistakes=(
        (
            "These tokens differ in their length alone, and a layer norm takes that away: the counts are gone.",
            lambda embedding, counts: embedding * counts.log1p()[:, None],
        ),
        (
            "The same number is added to all features, and a layer norm subtracts their mean: the counts are gone.",
            lambda embedding, counts: embedding + counts.log1p()[:, None],
        ),
        (
            "One embedding for each count is asked for, also where counts repeat: (counts, d + 1).",
            lambda embedding, counts: torch.cat([embedding, counts[:1].log1p()]),
        ),
        (
            "Take log(1 + count), as the text says.",
            lambda embedding, counts: torch.cat([embedding.expand(len(counts), -1), counts[:, None]], -1),
        ),
    ),
)
def tokens_that_keep_counts(
    embedding: Float[Tensor, " d"], counts: Float[Tensor, " counts"]
) -> Float[Tensor, "counts width"]:
    """One token for each count of one item, the embedding and then log(1 + count) as a feature of its own."""
    return torch.cat([embedding.expand(len(counts), -1), counts.log1p()[:, None]], -1)
