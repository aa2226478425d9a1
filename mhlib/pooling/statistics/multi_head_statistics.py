"""Multi-head attention pooling over frames, with the spread under the same weights if wanted (InfantCryNet).

Differs from attention pooling in ``project`` (heads are slices of the frame itself, nothing is mapped), ``aggregate`` (a
second moment beside the mean) and ``merge`` (no output map).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.cost import stages
from mhlib.cost.model import StageCost
from mhlib.pooling.attentive.query_pool import AttentionPool
from mhlib.pooling.statistics.statistics import SECONDS, StatisticsPool
from mhlib.registry import Reduction, register

__all__ = ["MultiHeadStatisticsPool"]


def _no_query(second: str | None):
    def build():
        pool = MultiHeadStatisticsPool(8, 2, second=second)
        with torch.no_grad():
            pool.query.zero_()
        return pool, (lambda x: x.mean(1)) if second is None else StatisticsPool(8, second=second)

    return build


def _attention_pool():
    pool, attention = MultiHeadStatisticsPool(8, 2, second=None), AttentionPool(8, 2)
    with torch.no_grad():
        attention.query.copy_(pool.query)
        for proj in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
            proj.weight.copy_(torch.eye(8))
    return pool, attention


@register(
    "multi_head_statistics_pool",
    kind="pool",
    family="pool-statistics",
    stage="project, aggregate, merge",
    papers=(2,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: MultiHeadStatisticsPool(8, 2),
    reductions=(
        Reduction("queries of zeros and no second moment: mean pooling", _no_query(None)),
        Reduction("queries of zeros: statistics pooling with the variance", _no_query("variance")),
        Reduction("no second moment: attention pooling with identity projections", _attention_pool),
    ),
    peers=("torch",),
)
class MultiHeadStatisticsPool(AttentionPool):
    r"""Multi-head statistics pooling: head h looks at its slice :math:`x_n^h` of each frame and has one learned query,

    .. math::
        a^h = \mathrm{softmax}_n\Big(\frac{u_h \cdot x_n^h}{\sqrt{d_h}}\Big), \quad \mu^h = \sum_n a_n^h x_n^h, \quad
        s^h = \sum_n a_n^h (x_n^h - \mu^h)^2, \quad y = [\mu^1 .. \mu^H, s^1 .. s^H]

    Args:
        dim: width D of the frames; the output is (batch, 2 D), or (batch, D) without a second moment.
        num_heads: number H of heads.
        second: "variance" as above, "deviation" for its root (gradient zero where it is zero), or None for means alone.

    Queries start normal with deviation 0.02, so the pool starts as statistics pooling. Weights are (batch, heads, 1, tokens).
    Source: Hong et al., "InfantCryNet", arXiv 2409.19689 (row 2), which names both poolings; their equations are our reading.
    """

    def __init__(self, dim: int, num_heads: int = 1, *, second: str | None = "variance"):
        if second not in (None, *SECONDS):
            raise ValueError(f"second must be one of {', '.join(SECONDS)} or None, got {second!r}")
        super().__init__(dim, num_heads)
        self.second = second

    def make_projections(self, bias: bool) -> None:
        """None: queries are learned as they are, keys and values are the frames."""

    def make_queries(self) -> None:
        self.query = nn.Parameter(0.02 * torch.randn(1, self.dim))
        own = torch.eye(self.num_heads).repeat_interleave(self.head_dim, 1)[:, None]
        self.register_buffer("own", own, persistent=False)

    def project(self, x, context, call):
        # Heads as masks over whole frames: products with zeros cost less than copies of all slices.
        return x[:, None] * self.own, (context[:, None], context[:, None])

    def aggregate(self, weights, v, call) -> Tensor:
        mean = self._slices(super().aggregate(weights, v, call))
        if self.second is None:
            return mean
        variance = self._slices(super().aggregate(weights, (v - mean).square(), call))
        if self.second == "variance":
            return torch.cat([mean, variance], -1)
        spread = variance > 0
        return torch.cat([mean, torch.where(spread, torch.where(spread, variance, 1.0).sqrt(), 0.0)], -1)

    def _slices(self, heads: Float[Tensor, "batch heads 1 dim"]) -> Float[Tensor, "batch 1 1 dim"]:
        """Of each head its own slice, side by side."""
        return (heads * self.own).sum(1, keepdim=True)

    def merge(self, heads, call) -> Tensor:
        return heads[:, 0]

    def stage_costs(self, batch, queries, keys, new_keys):
        found = stages.core(batch, self.num_heads, queries, keys, self.dim, self.dim, self.dim)
        found["project"] = StageCost(self.dim, 0, batch * self.num_heads * self.dim, batch * new_keys * self.dim)
        if self.second is not None:
            sums = 2 * batch * self.num_heads * queries * keys * self.dim
            found["aggregate"] += StageCost(0, sums, 2 * batch * keys * self.dim, 0)
        found["merge"] = StageCost(0, 0, 0, batch * queries * self.dim * (1 if self.second is None else 2))
        return found
