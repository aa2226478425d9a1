"""The framework of SimPool: one loop, seven parts, and most known pools are a choice of parts.

Differs from attention pooling in what may be chosen: the similarity, who shares out among whom, the average, and how often.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.functional.pooling import masked_mean
from mhlib.pooling.attentive.assignments import over_queries, over_tokens
from mhlib.pooling.attentive.means import ArithmeticMean
from mhlib.pooling.base import Pool, PoolCall
from mhlib.registry import Reduction, register

__all__ = ["FrameworkPool", "LearnedStart", "MeanStart", "negative_distance", "no_similarity", "scaled_dot"]

Vectors = Float[Tensor, "batch queries dim"]
Tokens = Float[Tensor, "batch tokens dim"]


class MeanStart(nn.Module):
    """One query: the mean of the tokens."""

    def forward(self, x: Tokens, key_mask: Tensor | None) -> Vectors:
        return masked_mean(x, key_mask)[:, None]


class LearnedStart(nn.Module):
    """Learned queries, the same for all sets (normal, deviation 1 unless given)."""

    def __init__(self, queries: int, dim: int, deviation: float = 1.0):
        super().__init__()
        self.query = nn.Parameter(deviation * torch.randn(queries, dim))

    def forward(self, x: Tokens, key_mask: Tensor | None) -> Vectors:
        return self.query.expand(x.shape[0], -1, -1)


def no_similarity(q: Vectors, k: Tokens) -> Float[Tensor, "batch queries tokens"]:
    """All tokens are alike."""
    return q.new_zeros(q.shape[0], q.shape[1], k.shape[1])


def scaled_dot(q: Vectors, k: Tokens) -> Float[Tensor, "batch queries tokens"]:
    r"""The dot product over the root of the width, as in attention."""
    return q @ k.mT * q.shape[-1] ** -0.5


def negative_distance(q: Vectors, k: Tokens) -> Float[Tensor, "batch queries tokens"]:
    r""":math:`-|q - k|^2`, computed as :math:`2 q \cdot k - |q|^2 - |k|^2`."""
    return 2 * q @ k.mT - q.square().sum(-1)[:, :, None] - k.square().sum(-1)[:, None]


def _take(z: Vectors, u: Vectors) -> Vectors:
    """What came in replaces what was there."""
    return z


def _plain_average():
    return FrameworkPool(5, start=MeanStart(), similarity=no_similarity), lambda x: x.mean(1)


def _one_head_of_attention():
    from mhlib.pooling.attentive.query_pool import AttentionPool

    attention = AttentionPool(8, 1, num_queries=3)
    with torch.no_grad():
        attention.o_proj.weight.copy_(torch.eye(8))
    pool = FrameworkPool(
        8, start=LearnedStart(3, 8), query=attention.q_proj, key=attention.k_proj, value=attention.v_proj
    )
    pool.start.query = attention.query
    return pool, attention


@register(
    "framework_pool",
    kind="pool",
    family="pool-attentive",
    papers=(27,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: FrameworkPool(
        5, start=LearnedStart(3, 5), key=nn.Linear(5, 5), value=nn.Linear(5, 5), assign=over_queries, iterations=2
    ),
    reductions=(
        Reduction("no similarity, one step: mean pooling", _plain_average),
        Reduction("learned queries, scaled dot products, softmax over tokens: attention pooling", _one_head_of_attention),
    ),
    peers=("sklearn",),
)
class FrameworkPool(Pool):
    r"""Pooling in one loop:

    .. math::
        u^0 = \mathrm{start}(x), \qquad a = \mathrm{assign}(s(\phi_Q(u^t), \phi_K(x))), \qquad
        z = f^{-1}\!\Big(\sum_n a_n f(\phi_V(x)_n)\Big), \qquad u^{t+1} = \phi_U(z, u^t)

    Args:
        dim: width of tokens, queries, keys, values and result.
        start: ``(x, key_mask) -> (batch, queries, dim)``, where the queries begin.
        query, key, value: the maps phi_Q, phi_K and phi_V; None leaves their input as it is.
        similarity: ``(queries, keys) -> (batch, queries, tokens)``.
        assign: similarities to weights, out of :mod:`mhlib.pooling.attentive.assignments`.
        mean: the average f, out of :mod:`mhlib.pooling.attentive.means`.
        update: phi_U, ``(z, u) -> u``; None takes z as it is.
        iterations: how many times round.

    Output (batch, dim) with one query, else (batch, queries, dim). A query that gets no token stays where it is.
    Source: Psomas et al., "Keep it SimPool", arXiv 2309.06891, section 3 (row 27).
    """

    def __init__(
        self,
        dim: int,
        *,
        start: Callable[[Tensor, Tensor | None], Tensor],
        query: Callable[[Tensor], Tensor] | None = None,
        key: Callable[[Tensor], Tensor] | None = None,
        value: Callable[[Tensor], Tensor] | None = None,
        similarity: Callable[[Tensor, Tensor], Tensor] = scaled_dot,
        assign: Callable[[Tensor, Tensor | None], Tensor] = over_tokens,
        mean: ArithmeticMean | None = None,
        update: Callable[[Tensor, Tensor], Tensor] | None = None,
        iterations: int = 1,
    ):
        super().__init__(dim)
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}")
        self.start, self.iterations = start, iterations
        self.query, self.key, self.value = query or nn.Identity(), key or nn.Identity(), value or nn.Identity()
        self.similarity, self.assign, self.update = similarity, assign, update or _take
        self.mean = mean or ArithmeticMean()

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        mask = None if key_mask is None else key_mask[:, None]
        u, keys = self.start(x, key_mask), self.key(x)
        lifted, note = self.mean.lift(self.value(x), key_mask)
        for _ in range(self.iterations):
            call.weights = self.assign(self.similarity(self.query(u), keys), mask)
            z = self.mean.lower(call.weights @ lifted, note)
            u = self.update(torch.where(call.weights.sum(-1, keepdim=True) > 0, z, u), u)
        return u[:, 0] if u.shape[1] == 1 else u
