"""Statistics pooling: the mean of every feature, and beside it how far the tokens spread.

Differs from standard deviation pooling in that the mean is kept.
"""

import torch
from torch import Tensor

from mhlib.functional.pooling import masked_mean
from mhlib.pooling.base import PoolCall
from mhlib.pooling.plain.std import StdPool
from mhlib.registry import Reduction, register

__all__ = ["StatisticsPool"]

SECONDS = ("deviation", "variance")


def _torch_moments(second: str):
    def build():
        spread = {"deviation": torch.std, "variance": torch.var}[second]
        return StatisticsPool(5, second=second), lambda x: torch.cat([x.mean(1), spread(x, 1, correction=0)], -1)

    return build


@register(
    "statistics_pool",
    kind="pool",
    family="pool-statistics",
    papers=(2, 38),
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: StatisticsPool(5),
    reductions=(
        Reduction("no padding: torch.mean and torch.std side by side", _torch_moments("deviation")),
        Reduction("second='variance': torch.mean and torch.var side by side", _torch_moments("variance")),
    ),
    peers=("torch_geometric",),
)
class StatisticsPool(StdPool):
    r"""Statistics pooling: :math:`y = [\mu, \sigma]` with :math:`\mu = \frac1N \sum_n x_n` and
    :math:`\sigma = \sqrt{\max(\frac1N \sum_n (x_n - \mu)^2, \epsilon)}`, feature by feature.

    Args:
        dim: width D of the tokens; the output is (batch, 2 D).
        second: "deviation", or "variance" for its square.
        eps: the least variance; there the second half has gradient zero.

    Source: Snyder et al., "X-vectors" (2018); with the variance Hong et al., arXiv 2409.19689 (row 2).
    """

    def __init__(self, dim: int, *, second: str = "deviation", eps: float = 0.0):
        super().__init__(dim, eps)
        if second not in SECONDS:
            raise ValueError(f"second must be one of {', '.join(SECONDS)}, got {second!r}")
        self.second = second

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        return self._beside(masked_mean(x, key_mask), super().pool(x, key_mask, call))

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        return self._beside(state[1], super().finish(state))

    def _beside(self, mean: Tensor, deviation: Tensor) -> Tensor:
        return torch.cat([mean, deviation if self.second == "deviation" else deviation.square()], -1)
