"""Mean and sum pooling: every token counts alike."""

from torch import Tensor

from mhlib.functional.pooling import masked_count, masked_sum
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
    r"""Sum pooling: :math:`y = \sum_n x_n`; it counts tokens, so twice the set gives twice the vector."""

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        return like.new_zeros(batch, self.dim), like.new_zeros(batch, 1)

    def update(self, state: tuple[Tensor, ...], x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        total, count = state
        return total + masked_sum(x, key_mask), count + masked_count(x, key_mask)

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
