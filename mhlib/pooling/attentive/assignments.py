"""From similarities to weights: who shares out what among whom.

Each takes similarities (batch, queries, tokens) and a mask (batch, 1, tokens) or None, and returns weights that sum to one
for each query, or to zero for a query that gets no token.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mhlib.functional.normalizers import softmax

__all__ = ["nearest_query", "over_queries", "over_tokens", "sinkhorn"]

Similarity = Float[Tensor, "batch queries tokens"]
Mask = Bool[Tensor, "batch 1 tokens"]


def over_tokens(similarity: Similarity, mask: Mask | None = None) -> Similarity:
    """Each query shares itself out among the tokens: the softmax of attention."""
    return softmax(similarity, mask)


def over_queries(similarity: Similarity, mask: Mask | None = None) -> Similarity:
    """Each token shares itself out among the queries, which compete for it, as in slot attention."""
    # The division by a query's sum is a second softmax, of logarithms: a query that loses every token keeps a gradient.
    return softmax(similarity.log_softmax(1), mask)


def nearest_query(similarity: Similarity, mask: Mask | None = None) -> Similarity:
    """Each token goes whole to the query that it is most similar to, as in k-means. No gradient by the similarity."""
    chosen = F.one_hot(similarity.argmax(1), similarity.shape[1]).mT.to(similarity.dtype)
    return _to_one(chosen, mask)


def sinkhorn(similarity: Similarity, mask: Mask | None = None, *, rounds: int = 50) -> Similarity:
    r"""Tokens and queries both share out evenly: the plan of entropic optimal transport with cost -similarity.

    Every query takes 1/K of the mass and every real token gives 1/N. Weights are the plan times K.
    """
    queries = similarity.shape[1]
    if mask is None:
        mask = similarity.new_ones(similarity.shape[0], 1, similarity.shape[2], dtype=torch.bool)
    floor = torch.finfo(similarity.dtype).min / 4  # summed a few times below, and still finite
    tokens = mask.sum(-1, keepdim=True).clamp_min(1).to(similarity.dtype)
    log_plan = torch.where(mask, similarity, floor)
    for _ in range(rounds):
        log_plan = torch.where(mask, log_plan - log_plan.logsumexp(1, keepdim=True) - tokens.log(), floor)
        log_plan = torch.where(mask, log_plan - log_plan.logsumexp(2, keepdim=True) - math.log(queries), floor)
    return torch.where(mask, log_plan.exp() * queries, 0.0)


def _to_one(weights: Tensor, mask: Tensor | None) -> Tensor:
    """Weights of each query, divided by their sum."""
    if mask is not None:
        weights = torch.where(mask, weights, 0.0)
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)
