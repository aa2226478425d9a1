"""Triton functions that several kernels share: which rows a program works on, and how it loads them."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def padded(width: int) -> int:
    """The width of a tile: a power of two, and at least 16, as ``tl.dot`` wants along K."""
    return max(16, triton.next_power_of_2(width))


def row_tiles(rows: int, batch: int, block: int, ragged: bool) -> int:
    """How many programs :func:`row_tile` needs for ``batch`` sequences of ``rows`` rows, or of ``rows`` in all when ragged.

    Ragged, it is a bound that does not depend on the lengths, so the host need not know them; what is too much ends at once.
    """
    return rows // block + batch if ragged else triton.cdiv(rows, block) * batch


def tokens_first(x: Tensor, heads: int, tokens: int, width: int) -> Tensor:
    """An empty (batch, heads, tokens, width) whose heads lie side by side, so that merging them copies nothing."""
    return x.new_empty(x.shape[0], tokens, heads, width).transpose(1, 2)


def columns_together(x: Tensor) -> Tensor:
    """With columns side by side, as the kernels read them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def strides_of(x: Tensor, ragged: bool) -> tuple[int, int, int]:
    """The first three strides; all sets of a ragged batch start at the first token of the tensor."""
    return 0 if ragged else x.stride(0), x.stride(1), x.stride(2)


def as_bytes(key_mask: Tensor | None) -> Tensor | None:
    """A mask as a kernel reads it."""
    return None if key_mask is None else key_mask.contiguous().view(torch.uint8)


@triton.jit
def kept(key_mask, first, token, length, KEY_MASK: tl.constexpr):
    """Which tokens are there, and real. ``key_mask`` is (batch x tokens) bytes, ``first`` the place of the set in it."""
    keep = token < length
    if KEY_MASK:
        keep = keep & (tl.load(key_mask + first + token, mask=keep, other=0) != 0)
    return keep


@triton.jit
def row_tile(tile, offsets, rows, batch, BLOCK: tl.constexpr, RAGGED: tl.constexpr):
    """The tile of rows with this number: (sequence, its first row in the tensor, its number of rows, first row of the tile in it).

    ``offsets`` (batch + 1) are the cumulative lengths of ragged sequences. Sequence s owns the tiles from offsets[s] // BLOCK + s
    on, which leaves each at least as many as it needs, so a binary search finds the owner of a tile.
    """
    if RAGGED:
        low = 0
        high = batch - 1
        while low < high:
            middle = (low + high + 1) // 2
            begins = tl.load(offsets + middle) // BLOCK + middle
            low = tl.where(begins <= tile, middle, low)
            high = tl.where(begins <= tile, high, middle - 1)
        first = tl.load(offsets + low)
        return low, first, tl.load(offsets + low + 1) - first, (tile - first // BLOCK - low) * BLOCK
    else:
        tiles = tl.cdiv(rows, BLOCK)
        return tile // tiles, 0, rows, tile % tiles * BLOCK


@triton.jit
def row_pointers(base, start, stride, ROWS: tl.constexpr, PADDED: tl.constexpr):
    """Pointers to PADDED columns of the rows from ``start`` on; only the distance of the tile itself needs 64 bits."""
    inside = tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, PADDED)[None, :]
    return base + tl.cast(start, tl.int64) * stride + inside


@triton.jit
def load_rows(base, start, stride, keep, ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CHECK: tl.constexpr):
    """A tile (ROWS, PADDED); columns from WIDTH on, and with CHECK the rows outside ``keep``, are 0 and not read."""
    at = row_pointers(base, start, stride, ROWS, PADDED)
    inside = tl.arange(0, PADDED)[None, :] < WIDTH
    if CHECK:
        if WIDTH == PADDED:
            tile = tl.load(at, mask=keep[:, None], other=0.0)
        else:
            tile = tl.load(at, mask=keep[:, None] & inside, other=0.0)
    else:
        if WIDTH == PADDED:
            tile = tl.load(at)
        else:
            tile = tl.load(at, mask=inside, other=0.0)
    return tile


@triton.jit
def store_rows(base, start, stride, tile, keep, ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """The rows in ``keep`` and the first WIDTH columns of a tile to memory, in the dtype that is there."""
    inside = keep[:, None] & (tl.arange(0, PADDED)[None, :] < WIDTH)
    tl.store(row_pointers(base, start, stride, ROWS, PADDED), tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def row_base(base, sequence, head, first, strides):
    """The pointer to a row: ``strides`` (batch, head, row); ragged tensors have a batch stride of 0."""
    return base + tl.cast(sequence, tl.int64) * strides[0] + tl.cast(head, tl.int64) * strides[1] + tl.cast(first, tl.int64) * strides[2]
