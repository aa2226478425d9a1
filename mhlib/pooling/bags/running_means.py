"""Running means: for each bag an estimate of its inner mean, so that a few instances a step suffice to pool it.

Differs from pooling the sample in what the outer function is applied to: the estimate, not the sample's own mean.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mhlib.pooling.bags.score_pools import InnerMean, ScorePool

__all__ = ["RunningMeans"]


class RunningMeans(nn.Module):
    r"""Stochastic pooling of bags that are too large to look at: with a sample B of the instances of bag i,

    .. math::
        u_i \leftarrow (1 - \gamma) u_i + \gamma \hat u_B, \qquad h_i = f(u_i), \qquad
        \mathrm{d} h_i = f'(u_i)\, \mathrm{d} \hat u_B

    where u is the inner mean of a :class:`ScorePool` (the mean of :math:`e^{\phi / \tau}`, or the two means of
    :math:`e^g \delta` and :math:`e^g`) and f its outer function. The estimate itself carries no gradient. It is kept as a
    logarithm and a ratio: as merged parts of one attention, the old part fading by :math:`1 - \gamma`, so that no
    exponential overflows.

    Args:
        bags: number of bags.
        gamma: how much of the estimate is renewed at a visit, above 0 and at most 1; 1 pools the sample alone.
        start: the estimate before the first visit, as (mean weight, value); None takes over the first sample. The
            released code starts at (0, 0) for the smoothed maximum and at (1, 1) for attention.

    Source: Zhu et al., arXiv 2305.08040, algorithm 1 (row 22).
    """

    def __init__(self, bags: int, gamma: float = 0.9, *, start: tuple[float, float] | None = None):
        super().__init__()
        if bags < 1:
            raise ValueError(f"bags must be at least 1, got {bags}")
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must be above 0 and at most 1, got {gamma}: with 0 no sample would ever count")
        self.gamma, (weight, value) = gamma, start or (0.0, 0.0)
        lowest = torch.finfo(torch.float32).min
        self.register_buffer("log_weight", torch.full((bags, 1), math.log(weight) if weight > 0 else lowest))
        self.register_buffer("value", torch.full((bags, 1), float(value)))
        self.register_buffer("visited", torch.full((bags, 1), start is not None))

    def forward(
        self,
        pool: ScorePool,
        x: Float[Tensor, "batch sample dim"],
        index: Int[Tensor, " batch"],
        key_mask: Tensor | None = None,
    ) -> Float[Tensor, "batch 1"]:
        """The scores of the bags ``index`` after a look at a sample of their instances; renews their estimates."""
        if index.shape != x.shape[:1]:
            raise ValueError(f"index must give the bag of each of the {x.shape[0]} samples, got shape {tuple(index.shape)}")
        now = pool.inner(x, key_mask)
        ratio, mean = self._renew(index, now)
        log_slope = now.log_weight - now.log_weight.detach()  # zero, but for its gradient
        drift = now.value - now.value.detach() + (now.value.detach() - mean.value) * log_slope
        return pool.outer(InnerMean(mean.log_weight + ratio * log_slope, mean.value + ratio * drift))

    @torch.no_grad()
    def _renew(self, index: Tensor, now: InnerMean) -> tuple[Tensor, InnerMean]:
        """The sample's weight over the estimate's, and the renewed estimate."""
        gamma = torch.where(self.visited[index], self.gamma, 1.0).to(now.value.dtype)
        old = self.log_weight[index].to(now.value.dtype) + torch.log1p(-gamma)
        new = now.log_weight + gamma.log()
        both = torch.logaddexp(old, new)
        before = self.value[index].to(now.value.dtype)
        value = before + (new - both).exp() * (now.value - before)
        self.log_weight[index], self.value[index] = both.to(self.log_weight.dtype), value.to(self.value.dtype)
        self.visited[index] = True
        return (now.log_weight - both).exp(), InnerMean(both, value)
