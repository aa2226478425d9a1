"""Max and min pooling: of each feature the largest, or the smallest, value that any token has."""

import torch
from torch import Tensor

from mhlib.functional.pooling import masked_max, masked_min
from mhlib.pooling.base import StreamingPool
from mhlib.registry import Reduction, register

__all__ = ["MaxPool", "MinPool"]


def _max():
    return MaxPool(5), lambda x: x.amax(1)


def _min():
    return MinPool(5), lambda x: x.amin(1)


def _min_is_max_upside_down():
    largest = MaxPool(5)
    return MinPool(5), lambda x: -largest(-x)


@register(
    "max_pool",
    kind="pool",
    family="pool-global",
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: MaxPool(5),
    reductions=(Reduction("no padding: torch.amax over the tokens", _max),),
    peers=("torch_geometric",),
)
class MaxPool(StreamingPool):
    r"""Max pooling: :math:`y_c = \max_n x_{nc}`; each feature may come from another token.

    Tokens that tie share the gradient; within a stream those of one piece do.
    """

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        lowest = like.new_full((batch, self.dim), torch.finfo(like.dtype).min)
        return lowest, torch.zeros(batch, 1, dtype=torch.bool, device=like.device)

    def update(self, state: tuple[Tensor, ...], x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        largest, seen = state
        some = torch.ones_like(seen) if key_mask is None else key_mask.any(1, keepdim=True)
        here = self.largest(x, key_mask)  # zeros where this piece has no token
        larger = some & (~seen | (here > largest))
        return torch.where(larger, here, largest), seen | some

    def largest(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """The largest value of each feature in this piece."""
        return masked_max(x, key_mask)

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        largest, seen = state
        return torch.where(seen, largest, 0.0)


@register(
    "min_pool",
    kind="pool",
    family="pool-global",
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: MinPool(5),
    reductions=(
        Reduction("no padding: torch.amin over the tokens", _min),
        Reduction("max pooling of -x, with its sign turned", _min_is_max_upside_down),
    ),
    peers=("torch_geometric",),
)
class MinPool(MaxPool):
    r"""Min pooling: :math:`y_c = \min_n x_{nc} = -\max_n (-x_{nc})`."""

    def largest(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        return -masked_min(x, key_mask)  # without a copy of -x

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        return -super().finish(state)
