"""Mean and sum pooling: every token counts alike."""

from torch import Tensor

from mhlib.functional.pooling import masked_count, masked_sum
from mhlib.functional.precision import accumulator
from mhlib.pooling.base import StreamingPool
from mhlib.registry import Reduction, register

__all__ = ["MeanPool", "SumPool"]


def _mean():
    return MeanPool(5), lambda x: x.mean(1)


def _sum():
    return SumPool(5), lambda x: x.sum(1)


@register(
    "sum_pool",
    kind="pool",
    family="pool-global",
    properties=("invariant", "streams", "compiles"),
    example=lambda: SumPool(5),
    reductions=(Reduction("no padding: torch.sum over the tokens", _sum),),
)
class SumPool(StreamingPool):
    r"""Sum pooling: :math:`y = \sum_n x_n`; it counts tokens, so twice the set gives twice the vector.

    Half-precision tokens are summed in float32.
    """

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        precise = accumulator(like.dtype)
        return like.new_zeros(batch, self.dim, dtype=precise), like.new_zeros(batch, 1, dtype=precise)

    def update(self, state: tuple[Tensor, ...], x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        total, count = state
        more = masked_sum(x, key_mask, dtype=total.dtype), masked_count(x, key_mask, dtype=count.dtype)
        return total + more[0], count + more[1]

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        return state[0]


@register(
    "mean_pool",
    kind="pool",
    family="pool-global",
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: MeanPool(5),
    reductions=(Reduction("no padding: torch.mean over the tokens", _mean),),
    peers=("torch_geometric",),
)
class MeanPool(SumPool):
    r"""Mean pooling: :math:`y = \frac1N \sum_n x_n` over the N real tokens."""

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        total, count = state
        return total / count.clamp_min(1)
