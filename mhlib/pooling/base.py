"""The protocol of all pools: tokens in, one vector (or a few) out, and what is masked does not count.

A pool over tokens implements ``pool``; one that can take its tokens in pieces implements ``start``, ``update`` and
``finish`` instead, and gets ``pool`` from them, so that a bag of a million instances needs the memory of one piece.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from mhlib._arguments import check_further

__all__ = ["Pool", "PoolCall", "StreamingPool"]


@dataclass
class PoolCall:
    """One call of a pool: what was asked for, further inputs, and what it reports."""

    return_weights: bool = False
    extra: dict[str, Any] = field(default_factory=dict)  # further inputs, named in the pool's ``inputs``
    weights: Tensor | None = None
    aux: dict[str, Any] = field(default_factory=dict)  # instance scores, losses, loads: what return_aux returns


class Pool(nn.Module):
    """The base of all pools over tokens.

    Args:
        dim: width of the tokens.

    A subclass defines ``pool(x, key_mask, call)``; it may leave weights in ``call.weights`` and reports in ``call.aux``.
    An all-padding sequence pools to zeros; the base sees to it, the subclass to finite gradients.
    """

    #: Names of further inputs that ``forward`` takes, such as a context.
    inputs: tuple[str, ...] = ()
    promises: frozenset[str] = frozenset()

    def __init__(self, dim: int):
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self.dim = dim

    def pool(
        self, x: Float[Tensor, "batch tokens dim"], key_mask: Bool[Tensor, "batch tokens"] | None, call: PoolCall
    ) -> Float[Tensor, "batch ..."]:
        raise NotImplementedError(f"{type(self).__name__} defines no pool(x, key_mask, call)")

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        return_weights: bool = False,
        return_aux: bool = False,
        **extra: Any,
    ) -> Tensor | tuple:
        """Pool each sequence.

        Args:
            key_mask: True = a real token.
            return_weights: also return how much each token counted; an error where a pool has no weights.
            return_aux: also return a dict of what the pool reports.

        Returns:
            y (batch, width) or (batch, queries, width); with what was asked for: (y, weights), (y, aux), (y, weights, aux).
        """
        check_pool_inputs(self, x, key_mask, extra)
        call = PoolCall(return_weights, extra)
        y = self.pool(x, key_mask, call)
        if key_mask is not None:
            y = torch.where(key_mask.any(1).view(-1, *[1] * (y.ndim - 1)), y, 0.0)
        if return_weights and call.weights is None:
            raise ValueError(f"{type(self).__name__} has no weights to return: it does not average its tokens")
        weights = (call.weights,) if return_weights else ()
        return (y, *weights, *((call.aux,) if return_aux else ())) if return_weights or return_aux else y

    def ragged(self, x: Float[Tensor, "total dim"], lengths: Int[Tensor, " batch"], **options: Any) -> Tensor | tuple:
        """Pool sequences that lie one after the other in ``x``, ``lengths`` tokens each."""
        if int(lengths.sum()) != x.shape[0]:
            raise ValueError(f"lengths must sum to the {x.shape[0]} tokens of x, they sum to {int(lengths.sum())}")
        padded = pad_sequence(x.split(lengths.tolist()), batch_first=True)
        key_mask = torch.arange(padded.shape[1], device=x.device) < lengths[:, None].to(x.device)
        return self(padded, key_mask, **options)


class StreamingPool(Pool):
    """A pool whose tokens may come in pieces: ``finish(update(update(start(...), piece), piece))`` is the whole.

    A state is a tuple of tensors whose size does not depend on the number of tokens. A piece without tokens leaves it as it
    is. Half-precision tokens may be summed in float32; ``finish`` then returns that, ``pool`` the dtype of the tokens.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """An ``update`` need not think of empty pieces: it does not see them."""
        super().__init_subclass__(**kwargs)
        if "update" in vars(cls):
            cls.update = _skips_empty_pieces(cls.update)

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """The state before any token, on the device of ``like`` and in its dtype, or float32 where that is half precision."""
        raise NotImplementedError(f"{type(self).__name__} defines no start(batch, like)")

    def update(self, state: tuple[Tensor, ...], x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """The state after these tokens too."""
        raise NotImplementedError(f"{type(self).__name__} defines no update(state, x, key_mask)")

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        """The pooled vectors (batch, ...); those of sequences without a token are zeros."""
        raise NotImplementedError(f"{type(self).__name__} defines no finish(state)")

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        return self.finish(self.update(self.start(x.shape[0], x), x, key_mask)).to(x.dtype)


def _skips_empty_pieces(update: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    @functools.wraps(update)
    def guarded(self: StreamingPool, state: tuple[Tensor, ...], x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return update(self, state, x, *args, **kwargs) if x.shape[1] else state

    return guarded


def check_pool_inputs(pool: Any, x: Tensor, key_mask: Tensor | None, extra: dict[str, Any]) -> None:
    """Inputs that a pool cannot take."""
    name = type(pool).__name__
    if not isinstance(x, Tensor) or x.is_nested:
        raise ValueError(f"{name} wants one dense tensor, got {type(x).__name__}: pad sequences to (batch, tokens, {pool.dim}) and say with key_mask what is real")
    if x.ndim != 3 or x.shape[-1] != pool.dim:
        raise ValueError(f"{name} wants x of shape (batch, tokens, {pool.dim}), got {tuple(x.shape)}")
    if x.shape[1] == 0:
        raise ValueError(f"{name} needs at least one token, got x of shape {tuple(x.shape)}; pad and mask empty sequences")
    if key_mask is not None:
        if not isinstance(key_mask, Tensor):
            raise ValueError(f"key_mask must be a boolean tensor (True = a real token), got {type(key_mask).__name__}")
        if key_mask.dtype != torch.bool:
            raise ValueError(f"key_mask must be boolean (True = a real token), got {key_mask.dtype}")
        if key_mask.shape != x.shape[:2]:
            raise ValueError(f"key_mask must be (batch, tokens) = {tuple(x.shape[:2])}, got {tuple(key_mask.shape)}")
    check_further(name, extra, pool.inputs)
