"""Sets cut into parts: many programs share a long set, and a second kernel merges what they found.

A set of a million tokens would otherwise keep one program busy and the rest of the device idle. Every pooling kernel here has
a summary of some tokens that merges with the summary of others; a part is a run of tokens of one set, and its number is its row in
the workspace.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mhlib.functional.request import Support
from mhlib.kernels.targets import available, interpreting
from mhlib.kernels.tiles import row_tiles

#: Programs that fill the largest device several times over: parts grow until there are no more than these.
WANTED = 2048


def part_size(tokens: int, batch: int, block: int, others: int, ragged: bool) -> int:
    """Tokens per part: ``block`` times a power of two, so that few kernels are compiled.

    ``tokens`` are those of one set, or of all when ragged; ``others`` programs work on each part.
    """
    size = block
    while size < tokens and row_tiles(tokens, batch, size, ragged) * others > WANTED:
        size *= 2
    return size


@triton.jit
def parts_of(sequence, offsets, tokens, PART: tl.constexpr, RAGGED: tl.constexpr):
    """The number of the first part of a set, and how many it has; as :func:`mhlib.kernels.tiles.row_tile` numbers them."""
    if RAGGED:
        first = tl.load(offsets + sequence)
        return first // PART + sequence, tl.cdiv(tl.load(offsets + sequence + 1) - first, PART)
    else:
        parts = tl.cdiv(tokens, PART)
        return sequence * parts, parts


@triton.jit
def token_pointers(base, start, channel, strides, ROWS: tl.constexpr):
    """Pointers (ROWS, channels) to the tokens from ``start`` on; ``strides`` (batch, token, channel), in any order of memory."""
    inside = tl.arange(0, ROWS)[:, None] * strides[1] + channel[None, :] * strides[2]
    return base + tl.cast(start, tl.int64) * strides[1] + inside


@triton.jit
def token_base(base, sequence, first, strides):
    """The pointer to the first token of a set; ragged tensors have a batch stride of 0."""
    return base + tl.cast(sequence, tl.int64) * strides[0] + tl.cast(first, tl.int64) * strides[1]


def check_tokens(name: str, x: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None) -> None:
    """What pools of tokens can be given: (batch, tokens, dim), perhaps masked, or (total, dim) with offsets."""
    ragged = cu_seqlens is not None
    if x.ndim != (2 if ragged else 3):
        wanted = "(total, dim) with cu_seqlens" if ragged else "(batch, tokens, dim) without cu_seqlens"
        raise ValueError(f"{name} wants x of shape {wanted}, got {tuple(x.shape)}")
    check_sets(x.shape[:2], key_mask, cu_seqlens)


def check_sets(wanted: tuple[int, ...], key_mask: Tensor | None, cu_seqlens: Tensor | None) -> None:
    """How sets are told apart: by a mask of the shape ``wanted``, or by offsets."""
    if cu_seqlens is not None and (cu_seqlens.ndim != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64) or not len(cu_seqlens)):
        got = f"{cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        raise ValueError(f"cu_seqlens must be integers (sets + 1,), from 0 to the number of tokens, got {got}")
    if key_mask is None:
        return
    if cu_seqlens is not None:
        raise ValueError("ragged input has no padding to mask: leave key_mask out")
    if key_mask.dtype != torch.bool or key_mask.shape != tuple(wanted):
        got = f"{key_mask.dtype} {tuple(key_mask.shape)}"
        raise ValueError(f"key_mask must be boolean (batch, tokens) = {tuple(wanted)}, got {got}")


def dtype_support(name: str, x: Tensor, *others: Tensor) -> Support:
    """Whether a kernel runs on the device and in the dtype of these tensors."""
    if any(other.dtype != x.dtype for other in others):
        found = ", ".join(str(each.dtype) for each in (x, *others))
        return Support(False, f"queries, keys and values must share one dtype, got {found}")
    able = available(x.device)
    if not able:
        return able
    dtypes = (torch.float16, torch.float32, torch.float64 if interpreting() else torch.bfloat16)
    if x.dtype not in dtypes:
        where = "the interpreter" if interpreting() else "a device"
        listed = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        return Support(False, f"{name} takes {listed} on {where}, got {x.dtype}")
    return Support(True)
