"""Attentive statistics pooling: a small scorer weighs the frames, mean and deviation are taken under its weights.

Differs from statistics pooling in the weights, from attentive averages in the deviation.
"""

import torch
from torch import Tensor, nn

from mhlib.functional.normalizers import softmax
from mhlib.functional.weighted_statistics import weighted_statistics
from mhlib.pooling.base import Pool, PoolCall
from mhlib.pooling.statistics.statistics import StatisticsPool
from mhlib.registry import Reduction, register

__all__ = ["AttentiveStatisticsPool", "frame_scorer"]


def frame_scorer(dim: int, hidden: int) -> nn.Sequential:
    r"""The map :math:`x \mapsto v \cdot \tanh(W x + b)` with ``hidden`` units; a bias behind v would cancel in the softmax."""
    if hidden < 1:
        raise ValueError(f"hidden must be at least 1, got {hidden}")
    return nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, 1, bias=False))


def _no_scorer():
    pool = AttentiveStatisticsPool(5, hidden=3)
    with torch.no_grad():
        pool.scorer[-1].weight.zero_()
    return pool, StatisticsPool(5, eps=pool.eps)


@register(
    "attentive_statistics_pool",
    kind="pool",
    family="pool-statistics",
    papers=(38,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: AttentiveStatisticsPool(5, hidden=4),
    reductions=(Reduction("a scorer of zeros: statistics pooling", _no_scorer),),
    peers=("torch_geometric",),
)
class AttentiveStatisticsPool(Pool):
    r"""Attentive statistics pooling:

    .. math::
        a = \mathrm{softmax}_n(v \cdot \tanh(W x_n + b)), \quad \mu = \sum_n a_n x_n, \quad
        \sigma = \sqrt{\max\Big(\sum_n a_n (x_n - \mu)^2, \epsilon\Big)}, \quad y = [\mu, \sigma]

    Args:
        dim: width D of the tokens; the output is (batch, 2 D).
        hidden: units of the scorer.
        eps: the least variance; there sigma has gradient zero.

    Weights are (batch, 1, tokens). Source: Okabe et al., "Attentive statistics pooling for deep speaker embedding",
    arXiv 1803.10963; the fine branch of row 38 at segments of one frame.
    """

    def __init__(self, dim: int, *, hidden: int = 128, eps: float = 1e-5):
        super().__init__(dim)
        if eps < 0:
            raise ValueError(f"eps must not be negative, got {eps}")
        self.scorer, self.eps = frame_scorer(dim, hidden), eps

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        weights = softmax(self.scorer(x)[..., 0], key_mask)
        call.weights = weights[:, None]
        return torch.cat(weighted_statistics(x, weights[..., None], key_mask, eps=self.eps), -1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, eps={self.eps}"
