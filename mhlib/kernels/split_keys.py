"""A few queries against many keys: the keys are split over programs, and their parts merge (:mod:`mhlib.functional.partial`).

The queries of all heads that share a key head are the rows of one tile, so each key and value crosses the memory bus once for the
group. Used by :mod:`mhlib.kernels.decode_attention` and :mod:`mhlib.kernels.latent_decode`.
"""

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mhlib.kernels.aot import Case
from mhlib.kernels.launch import Launch, Table, launch
from mhlib.kernels.online import LN2, LOG2E, logits_of, sees_of, softmax_step
from mhlib.kernels.targets import TARGETS, device_class
from mhlib.kernels.tiles import as_bytes, kept, load_rows, padded

MERGE = Table("split keys merge", ("value_width",), {("any", 512): Launch({"BLOCK_P": 8}, 2, 1)})

_FREE = ["queries", "keys", "part", "left", "right"]  # their values are not worth a compilation of their own


@triton.jit(do_not_specialize=_FREE)
def _split(
    q, k, v, out, lse, sink, slopes, key_mask, lengths, q_strides, k_strides, v_strides, out_strides, lse_strides,
    factor, softcap, queries, keys, part, group, left, right,
    D: tl.constexpr, DV: tl.constexpr, EXTRA: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_E: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    SINK: tl.constexpr, KEY_MASK: tl.constexpr, LENGTHS: tl.constexpr, LATENT: tl.constexpr, WHOLE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """What one tile of rows finds in one part of the keys: normalised output, log-sum-exp in base 2 (natural when WHOLE).

    LATENT: the first D columns of a key are also the value, the EXTRA columns after them (rotary positions) are not.
    """
    split = tl.program_id(1)
    sequence = tl.program_id(2)
    tiles = tl.cdiv(group * queries, ROWS)
    kv_head = tl.program_id(0) // tiles  # tiles of one key head run side by side, so that the L2 cache serves all but the first
    row = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    inside = row < group * queries
    head = kv_head * group + row // queries
    query = row % queries
    length = keys
    if LENGTHS:
        length = tl.load(lengths + sequence)
    if KEY_MASK:
        key_mask += tl.cast(sequence, tl.int64) * keys
    offset = length - queries
    wide = tl.cast(sequence, tl.int64)
    k += wide * k_strides[0] + tl.cast(kv_head, tl.int64) * k_strides[1]
    if not LATENT:
        v += wide * v_strides[0] + tl.cast(kv_head, tl.int64) * v_strides[1]

    q_rows = q + wide * q_strides[0] + tl.cast(head, tl.int64)[:, None] * q_strides[1] + query[:, None] * q_strides[2]
    column = tl.arange(0, BLOCK_D)[None, :]
    q_tile = tl.load(q_rows + column, mask=inside[:, None] & (column < D), other=0.0)
    if EXTRA:
        extra = tl.arange(0, BLOCK_E)[None, :]
        q_extra = tl.load(q_rows + D + extra, mask=inside[:, None] & (extra < EXTRA), other=0.0)
    slope = 0.0
    if ALIBI:
        slope = tl.load(slopes + head, mask=inside, other=0.0).to(ACC)[:, None] * LOG2E
    top = tl.full([ROWS], float("-inf"), ACC)  # the highest logit so far
    norm = tl.zeros([ROWS], ACC)  # the sum of 2^(logit - top)
    if SINK:  # the first part saw the sink before all keys; its value is zero
        top = tl.where(split == 0, tl.load(sink + head, mask=inside, other=0.0).to(ACC) * LOG2E, top)
        norm += tl.where(split == 0, 1.0, 0.0)
    total = tl.zeros([ROWS, BLOCK_DV], ACC)

    first = 0
    if LEFT:  # of the first query; the last one sees the last key
        first = tl.maximum(offset - left, 0)
    start = first + split * part
    for at in range(start, tl.minimum(start + part, length), BLOCK_N):
        key = at + tl.arange(0, BLOCK_N)
        keep = kept(key_mask, 0, key, length, KEY_MASK)
        k_tile = load_rows(k, at, k_strides[2], keep, BLOCK_N, D, BLOCK_D, True)
        product = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee", out_dtype=ACC)
        if EXTRA:
            k_extra = load_rows(k + D, at, k_strides[2], keep, BLOCK_N, EXTRA, BLOCK_E, True)
            product = tl.dot(q_extra, tl.trans(k_extra), product, input_precision="ieee", out_dtype=ACC)
        distance = query[:, None] + offset - key[None, :]
        logits, _ = logits_of(product, distance, slope, factor, softcap, SOFTCAP, ALIBI)
        sees = keep[None, :] & sees_of(query[:, None], key[None, :], offset, left, right, LEFT, RIGHT)
        logits = tl.where(sees, logits, float("-inf"))
        if LATENT:
            v_tile = k_tile
        else:
            v_tile = load_rows(v, at, v_strides[2], keep, BLOCK_N, DV, BLOCK_DV, True)
        top, norm, total = softmax_step(logits, v_tile, top, norm, total, ACC, "ieee")

    norm = tl.where(norm == 0.0, 1.0, norm)  # a row without keys: zeros, and -inf
    unit = LN2 if WHOLE else 1.0
    lse += tl.cast(split, tl.int64) * lse_strides[0] + wide * lse_strides[1]
    tl.store(lse + head * lse_strides[2] + query * lse_strides[3], (top + tl.log2(norm)) * unit, mask=inside)
    out += tl.cast(split, tl.int64) * out_strides[0] + wide * out_strides[1]
    out_rows = out + tl.cast(head, tl.int64)[:, None] * out_strides[2] + query[:, None] * out_strides[3]
    column = tl.arange(0, BLOCK_DV)[None, :]
    tl.store(out_rows + column, (total / norm[:, None]).to(out.dtype.element_ty), mask=inside[:, None] & (column < DV))


@triton.jit(do_not_specialize=["parts", "rows"])
def _merge(
    parts_out, parts_lse, out, lse, out_strides, parts, rows, heads, queries,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, PARTS: tl.constexpr, BLOCK_P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """One row from its parts: the mean of their outputs with weights 2^lse. Maximum and sums are taken by trees over the parts."""
    row = tl.program_id(0)
    part = tl.arange(0, PARTS)
    found = tl.load(parts_lse + tl.cast(part, tl.int64) * rows + row, mask=part < parts, other=float("-inf"))
    top = tl.max(found, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    norm = tl.sum(tl.exp2(found - shift), 0)
    column = tl.arange(0, BLOCK_DV)
    total = tl.zeros([BLOCK_DV], ACC)
    for at in range(0, parts, BLOCK_P):
        place = at + tl.arange(0, BLOCK_P)
        index = tl.cast(place, tl.int64) * rows + row
        weights = tl.exp2(tl.load(parts_lse + index, mask=place < parts, other=float("-inf")) - shift)
        piece = tl.load(parts_out + index[:, None] * DV + column[None, :], mask=(place < parts)[:, None] & (column < DV)[None, :], other=0.0)
        total += tl.sum(weights[:, None] * piece, 0)
    norm = tl.where(norm == 0.0, 1.0, norm)
    tl.store(lse + row, (top + tl.log2(norm)) * LN2)
    place = row // (heads * queries), row // queries % heads, row % queries
    out += tl.cast(place[0], tl.int64) * out_strides[0] + tl.cast(place[1], tl.int64) * out_strides[1] + place[2] * out_strides[2]
    tl.store(out + column, (total / norm).to(out.dtype.element_ty), mask=column < DV)


# ---- the launch ------------------------------------------------------------------------------------------------------------------

MOST_PARTS = 256
LEAST_BLOCKS = 4  # of keys in a part: fewer, and writing and merging the parts costs more than they gain


def arguments(
    q: Tensor, k: Tensor, v: Tensor | None, sink: Tensor | None, slopes: Tensor | None, key_mask: Tensor | None,
    lengths: Tensor | None, scale: float, softcap: float, left: int, right: int, width: int,
) -> dict[str, Any]:  # fmt: skip
    """What the kernel takes whatever the number of parts. ``left`` and ``right`` are -1 without a limit; no ``v``: latent."""
    extra, value_width = (q.shape[3] - width, width) if v is None else (0, v.shape[3])
    log2e = LOG2E.value
    return dict(
        q=q, k=k, v=v, sink=sink, slopes=slopes, key_mask=as_bytes(key_mask),
        lengths=lengths, q_strides=q.stride()[:3], k_strides=k.stride()[:3], v_strides=None if v is None else v.stride()[:3],
        factor=2 * log2e * scale / softcap if softcap else log2e * scale, softcap=log2e * softcap,
        queries=q.shape[2], keys=k.shape[2], group=q.shape[1] // k.shape[1], left=left, right=right, LEFT=left >= 0, RIGHT=right >= 0,
        D=width, DV=value_width, EXTRA=extra, BLOCK_D=padded(width), BLOCK_DV=padded(value_width), BLOCK_E=padded(extra),
        SOFTCAP=softcap != 0, ALIBI=slopes is not None, SINK=sink is not None, KEY_MASK=key_mask is not None,
        LENGTHS=lengths is not None, LATENT=v is None, ACC=tl.float64 if q.dtype == torch.float64 else tl.float32,
    )  # fmt: skip


def run(shared: dict[str, Any], table: Table, out: Tensor, lse: Tensor) -> None:
    """Fill ``out`` (batch, heads, queries, value width) and ``lse``: in one kernel if one part will do, else in two."""
    q, k, device = shared["q"], shared["k"], device_class(shared["q"].device)
    batch, heads, queries = lse.shape
    chosen, rows = pick(table, shared, device)
    tiles = triton.cdiv(shared["group"] * queries, rows) * k.shape[1]
    visible = shared["keys"] if shared["left"] < 0 else min(shared["keys"], shared["left"] + queries)
    part, parts = split(visible, batch * tiles, chosen.blocks["BLOCK_N"], _wanted(device, q.device.index))
    if parts == 1:
        found_out, found_lse = out[None], lse[None]
    else:
        found_out = out.new_empty(parts, *out.shape, dtype=lse.dtype)
        found_lse = lse.new_empty(parts, *lse.shape)
    launch(_split, (tiles, parts, batch), shared | _outputs(found_out, found_lse, part, rows), chosen)
    if parts > 1:
        launch(_merge, (batch * heads * queries,), *_merge_launch(shared, found_out, found_lse, out, lse, device))


def pick(table: Table, shared: dict[str, Any], device: str) -> tuple[Launch, int]:
    """The launch, and how many rows a tile has: as many as there are, up to what the table allows for these widths."""
    sizes = shared["q"].dtype.itemsize * 8, shared["BLOCK_D"], shared["BLOCK_DV"]
    rows = min(padded(shared["group"] * shared["queries"]), max(key[-1] for key in table.rows))
    while rows > 16:
        with contextlib.suppress(ValueError):
            return table.pick(device, *sizes, rows), rows
        rows //= 2
    return table.pick(device, *sizes, rows), rows


def split(keys: int, programs: int, block: int, wanted: int) -> tuple[int, int]:
    """(keys of a part, number of parts), so that about ``wanted`` programs run when ``programs`` work on each part."""
    blocks = max(1, triton.cdiv(keys, block))
    parts = max(1, min(wanted // max(1, programs), MOST_PARTS, blocks // LEAST_BLOCKS))
    each = triton.cdiv(blocks, parts)
    return each * block, triton.cdiv(blocks, each)


@cache
def _wanted(device: str, index: int | None) -> int:
    """Two programs for each multiprocessor; 16 in the interpreter, where they run one after the other."""
    return 2 * torch.cuda.get_device_properties(index).multi_processor_count if device in TARGETS else 16


def _outputs(out: Tensor, lse: Tensor, part: int, rows: int) -> dict[str, Any]:
    return dict(out=out, lse=lse, out_strides=out.stride()[:4], lse_strides=lse.stride(), part=part, ROWS=rows, WHOLE=out.shape[0] == 1)


def _merge_launch(shared: dict[str, Any], found_out: Tensor, found_lse: Tensor, out: Tensor, lse: Tensor, device: str):
    batch, heads, queries, width = out.shape
    arguments = dict(
        parts_out=found_out.view(found_out.shape[0], -1, width), parts_lse=found_lse, out=out, lse=lse, out_strides=out.stride()[:3],
        parts=found_out.shape[0], rows=batch * heads * queries, heads=heads, queries=queries, DV=width,
        BLOCK_DV=shared["BLOCK_DV"], PARTS=triton.next_power_of_2(found_out.shape[0]), ACC=shared["ACC"],
    )  # fmt: skip
    return arguments, MERGE.pick(device, shared["BLOCK_DV"])


def cases_of(label: str, table: Table, shared: dict[str, Any], device: str, merge: bool = False) -> Iterator[Case]:
    """The kernel as it would run over eight parts; with ``merge`` also the second one. In 16 bits it must not spill."""
    chosen, rows = pick(table, shared, device)
    batch, heads, queries, _ = shared["q"].shape
    empty = lambda *shape: torch.empty(shape, dtype=torch.float32, device="meta")  # noqa: E731
    out, lse = empty(8, batch, heads, queries, shared["DV"]), empty(8, batch, heads, queries)
    yield Case(f"{label} rows {rows}", _split, device, shared | _outputs(out, lse, 1024, rows), chosen, spill_free=shared["q"].dtype.itemsize == 2)
    if merge:
        arguments, chosen = _merge_launch(shared, out, lse, out[0].to(shared["q"].dtype), lse[0], device)
        yield Case(f"{label} merge", _merge, device, arguments, chosen, spill_free=True)
