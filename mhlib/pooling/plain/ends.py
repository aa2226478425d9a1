"""First and last pooling: one token stands for all."""

import torch
from torch import Tensor

from mhlib.pooling.base import Pool, PoolCall
from mhlib.registry import Reduction, register

__all__ = ["FirstPool", "LastPool"]


def _first():
    return FirstPool(5), lambda x: x[:, 0]


def _last():
    return LastPool(5), lambda x: x[:, -1]


def _only(mask: Tensor) -> Tensor:
    """The first True of each row, alone."""
    return mask & (mask.cumsum(1) == 1)


class _OneToken(Pool):
    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if key_mask is None else key_mask
        chosen = self.choose(real)
        call.weights = chosen.to(x.dtype)
        return torch.where(chosen[..., None], x, 0.0).sum(1)

    def choose(self, real: Tensor) -> Tensor:
        raise NotImplementedError


@register(
    "first_pool",
    kind="pool",
    family="pool-global",
    properties=("compiles",),
    example=lambda: FirstPool(5),
    reductions=(Reduction("no padding: x[:, 0]", _first),),
)
class FirstPool(_OneToken):
    """First pooling: the first real token; behind a model that puts a class token in front, its state.

    Padding may stand on either side. :class:`mhlib.pooling.ClassTokenPool` also puts the class token there.
    """

    def choose(self, real: Tensor) -> Tensor:
        return _only(real)


@register(
    "last_pool",
    kind="pool",
    family="pool-global",
    properties=("compiles",),
    example=lambda: LastPool(5),
    reductions=(Reduction("no padding: x[:, -1]", _last),),
)
class LastPool(_OneToken):
    """Last pooling: the last real token, the only one that has seen all others in a causal model.

    Padding may stand on either side, which is where ``x[:, -1]`` goes wrong.
    """

    def choose(self, real: Tensor) -> Tensor:
        return _only(real.flip(1)).flip(1)
