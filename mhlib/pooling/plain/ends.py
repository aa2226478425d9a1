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


class _OneToken(Pool):
    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        chosen = self.choose(x, key_mask)  # (batch, 1)
        if call.return_weights:
            call.weights = torch.zeros_like(x[..., 0]).scatter(1, chosen, 1.0)
            if key_mask is not None:
                call.weights = torch.where(key_mask, call.weights, 0.0)
        return x.gather(1, chosen[..., None].expand(-1, -1, self.dim))[:, 0]

    def choose(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """The place of the token in each set, any where there is none: the base makes zeros of that."""
        raise NotImplementedError(f"{type(self).__name__} defines no choose(x, key_mask)")


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

    def choose(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        if key_mask is None:
            return torch.zeros(len(x), 1, dtype=torch.long, device=x.device)
        return key_mask.int().argmax(1, keepdim=True)


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

    def choose(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        if key_mask is None:
            return torch.full((len(x), 1), x.shape[1] - 1, device=x.device)
        return x.shape[1] - 1 - key_mask.flip(1).int().argmax(1, keepdim=True)
