"""Known pools as choices of parts in SimPool's framework: each function is one row of the paper's table.

They are for seeing what differs. To use one, take the class of its own where there is one: those have heads and run fused.
"""

from functools import partial

import torch
from torch import Tensor, nn

from mhlib.pooling.attentive.assignments import nearest_query, over_queries, sinkhorn
from mhlib.pooling.attentive.framework import (
    FrameworkPool,
    LearnedStart,
    MeanStart,
    negative_distance,
    no_similarity,
)
from mhlib.pooling.attentive.means import ExponentialMean, PowerMean

__all__ = [
    "average_parts",
    "class_token_parts",
    "exponential_parts",
    "gem_parts",
    "k_means_parts",
    "sim_pool_parts",
    "slot_parts",
    "transport_parts",
]


def _matrix(dim: int) -> nn.Linear:
    return nn.Linear(dim, dim, bias=False)


def _distance_over(q: Tensor, k: Tensor, epsilon: float) -> Tensor:
    return negative_distance(q, k) / epsilon


def average_parts(dim: int) -> FrameworkPool:
    """Global average pooling: no query to speak of, all tokens alike."""
    return FrameworkPool(dim, start=MeanStart(), similarity=no_similarity)


def gem_parts(dim: int, gamma: float = 3.0) -> FrameworkPool:
    """Generalized mean pooling; maximum pooling as gamma grows."""
    return FrameworkPool(dim, start=MeanStart(), similarity=no_similarity, mean=PowerMean(gamma))


def exponential_parts(dim: int, r: float = 10.0) -> FrameworkPool:
    """Log-sum-exp pooling."""
    return FrameworkPool(dim, start=MeanStart(), similarity=no_similarity, mean=ExponentialMean(r))


def class_token_parts(dim: int) -> FrameworkPool:
    """The class token in one head of a vision transformer: a learned query, keys, values."""
    maps = {name: _matrix(dim) for name in ("query", "key", "value")}
    return FrameworkPool(dim, start=LearnedStart(1, dim), **maps)


def sim_pool_parts(dim: int, gamma: float = 1.25) -> FrameworkPool:
    """SimPool: the mean asks, normalised tokens answer and are averaged as they are, under a power."""
    norm = nn.LayerNorm(dim, eps=1e-6)
    return FrameworkPool(
        dim,
        start=MeanStart(),
        query=_matrix(dim),
        key=nn.Sequential(norm, _matrix(dim)),
        value=norm,
        mean=PowerMean(gamma, shift=True),
    )


def k_means_parts(dim: int, queries: int, iterations: int = 10) -> FrameworkPool:
    """Lloyd's k-means: each token goes to the nearest query, each query moves to the mean of its tokens."""
    return FrameworkPool(
        dim,
        start=LearnedStart(queries, dim),
        similarity=negative_distance,
        assign=nearest_query,
        iterations=iterations,
    )


def transport_parts(dim: int, queries: int, epsilon: float = 1.0) -> FrameworkPool:
    """Optimal transport pooling: every query gets the same share of the set."""
    return FrameworkPool(
        dim,
        start=LearnedStart(queries, dim),
        similarity=partial(_distance_over, epsilon=epsilon),
        assign=sinkhorn,
    )


def slot_parts(dim: int, queries: int, iterations: int = 3) -> FrameworkPool:
    """Slot attention: queries compete for tokens, and a recurrent unit with an MLP moves them (Locatello et al., 2020)."""
    norm = nn.LayerNorm(dim)
    return FrameworkPool(
        dim,
        start=LearnedStart(queries, dim),
        query=nn.Sequential(nn.LayerNorm(dim), _matrix(dim)),
        key=nn.Sequential(norm, _matrix(dim)),
        value=nn.Sequential(norm, _matrix(dim)),
        assign=over_queries,
        update=SlotUpdate(dim),
        iterations=iterations,
    )


class SlotUpdate(nn.Module):
    """A gated recurrent unit takes what came in, then an MLP with a residual."""

    def __init__(self, dim: int):
        super().__init__()
        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        u = self.gru(z.flatten(0, 1), u.flatten(0, 1)).view(torch.Size(z.shape))
        return u + self.mlp(u)
