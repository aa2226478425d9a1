"""What is asked of attention: the inputs of one call, checked and completed, as every backend receives them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mhlib.functional.normalizers import Normalizer
from mhlib.masks import Mask


class Support(NamedTuple):
    """Whether a backend can serve a request, and if not, why."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class Request:
    q: Tensor  # (batch, heads, queries, head_dim)
    k: Tensor  # (batch, kv_heads, keys, head_dim)
    v: Tensor  # (batch, kv_heads, keys, value_dim)
    mask: Tensor | Mask | None  # boolean table that broadcasts to (batch, heads, queries, keys), or a rule
    bias: Tensor | None  # added to the logits; broadcasts likewise
    scale: float
    causal: bool
    window: tuple[int | None, int | None]  # positions seen to the left and to the right; None = all
    normalizer: Normalizer
    dropout: float
    return_weights: bool

    @property
    def offset(self) -> int:
        """Position of the first query, counted in keys: the last query stands at the last key."""
        return self.k.shape[-2] - self.q.shape[-2]

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """The window with causality in it: how far a query sees to the left and to the right."""
        left, right = self.window
        return left, (0 if self.causal else right)

    def allowed(self, rows: slice = slice(None), cols: slice = slice(None)) -> Tensor | None:
        """The boolean table of mask, causality and window for some queries and keys; None when all is allowed."""
        device = self.q.device
        query = torch.arange(self.q.shape[-2], device=device)[rows] + self.offset
        key = torch.arange(self.k.shape[-2], device=device)[cols]
        if isinstance(self.mask, Mask):
            table = self.mask.block(query, key, self.q.shape[0], self.q.shape[1])
        elif self.mask is not None:
            table = cut(self.mask, rows, cols)
        else:
            table = None
        left, right = self.reach
        if left is None and right is None:
            return table  # the distances would be a table too, of eight bytes an entry
        distance = query[:, None] - key[None, :]
        for bounded in (
            None if left is None else distance <= left,
            None if right is None else distance >= -right,
        ):
            if bounded is not None:
                table = bounded[None, None] if table is None else table & bounded
        return table

    def needs_grad(self) -> bool:
        inputs = (self.q, self.k, self.v, self.bias)
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)


def cut(table: Tensor, rows: slice, cols: slice) -> Tensor:
    """A piece of a table whose query and key axes may be 1 (broadcast) or full."""
    if table.shape[-2] != 1:
        table = table[..., rows, :]
    return table if table.shape[-1] == 1 else table[..., cols]


def window_sides(
    window: int | Sequence[int | None] | None, causal: bool
) -> tuple[int | None, int | None]:
    """``window`` of :func:`mhlib.attention` as a pair: how many keys a query sees to the left and to the right, None = all."""
    if window is None:
        return None, None
    if isinstance(window, int) and not isinstance(window, bool):
        if window < 1:
            raise ValueError(f"window must be at least 1 (a query sees itself), got {window}")
        return (window - 1, 0) if causal else (window // 2, window // 2)
    sides = tuple(window) if isinstance(window, Sequence) else ()
    if len(sides) != 2 or any(side is not None and (not isinstance(side, int) or side < 0) for side in sides):
        raise ValueError(f"window must be a positive integer or a pair (left, right) of integers >= 0 or None, got {window!r}")
    return sides
