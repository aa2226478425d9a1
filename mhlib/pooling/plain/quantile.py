"""Median and quantile pooling: of each feature the value that a given share of the tokens stays below."""

from torch import Tensor

from mhlib.functional.pooling import masked_quantile
from mhlib.pooling.base import Pool, PoolCall
from mhlib.pooling.plain.extremes import MaxPool, MinPool
from mhlib.registry import Reduction, register

__all__ = ["MedianPool", "QuantilePool"]


def _lowest():
    return QuantilePool(5, 0.0), MinPool(5)


def _highest():
    return QuantilePool(5, 1.0), MaxPool(5)


def _half():
    return MedianPool(5), QuantilePool(5, 0.5)


@register(
    "quantile_pool",
    kind="pool",
    family="pool-global",
    properties=("invariant", "compiles"),
    example=lambda: QuantilePool(5, 0.3),
    reductions=(Reduction("q = 0: min pooling", _lowest), Reduction("q = 1: max pooling", _highest)),
    peers=("torch", "torch_geometric"),
)
class QuantilePool(Pool):
    r"""Quantile pooling: :math:`y_c = x_{(1 + q (N-1))\,c}` of the tokens in order, linear between neighbours.

    Half of the tokens may hold anything before the median moves beyond the others, which no average can promise.
    Tokens in order cannot be found in pieces, so it does not stream.

    Args:
        q: between 0 (min pooling) and 1 (max pooling).
    """

    def __init__(self, dim: int, q: float):
        super().__init__(dim)
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"q must be between 0 and 1, got {q}")
        self.q = q

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        return masked_quantile(x, self.q, key_mask)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, q={self.q}"


@register(
    "median_pool",
    kind="pool",
    family="pool-global",
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: MedianPool(5),
    reductions=(Reduction("quantile pooling with q = 1/2", _half),),
    peers=("torch_geometric",),
)
class MedianPool(QuantilePool):
    """Median pooling: the middle value of each feature, halfway between the middle two where their number is even.

    ``torch.median`` and torch_geometric take the lower one of these two instead.
    """

    def __init__(self, dim: int):
        super().__init__(dim, 0.5)
