"""Composable attention masks: small rules on positions that combine with ``&``, ``|`` and ``~``.

A mask says which query may attend to which key (True = may attend). It is a rule, not a table: ``dense(n, m)`` makes the
table, ``flex()`` the form that FlexAttention takes, and the chunked backend evaluates it block by block, so a mask costs
no memory until somebody asks for it.

Positions count keys. With n queries and m keys the last query stands at the last key, as decoding needs:
query i has position ``i + m - n``.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

__all__ = [
    "Block",
    "Causal",
    "Dilated",
    "Document",
    "Mask",
    "Neighborhood1d",
    "Neighborhood2d",
    "Prefix",
    "SlidingWindow",
]


class Mask:
    """A rule ``(batch, head, query, key) -> may attend`` on index tensors that broadcast against each other."""

    def rule(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} defines no rule(batch, head, query, key)")

    #: Whether the rule looks at the batch index; if so, ``dense`` must be told the batch size. It gets 0 otherwise.
    batched = False
    #: The same for the head index.
    per_head = False

    def check(self, queries: int, keys: int, batch: int = 1) -> None:
        """Raise a ValueError unless the mask fits so many queries, keys and sequences. Most fit any."""

    def dense(
        self, queries: int, keys: int | None = None, *, batch: int = 1, heads: int = 1, device: Any = None
    ) -> Bool[Tensor, "batch heads queries keys"]:
        """The table for ``queries`` queries and ``keys`` keys (as many by default), ready for ``mask=``."""
        keys = queries if keys is None else keys
        self.check(queries, keys, batch)
        query = torch.arange(queries, device=device) + keys - queries
        return self.block(query, torch.arange(keys, device=device), batch, heads)

    def block(self, query: Tensor, key: Tensor, batch: int = 1, heads: int = 1) -> Bool[Tensor, "batch heads queries keys"]:
        """The table for given positions of queries and of keys; the axes of batch and heads are 1 unless the rule looks at them."""
        b = torch.arange(batch if self.batched else 1, device=query.device).view(-1, 1, 1, 1)
        h = torch.arange(heads if self.per_head else 1, device=query.device).view(1, -1, 1, 1)
        table = self.rule(b, h, query.view(1, 1, -1, 1), key.view(1, 1, 1, -1))
        if table.dtype != torch.bool:
            raise ValueError(f"the rule of {type(self).__name__} must be boolean (True = may attend), it gives {table.dtype}")
        return table.expand(b.shape[0], h.shape[1], query.numel(), key.numel())

    def flex(self, queries: int = 0, keys: int = 0) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """The rule as a FlexAttention ``mask_mod``; give both lengths when they differ, so that the ends align."""
        offset, batched, per_head = keys - queries, self.batched, self.per_head
        return lambda b, h, q, k: self.rule(b if batched else b * 0, h if per_head else h * 0, q + offset, k)

    def plot(self, queries: int = 24, keys: int | None = None, *, ax: Any = None) -> Any:
        """Draw the table: a filled cell may be attended to. Needs matplotlib; returns the axes."""
        import matplotlib.pyplot as plt

        keys = queries if keys is None else keys
        table = self.block(torch.arange(queries) + keys - queries, torch.arange(keys))[0, 0]
        if ax is None:
            ax = plt.subplots(figsize=(3, 3 * table.shape[0] / table.shape[1]), layout="constrained")[1]
        ax.imshow(table, cmap="Blues", vmin=0, vmax=1.4, interpolation="nearest")
        ax.set(xlabel="key position", ylabel="query", title=repr(self))
        return ax

    def __and__(self, other: "Mask") -> "Mask":
        return _Both(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return _Either(self, other)

    def __invert__(self) -> "Mask":
        return _Not(self)

    def __repr__(self) -> str:
        # A tensor is told by its shape: its numbers would bury the rest.
        parts = (
            f"{name}={tuple(value.shape) if isinstance(value, Tensor) else value}" for name, value in vars(self).items()
        )
        return f"{type(self).__name__}({', '.join(parts)})"


class _Pair(Mask):
    def __init__(self, left: Mask, right: Mask):
        if not isinstance(left, Mask) or not isinstance(right, Mask):
            raise TypeError(f"masks combine with masks, got {type(left).__name__} and {type(right).__name__}")
        self.left, self.right = left, right

    @property
    def batched(self):
        return self.left.batched or self.right.batched

    @property
    def per_head(self):
        return self.left.per_head or self.right.per_head

    def check(self, queries, keys, batch=1):
        self.left.check(queries, keys, batch)
        self.right.check(queries, keys, batch)


class _Both(_Pair):
    def rule(self, b, h, q, k):
        return self.left.rule(b, h, q, k) & self.right.rule(b, h, q, k)

    def __repr__(self) -> str:
        return f"({self.left!r} & {self.right!r})"


class _Either(_Pair):
    def rule(self, b, h, q, k):
        return self.left.rule(b, h, q, k) | self.right.rule(b, h, q, k)

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


class _Not(Mask):
    def __init__(self, mask: Mask):
        self.mask = mask

    @property
    def batched(self):
        return self.mask.batched

    @property
    def per_head(self):
        return self.mask.per_head

    def check(self, queries, keys, batch=1):
        self.mask.check(queries, keys, batch)

    def rule(self, b, h, q, k):
        return ~self.mask.rule(b, h, q, k)

    def __repr__(self) -> str:
        return f"~{self.mask!r}"


class Causal(Mask):
    """A query sees its own position and all before it."""

    def rule(self, b, h, q, k):
        return k <= q


class SlidingWindow(Mask):
    """A query sees ``left`` positions before it, itself, and ``right`` positions after it.

    Near the ends the window is cut off; :class:`Neighborhood1d` moves it inside instead.
    """

    def __init__(self, left: int, right: int = 0):
        _at_least("left", left, 0)
        _at_least("right", right, 0)
        self.left, self.right = left, right

    def rule(self, b, h, q, k):
        return (k >= q - self.left) & (k <= q + self.right)


class Dilated(Mask):
    """A query sees every ``dilation``-th position, at most ``steps`` of them each side, and itself."""

    def __init__(self, steps: int, dilation: int):
        _at_least("steps", steps, 0)
        _at_least("dilation", dilation, 1)
        self.steps, self.dilation = steps, dilation

    def rule(self, b, h, q, k):
        return ((q - k) % self.dilation == 0) & ((q - k).abs() <= self.steps * self.dilation)


class Block(Mask):
    """The sequence is cut into blocks of ``size``; a query sees its own block."""

    def __init__(self, size: int):
        _at_least("size", size, 1)
        self.size = size

    def rule(self, b, h, q, k):
        return q // self.size == k // self.size


class Prefix(Mask):
    """Every query sees the first ``length`` keys: ``Causal() | Prefix(n)`` is the mask of a prefix language model.

    ``length`` may be an integer tensor (batch,) with one length per sequence.
    """

    def __init__(self, length: int | Tensor):
        self.length = length

    @property
    def batched(self):
        return isinstance(self.length, Tensor) and self.length.ndim > 0

    def check(self, queries, keys, batch=1):
        if self.batched and len(self.length) != batch:
            raise ValueError(f"Prefix has lengths for {len(self.length)} sequences, the batch has {batch}")

    def rule(self, b, h, q, k):
        return k < (self.length[b] if self.batched else self.length)


class Document(Mask):
    """Packed sequences: a query sees the keys with its own document number.

    ``ids``: integers (tokens,) or (batch, tokens), one document number per key position. A query before the first key, which
    there is only with more queries than keys, sees nothing.
    """

    def __init__(self, ids: Tensor):
        if ids.ndim not in (1, 2) or ids.is_floating_point():
            raise ValueError(
                f"Document wants integer ids of shape (tokens,) or (batch, tokens), got {ids.dtype} {tuple(ids.shape)}"
            )
        self.ids = ids

    @property
    def batched(self):
        return self.ids.ndim == 2

    def check(self, queries, keys, batch=1):
        if self.ids.shape[-1] < keys or (self.batched and len(self.ids) != batch):
            raise ValueError(f"Document has ids of shape {tuple(self.ids.shape)}, which does not fit {batch} sequences of {keys} keys")

    def rule(self, b, h, q, k):
        at = q.clamp_min(0)  # a negative index would count from the end
        same = self.ids[b, at] == self.ids[b, k] if self.batched else self.ids[at] == self.ids[k]
        return same & (q >= 0)


class Neighborhood1d(Mask):
    """A query sees the ``size`` nearest of ``length`` positions; near an end the window moves inside.

    So every query sees exactly ``size`` keys (Hassani et al., "Neighborhood attention transformer", arXiv 2204.07143).
    """

    def __init__(self, length: int, size: int):
        _window_fits("size", size, "length", length)
        self.length, self.size = length, size

    def check(self, queries, keys, batch=1):
        if keys != self.length:
            raise ValueError(f"Neighborhood1d is made for length={self.length}, got {keys} keys")

    def rule(self, b, h, q, k):
        return _near(q, k, self.length, self.size)


class Neighborhood2d(Mask):
    """The same on a ``height`` by ``width`` grid in raster order, with ``size`` by ``size`` neighbours."""

    def __init__(self, height: int, width: int, size: int):
        _window_fits("size", size, "height", height)
        _window_fits("size", size, "width", width)
        self.height, self.width, self.size = height, width, size

    def check(self, queries, keys, batch=1):
        if keys != self.height * self.width:
            raise ValueError(f"Neighborhood2d is made for {self.height} x {self.width} positions, got {keys} keys")

    def rule(self, b, h, q, k):
        rows = _near(q // self.width, k // self.width, self.height, self.size)
        return rows & _near(q % self.width, k % self.width, self.width, self.size)


def _near(q: Tensor, k: Tensor, length: int, size: int) -> Tensor:
    start = (q - (size - 1) // 2).clamp(0, length - size)
    return (k >= start) & (k < start + size)


def _at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def _window_fits(name: str, size: int, of: str, length: int) -> None:
    _at_least(name, size, 1)
    if size > length:
        raise ValueError(f"a neighbourhood of {name}={size} does not fit into {of}={length}; make it at most {length}")
