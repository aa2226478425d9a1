"""SimPool: the average of the tokens asks, the normalised tokens answer and are averaged under a power.

Differs from attention pooling in where the query comes from, in having no value and output maps, and in the average: values
are raised to a power before the weighted sum and the root is taken after it, so the three stages between stay fused.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mhlib.cost.model import StageCost
from mhlib.cost.stages import core
from mhlib.functional.pooling import masked_mean
from mhlib.heads.base import split_heads
from mhlib.pooling.attentive.means import ArithmeticMean, PowerMean
from mhlib.pooling.attentive.query_pool import AttentionPool
from mhlib.registry import Reduction, register

__all__ = ["SimPool"]


def _blind(gamma: float | None) -> "SimPool":
    pool = SimPool(8, gamma=gamma)
    with torch.no_grad():
        pool.q_proj.weight.zero_()
    return pool


def _mean_of_normalised():
    pool = _blind(None)
    return pool, lambda x: pool.norm(x).mean(1)


def _generalized_mean():
    pool = _blind(3.0)

    def gem(x):
        v = pool.norm(x)
        v = v - v.amin((1, 2), keepdim=True) + 1e-6
        return v.pow(3).mean(1).pow(1 / 3)

    return pool, gem


def _parts():
    from mhlib.pooling.attentive.instances import sim_pool_parts

    pool, parts = SimPool(8), sim_pool_parts(8)
    parts.query, parts.value = pool.q_proj, pool.norm
    parts.key = nn.Sequential(pool.norm, pool.k_proj)
    return pool, parts


def _unfolded():
    pool, plain = SimPool(8, 2, gamma=2.0), SimPool(8, 2, gamma=2.0, fold=False)
    plain.load_state_dict(pool.state_dict())
    return pool, plain


@register(
    "sim_pool",
    kind="pool",
    family="pool-attentive",
    stage="queries, project, merge",
    papers=(27,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: SimPool(8, beta=True),
    reductions=(
        Reduction("a query map of zeros and no gamma: the mean of the normalised tokens", _mean_of_normalised),
        Reduction("a query map of zeros: generalized mean pooling of the shifted tokens", _generalized_mean),
        Reduction("mean start, normalised keys and values, power mean: an instance of its own framework", _parts),
        Reduction("the key map folded into the query: the same as projecting all keys", _unfolded),
    ),
    peers=("torch",),
)
class SimPool(AttentionPool):
    r"""SimPool, attention pooling whose query is the mean of the tokens:

    .. math::
        q = \bar x W_Q, \quad v = \mathrm{LN}(x), \quad a = \mathrm{softmax}(q (v W_K)^\top / \sqrt{d_h}), \quad
        u = \Big(\sum_n a_n (v_n - \min v + \epsilon)^\gamma\Big)^{1/\gamma} + \beta

    The minimum is over the tokens and channels of one set. (The released code takes it over the whole batch.)

    Args:
        dim: width of the tokens and of the result.
        num_heads: heads of the attention; the paper uses one.
        gamma: the power, 1.25 for transformers and 2 for convolutional networks in the paper; None averages v itself.
        beta: whether to learn a number that is added to the result (starts at 0).
        fold: fold the key map into the one query, :math:`q (v W_K)^\top = (q W_K^\top) v^\top`: the same logits for
            :math:`d^2` products instead of :math:`N d^2`.

    Weights start as those of ``torch.nn.Linear``. Weights returned are (batch, heads, 1, tokens).
    Source: Psomas et al., "Keep it SimPool", arXiv 2309.06891 (row 27).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        *,
        gamma: float | None = 1.25,
        beta: bool = False,
        fold: bool = True,
        **options: Any,
    ):
        super().__init__(dim, num_heads, **options)
        self.mean = ArithmeticMean() if gamma is None else PowerMean(gamma, shift=True)
        self.fold = fold
        self.beta = nn.Parameter(torch.zeros(())) if beta else None

    def make_projections(self, bias: bool) -> None:
        self.norm = nn.LayerNorm(self.dim, eps=1e-6)
        self.q_proj = nn.Linear(self.dim, self.dim, bias=bias)
        self.k_proj = nn.Linear(self.dim, self.dim, bias=False)  # a bias would shift all logits alike

    def make_queries(self) -> None:
        """None: the set asks for itself."""

    def queries(self, x, key_mask, extra):
        return masked_mean(x, key_mask)[:, None]

    def project(self, x, context, call):
        tokens = self.norm(context)
        lifted, call.extra["mean"] = self.mean.lift(tokens, call.key_mask)
        q, v = split_heads(self.q_proj(x), self.num_heads), split_heads(lifted, self.num_heads)
        if self.fold:
            q = q @ self.k_proj.weight.unflatten(0, (self.num_heads, -1))
            return q, (tokens[:, None].expand(-1, self.num_heads, -1, -1), v)
        return q, (split_heads(self.k_proj(tokens), self.num_heads), v)

    def merge(self, heads, call):
        y = self.mean.lower(heads.transpose(1, 2).flatten(2), call.extra["mean"])
        return y if self.beta is None else y + self.beta

    def stage_costs(self, batch, queries, keys, new_keys):
        width = self.dim if self.fold else self.head_dim
        stages = core(batch, self.num_heads, queries, keys, width, self.head_dim, 2 * self.dim)
        powers = int(isinstance(self.mean, PowerMean))
        projected = batch * (queries if self.fold else new_keys)
        stages["project"] = StageCost(
            2 * self.dim + sum(p.numel() for m in (self.q_proj, self.k_proj) for p in m.parameters()),
            2 * (batch * queries + projected) * self.dim**2,
            batch * new_keys * self.dim * (8 + 3 * powers),
            batch * new_keys * 2 * self.dim,
        )
        learned = 0 if self.beta is None else 1
        stages["merge"] = StageCost(learned, 0, batch * queries * self.dim * (powers + learned), batch * queries * self.dim)
        return stages
