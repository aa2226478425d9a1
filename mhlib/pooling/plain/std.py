"""Standard deviation pooling: how far the tokens lie from their mean, feature by feature."""

import torch
from torch import Tensor

from mhlib.functional.kernel_backend import takes_kernel
from mhlib.functional.pooling import masked_count, masked_mean, masked_std, masked_sum
from mhlib.functional.precision import accumulator
from mhlib.functional.weighted_statistics import weighted_statistics
from mhlib.pooling.base import PoolCall, StreamingPool
from mhlib.registry import Reduction, register

__all__ = ["StdPool"]


def _std():
    return StdPool(5), lambda x: x.std(1, correction=0)


@register(
    "std_pool",
    kind="pool",
    family="pool-statistics",
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: StdPool(5),
    reductions=(Reduction("no padding: torch.std over the tokens, divided by N", _std),),
    peers=("torch_geometric",),
)
class StdPool(StreamingPool):
    r"""Standard deviation pooling: :math:`y_c = \sqrt{\frac1N \sum_n (x_{nc} - \bar x_c)^2}`.

    In pieces, means and squared deviations are merged as in Chan et al., "Updating formulae and a pairwise algorithm for
    computing sample variances" (1979), so that a large mean does not swallow a small deviation. The gradient is zero, not
    infinite, where all tokens are alike.

    Args:
        eps: the variance below which the root of ``eps`` is returned, with gradient zero.
    """

    def __init__(self, dim: int, eps: float = 0.0):
        super().__init__(dim)
        if eps < 0:
            raise ValueError(f"eps must not be negative, got {eps}")
        self.eps = eps

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        if takes_kernel("auto", x):
            return weighted_statistics(x, None, key_mask, eps=self.eps)[1]
        return masked_std(x, key_mask, eps=self.eps)

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        zeros = like.new_zeros(batch, self.dim, dtype=accumulator(like.dtype))
        return zeros[:, :1], zeros, zeros

    def update(self, state: tuple[Tensor, ...], x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        count, mean, squares = state
        x = x.to(mean.dtype)
        more, here = masked_count(x, key_mask), masked_mean(x, key_mask)
        total = (count + more).clamp_min(1)
        apart = here - mean
        squares = squares + masked_sum((x - here[:, None]).square(), key_mask) + apart.square() * count * more / total
        return count + more, mean + apart * more / total, squares

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        count, _, squares = state
        variance = squares / count.clamp_min(1)
        spread = variance > self.eps
        root = torch.where(spread, variance, 1.0).sqrt()
        return torch.where(spread, root, self.eps**0.5 * (count > 0).to(variance.dtype))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, eps={self.eps}"
