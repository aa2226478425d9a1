"""Exact attention without a table of weights: online softmax over blocks of keys, forward and backward.

Reference: :func:`mhlib.attention` with ``backend="reference"``. Keys and values pass through on-chip memory in blocks; a program
keeps the running maximum, sum and weighted values of its queries. The backward pass makes the weights again from the log-sum-exp.
No atomics: one kernel sums over the queries of a block of keys (and over the heads that share it), another over the keys of a block
of queries, so two runs agree to the bit. Blocks of keys that causality, window or length rule out are not visited.

Conditions: float16, bfloat16 or float32 on the device (float64 in the interpreter, bfloat16 not there), widths up to 256. float32
runs on tensor cores as three products of TensorFloat-32, nearly as exact as float32 itself.

Source: Dao, "FlashAttention-2", arXiv 2307.08691; ragged batches: Zhai et al., "ByteTransformer", arXiv 2210.03052 (row 280).
"""

from collections.abc import Iterator
from typing import Any, Optional

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mhlib.functional.precision import accumulator
from mhlib.functional.request import Support, window_sides
from mhlib.kernels.aot import Case
from mhlib.kernels.flash_tables import DELTA, FORWARD, KEYS, QUERIES
from mhlib.kernels.launch import Counts, launch
from mhlib.kernels.online import LN2, LOG2E, block_counts, block_start, key_range, logits_of, sees_of, softmax_step
from mhlib.kernels.parts import dtype_support
from mhlib.kernels.targets import TARGETS, device_class
from mhlib.kernels.tiles import (
    as_bytes, columns_together, kept, load_rows, padded, row_base, row_tile, row_tiles, store_rows, strides_of, tokens_first,
)  # fmt: skip

__all__ = ["flash_attention"]

# ---- the kernels -----------------------------------------------------------------------------------------------------------------
# Every loop over blocks comes twice: over the blocks that are seen whole and need no comparison, then over those that an edge of the
# window or the end may cut. ``factor`` turns products into logits in base 2.

_FREE = ["queries", "keys", "batch", "left", "right"]  # their values are not worth a compilation of their own


@triton.jit(do_not_specialize=_FREE)
def _forward(
    q, k, v, out, lse, sink, slopes, q_offsets, k_offsets, key_mask, key_stop,
    q_strides, k_strides, v_strides, out_strides, lse_strides, factor, softcap, queries, keys, batch, group, left, right,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, SINK: tl.constexpr, KEY_MASK: tl.constexpr,
    RAGGED: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exp of one block of queries of one head, over all keys that they see."""
    head = tl.program_id(1)
    sequence, first_query, queries, start = row_tile(tl.program_id(0), q_offsets, queries, batch, BLOCK_M, RAGGED)
    if start >= queries:
        return
    if RIGHT:  # the last queries see most keys: they go first, so that no long program is left for the end
        start = (queries - 1) // BLOCK_M * BLOCK_M - start
    first_key = 0
    if RAGGED:
        first_key = tl.load(k_offsets + sequence)
        keys = tl.load(k_offsets + sequence + 1) - first_key
    if KEY_MASK:
        key_mask += tl.cast(sequence, tl.int64) * keys
    offset = keys - queries
    q = row_base(q, sequence, head, first_query, q_strides)
    k = row_base(k, sequence, head // group, first_key, k_strides)
    v = row_base(v, sequence, head // group, first_key, v_strides)

    query = start + tl.arange(0, BLOCK_M)
    q_tile = load_rows(q, start, q_strides[2], query < queries, BLOCK_M, D, BLOCK_D, True)
    slope = 0.0
    if ALIBI:
        slope = tl.load(slopes + head).to(ACC) * LOG2E
    top = tl.full([BLOCK_M], float("-inf"), ACC)  # the highest logit so far
    norm = tl.zeros([BLOCK_M], ACC)  # the sum of 2^(logit - top)
    if SINK:  # a logit that was seen before all keys, and has the value zero
        top = tl.zeros([BLOCK_M], ACC) + tl.load(sink + head).to(ACC) * LOG2E
        norm += 1.0
    total = tl.zeros([BLOCK_M, BLOCK_DV], ACC)

    first, full, rest, last = key_range(start, keys, offset, left, right, LEFT, RIGHT, BLOCK_M, BLOCK_N)
    if KEY_MASK:
        last = tl.minimum(last, tl.load(key_stop + sequence))
    left_edge, blocks, edges = block_counts(first, full, rest, last, BLOCK_N)
    for EDGE in tl.static_range(2):
        for block in range(edges if EDGE else blocks):
            at = block_start(block, first, full, rest, left_edge, EDGE, LEFT, BLOCK_N)
            key = at + tl.arange(0, BLOCK_N)
            keep = kept(key_mask, 0, key, keys, KEY_MASK)
            k_tile = load_rows(k, at, k_strides[2], keep, BLOCK_N, D, BLOCK_D, EDGE or KEY_MASK)
            product = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=ACC)
            distance = query[:, None] + offset - key[None, :]
            logits, _ = logits_of(product, distance, slope, factor, softcap, SOFTCAP, ALIBI)
            if EDGE:
                sees = keep[None, :] & sees_of(query[:, None], key[None, :], offset, left, right, LEFT, RIGHT)
                logits = tl.where(sees, logits, float("-inf"))
            elif KEY_MASK:
                logits = tl.where(keep[None, :], logits, float("-inf"))
            v_tile = load_rows(v, at, v_strides[2], keep, BLOCK_N, DV, BLOCK_DV, EDGE or KEY_MASK)
            top, norm, total = softmax_step(logits, v_tile, top, norm, total, ACC, PRECISION)

    norm = tl.where(norm == 0.0, 1.0, norm)  # a row without keys: zeros, and -inf
    out = row_base(out, sequence, head, first_query, out_strides)
    store_rows(out, start, out_strides[2], total / norm[:, None], query < queries, BLOCK_M, DV, BLOCK_DV)
    lse = row_base(lse, sequence, head, first_query, lse_strides)
    tl.store(lse + query, (top + tl.log2(norm)) * LN2, mask=query < queries)


@triton.jit(do_not_specialize=["queries", "batch"])
def _row_products(
    out, d_out, d_lse, delta, out_strides, d_out_strides, lse_strides, queries, batch,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """delta = out . d_out - d_lse of every row: what softmax's backward takes off every dp."""
    head = tl.program_id(1)
    sequence, _, queries, start = row_tile(tl.program_id(0), None, queries, batch, BLOCK_M, False)
    query = start + tl.arange(0, BLOCK_M)
    inside = query < queries
    out = row_base(out, sequence, head, 0, out_strides)
    d_out = row_base(d_out, sequence, head, 0, d_out_strides)
    products = load_rows(out, start, out_strides[2], inside, BLOCK_M, DV, BLOCK_DV, True).to(ACC)
    products *= load_rows(d_out, start, d_out_strides[2], inside, BLOCK_M, DV, BLOCK_DV, True).to(ACC)
    d_lse = row_base(d_lse, sequence, head, 0, lse_strides)
    delta = row_base(delta, sequence, head, 0, lse_strides)
    tl.store(delta + query, tl.sum(products, 1) - tl.load(d_lse + query, mask=inside, other=0.0), mask=inside)


@triton.jit(do_not_specialize=_FREE)
def _backward_of_queries(
    q, k, v, d_out, lse, delta, d_q, slopes, q_offsets, k_offsets, key_mask, key_stop,
    q_strides, k_strides, v_strides, d_out_strides, d_q_strides, lse_strides,
    scale, factor, softcap, queries, keys, batch, group, left, right,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, KEY_MASK: tl.constexpr,
    RAGGED: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of one block of queries: ds = w (dp - delta), dq = ds k, over the keys that the forward pass visited."""
    head = tl.program_id(1)
    sequence, first_query, queries, start = row_tile(tl.program_id(0), q_offsets, queries, batch, BLOCK_M, RAGGED)
    if start >= queries:
        return
    if RIGHT:
        start = (queries - 1) // BLOCK_M * BLOCK_M - start
    first_key = 0
    if RAGGED:
        first_key = tl.load(k_offsets + sequence)
        keys = tl.load(k_offsets + sequence + 1) - first_key
    if KEY_MASK:
        key_mask += tl.cast(sequence, tl.int64) * keys
    offset = keys - queries
    q = row_base(q, sequence, head, first_query, q_strides)
    k = row_base(k, sequence, head // group, first_key, k_strides)
    v = row_base(v, sequence, head // group, first_key, v_strides)
    d_out = row_base(d_out, sequence, head, first_query, d_out_strides)
    lse = row_base(lse, sequence, head, first_query, lse_strides)
    delta = row_base(delta, sequence, head, first_query, lse_strides)

    query = start + tl.arange(0, BLOCK_M)
    inside = query < queries
    q_tile = load_rows(q, start, q_strides[2], inside, BLOCK_M, D, BLOCK_D, True)
    d_out_tile = load_rows(d_out, start, d_out_strides[2], inside, BLOCK_M, DV, BLOCK_DV, True)
    log_norm = tl.load(lse + query, mask=inside, other=0.0) * LOG2E
    taken = tl.load(delta + query, mask=inside, other=0.0)
    slope = 0.0
    if ALIBI:
        slope = tl.load(slopes + head).to(ACC) * LOG2E
    total = tl.zeros([BLOCK_M, BLOCK_D], ACC)

    first, full, rest, last = key_range(start, keys, offset, left, right, LEFT, RIGHT, BLOCK_M, BLOCK_N)
    if KEY_MASK:
        last = tl.minimum(last, tl.load(key_stop + sequence))
    left_edge, blocks, edges = block_counts(first, full, rest, last, BLOCK_N)
    for EDGE in tl.static_range(2):
        for block in range(edges if EDGE else blocks):
            at = block_start(block, first, full, rest, left_edge, EDGE, LEFT, BLOCK_N)
            key = at + tl.arange(0, BLOCK_N)
            keep = kept(key_mask, 0, key, keys, KEY_MASK)
            k_tile = load_rows(k, at, k_strides[2], keep, BLOCK_N, D, BLOCK_D, EDGE or KEY_MASK)
            v_tile = load_rows(v, at, v_strides[2], keep, BLOCK_N, DV, BLOCK_DV, EDGE or KEY_MASK)
            product = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION, out_dtype=ACC)
            distance = query[:, None] + offset - key[None, :]
            logits, slant = logits_of(product, distance, slope, factor, softcap, SOFTCAP, ALIBI)
            weights = tl.exp2(logits - log_norm[:, None])
            d_weights = tl.dot(d_out_tile, tl.trans(v_tile), input_precision=PRECISION, out_dtype=ACC)
            d_logits = weights * (d_weights - taken[:, None]) * slant
            if EDGE:
                sees = keep[None, :] & sees_of(query[:, None], key[None, :], offset, left, right, LEFT, RIGHT)
                d_logits = tl.where(sees, d_logits, 0.0)
            elif KEY_MASK:
                d_logits = tl.where(keep[None, :], d_logits, 0.0)
            total = tl.dot(d_logits.to(k_tile.dtype), k_tile, total, input_precision=PRECISION, out_dtype=ACC)

    d_q = row_base(d_q, sequence, head, first_query, d_q_strides)
    store_rows(d_q, start, d_q_strides[2], total * scale, inside, BLOCK_M, D, BLOCK_D)


@triton.jit(do_not_specialize=_FREE)
def _backward_of_keys(
    q, k, v, d_out, lse, delta, d_k, d_v, slopes, q_offsets, k_offsets, key_mask, key_stop,
    q_strides, k_strides, v_strides, d_out_strides, d_k_strides, d_v_strides, lse_strides,
    scale, factor, softcap, queries, keys, batch, group, left, right,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, KEY_MASK: tl.constexpr,
    RAGGED: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of one block of keys and values: dv = w^T d_out, dk = ds^T q, over all queries of all heads of the group."""
    kv_head = tl.program_id(1)
    sequence, first_key, keys, start = row_tile(tl.program_id(0), k_offsets, keys, batch, BLOCK_N, RAGGED)
    if start >= keys:
        return
    first_query = 0
    if RAGGED:
        first_query = tl.load(q_offsets + sequence)
        queries = tl.load(q_offsets + sequence + 1) - first_query
    if KEY_MASK:
        key_mask += tl.cast(sequence, tl.int64) * keys
    offset = keys - queries
    k = row_base(k, sequence, kv_head, first_key, k_strides)
    v = row_base(v, sequence, kv_head, first_key, v_strides)

    key = start + tl.arange(0, BLOCK_N)
    keep = kept(key_mask, 0, key, keys, KEY_MASK)
    k_tile = load_rows(k, start, k_strides[2], keep, BLOCK_N, D, BLOCK_D, True)
    v_tile = load_rows(v, start, v_strides[2], keep, BLOCK_N, DV, BLOCK_DV, True)
    d_k_total = tl.zeros([BLOCK_N, BLOCK_D], ACC)
    d_v_total = tl.zeros([BLOCK_N, BLOCK_DV], ACC)

    # Key j is seen by queries from j - right on and up to j + left: left and right change places.
    first, full, rest, last = key_range(start, queries, -offset, right, left, RIGHT, LEFT, BLOCK_N, BLOCK_M)
    if KEY_MASK:
        last = tl.where(start < tl.load(key_stop + sequence), last, 0)
    left_edge, blocks, edges = block_counts(first, full, rest, last, BLOCK_M)
    for head in range(kv_head * group, kv_head * group + group):
        q_head = row_base(q, sequence, head, first_query, q_strides)
        d_out_head = row_base(d_out, sequence, head, first_query, d_out_strides)
        lse_head = row_base(lse, sequence, head, first_query, lse_strides)
        delta_head = row_base(delta, sequence, head, first_query, lse_strides)
        slope = 0.0
        if ALIBI:
            slope = tl.load(slopes + head).to(ACC) * LOG2E
        for EDGE in tl.static_range(2):
            for block in range(edges if EDGE else blocks):
                at = block_start(block, first, full, rest, left_edge, EDGE, RIGHT, BLOCK_M)
                query = at + tl.arange(0, BLOCK_M)
                inside = query < queries
                q_tile = load_rows(q_head, at, q_strides[2], inside, BLOCK_M, D, BLOCK_D, EDGE)
                d_out_tile = load_rows(d_out_head, at, d_out_strides[2], inside, BLOCK_M, DV, BLOCK_DV, EDGE)
                log_norm = tl.load(lse_head + query, mask=inside, other=0.0) * LOG2E
                taken = tl.load(delta_head + query, mask=inside, other=0.0)
                product = tl.dot(k_tile, tl.trans(q_tile), input_precision=PRECISION, out_dtype=ACC)
                distance = query[None, :] + offset - key[:, None]
                logits, slant = logits_of(product, distance, slope, factor, softcap, SOFTCAP, ALIBI)
                weights = tl.exp2(logits - log_norm[None, :])
                d_weights = tl.dot(v_tile, tl.trans(d_out_tile), input_precision=PRECISION, out_dtype=ACC)
                d_logits = weights * (d_weights - taken[None, :]) * slant
                if EDGE:
                    sees = inside[None, :] & sees_of(query[None, :], key[:, None], offset, left, right, LEFT, RIGHT)
                    weights = tl.where(sees, weights, 0.0)
                    d_logits = tl.where(sees, d_logits, 0.0)
                d_v_total = tl.dot(weights.to(d_out_tile.dtype), d_out_tile, d_v_total, input_precision=PRECISION, out_dtype=ACC)
                d_k_total = tl.dot(d_logits.to(q_tile.dtype), q_tile, d_k_total, input_precision=PRECISION, out_dtype=ACC)

    # Each row of these sums is one key's own, so it is enough to drop what masked keys gathered here.
    d_k_total = tl.where(keep[:, None], d_k_total * scale, 0.0)
    d_v_total = tl.where(keep[:, None], d_v_total, 0.0)
    d_k = row_base(d_k, sequence, kv_head, first_key, d_k_strides)
    d_v = row_base(d_v, sequence, kv_head, first_key, d_v_strides)
    store_rows(d_k, start, d_k_strides[2], d_k_total, key < keys, BLOCK_N, D, BLOCK_D)
    store_rows(d_v, start, d_v_strides[2], d_v_total, key < keys, BLOCK_N, DV, BLOCK_DV)


# ---- arguments: the same for a launch and for compiling ahead of time ---------------------------------------------------------------


def _arguments(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, q_offsets: Tensor | None, k_offsets: Tensor | None,
    key_mask: Tensor | None, scale: float, softcap: float, left: int, right: int, device: str,
) -> dict[str, Any]:  # fmt: skip
    """What all kernels take. ``left`` and ``right`` are -1 without a limit, ``softcap`` is 0 without one."""
    ragged = q_offsets is not None
    ieee = q.dtype != torch.float32 or device not in TARGETS or TARGETS[device].backend == "hip"
    return dict(
        q=q, k=k, v=v, slopes=slopes, q_offsets=q_offsets, k_offsets=k_offsets,
        key_mask=as_bytes(key_mask), key_stop=None if key_mask is None else _stop(key_mask),
        q_strides=strides_of(q, ragged), k_strides=strides_of(k, ragged), v_strides=strides_of(v, ragged),
        factor=2 * LOG2E.value * scale / softcap if softcap else LOG2E.value * scale, softcap=LOG2E.value * softcap,
        queries=q.shape[2], keys=k.shape[2], batch=q_offsets.shape[0] - 1 if ragged else q.shape[0],
        group=q.shape[1] // k.shape[1], left=left, right=right, LEFT=left >= 0, RIGHT=right >= 0,
        D=q.shape[3], DV=v.shape[3], BLOCK_D=padded(q.shape[3]), BLOCK_DV=padded(v.shape[3]),
        SOFTCAP=softcap != 0, ALIBI=slopes is not None, KEY_MASK=key_mask is not None, RAGGED=ragged,
        ACC=tl.float64 if q.dtype == torch.float64 else tl.float32, PRECISION="ieee" if ieee else "tf32x3",
    )  # fmt: skip


def _stop(key_mask: Tensor) -> Tensor:
    """One more than the last real key of each sequence: the padding after it is not visited."""
    place = torch.arange(1, key_mask.shape[1] + 1, device=key_mask.device, dtype=torch.int32)
    return (key_mask * place).amax(1) if key_mask.shape[1] else key_mask.new_zeros(key_mask.shape[0], dtype=torch.int32)


def _sizes(arguments: dict[str, Any]) -> tuple[int, int, int]:
    return arguments["q"].dtype.itemsize * 8, arguments["BLOCK_D"], arguments["BLOCK_DV"]


# ---- operators -------------------------------------------------------------------------------------------------------------------


@torch.library.custom_op("mhlib::flash_attention", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, sink: Optional[Tensor], slopes: Optional[Tensor], q_offsets: Optional[Tensor],
    k_offsets: Optional[Tensor], key_mask: Optional[Tensor], scale: float, softcap: float, left: int, right: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q, k, v = columns_together(q), columns_together(k), columns_together(v)
    out, lse = _outputs(q, v)
    device = device_class(q.device)
    shared = _arguments(q, k, v, slopes, q_offsets, k_offsets, key_mask, scale, softcap, left, right, device)
    arguments, chosen = _forward_launch(shared, out, lse, sink, device)
    tiles = row_tiles(shared["queries"], shared["batch"], chosen.blocks["BLOCK_M"], shared["RAGGED"])
    launch(_forward, (tiles, q.shape[1]), arguments, chosen)
    return out, lse


@_attend.register_fake
def _(q, k, v, sink, slopes, q_offsets, k_offsets, key_mask, scale, softcap, left, right):
    return _outputs(q, v)


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    lse = q.new_empty(q.shape[:-1], dtype=accumulator(q.dtype))
    return tokens_first(q, q.shape[1], q.shape[2], v.shape[3]), lse


def _forward_launch(shared: dict[str, Any], out: Tensor, lse: Tensor, sink: Tensor | None, device: str):
    arguments = shared | dict(
        out=out, lse=lse, sink=sink, SINK=sink is not None, out_strides=strides_of(out, shared["RAGGED"]),
        lse_strides=strides_of(lse[..., None], shared["RAGGED"]),
    )  # fmt: skip
    return arguments, FORWARD.pick(device, *_sizes(shared))


@torch.library.custom_op("mhlib::flash_attention_backward", mutates_args=())
def _attend_backward(
    d_out: Tensor, d_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sink: Optional[Tensor],
    slopes: Optional[Tensor], q_offsets: Optional[Tensor], k_offsets: Optional[Tensor], key_mask: Optional[Tensor],
    scale: float, softcap: float, left: int, right: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v, out, d_out, d_lse = columns_together(q), columns_together(k), columns_together(v), columns_together(out), columns_together(d_out), d_lse.contiguous()
    device = device_class(q.device)
    shared = _arguments(q, k, v, slopes, q_offsets, k_offsets, key_mask, scale, softcap, left, right, device)
    delta, (d_q, d_k, d_v, d_sink) = torch.empty_like(lse), _gradients(q, k, v, sink)
    batch, ragged = shared["batch"], shared["RAGGED"]

    arguments, chosen = _delta_launch(shared, out, d_out, d_lse, delta, device)
    launch(_row_products, (row_tiles(q.shape[2], q.shape[0], chosen.blocks["BLOCK_M"], False), q.shape[1]), arguments, chosen)
    arguments, chosen = _queries_launch(shared, d_out, lse, delta, d_q, scale, device)
    launch(_backward_of_queries, (row_tiles(q.shape[2], batch, chosen.blocks["BLOCK_M"], ragged), q.shape[1]), arguments, chosen)
    arguments, chosen = _keys_launch(shared, d_out, lse, delta, d_k, d_v, scale, device)
    launch(_backward_of_keys, (row_tiles(k.shape[2], batch, chosen.blocks["BLOCK_N"], ragged), k.shape[1]), arguments, chosen)
    if sink is not None:  # the sink's weight is exp(sink - lse), and its value is zero
        d_sink.copy_(-((sink.to(lse.dtype)[None, :, None] - lse).exp() * delta).sum((0, 2)))
    return d_q, d_k, d_v, d_sink


@_attend_backward.register_fake
def _(d_out, d_lse, q, k, v, out, lse, sink, slopes, q_offsets, k_offsets, key_mask, scale, softcap, left, right):
    return _gradients(q, k, v, sink)


def _gradients(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_q, d_k, d_v = (tokens_first(x, *x.shape[1:]) for x in (q, k, v))
    return d_q, d_k, d_v, q.new_empty(0) if sink is None else torch.empty_like(sink)


def _delta_launch(shared: dict[str, Any], out: Tensor, d_out: Tensor, d_lse: Tensor, delta: Tensor, device: str):
    arguments = dict(
        out=out, d_out=d_out, d_lse=d_lse, delta=delta, out_strides=strides_of(out, False), d_out_strides=strides_of(d_out, False),
        lse_strides=strides_of(delta[..., None], False), queries=out.shape[2], batch=out.shape[0],
        DV=shared["DV"], BLOCK_DV=shared["BLOCK_DV"], ACC=shared["ACC"],
    )  # fmt: skip
    bits, _, value_width = _sizes(shared)
    return arguments, DELTA.pick(device, bits, value_width)


def _queries_launch(shared: dict[str, Any], d_out: Tensor, lse: Tensor, delta: Tensor, d_q: Tensor, scale: float, device: str):
    ragged = shared["RAGGED"]
    arguments = shared | dict(
        d_out=d_out, lse=lse, delta=delta, d_q=d_q, scale=scale, d_out_strides=strides_of(d_out, ragged),
        d_q_strides=strides_of(d_q, ragged), lse_strides=strides_of(lse[..., None], ragged),
    )  # fmt: skip
    return arguments, QUERIES.pick(device, *_sizes(shared))


def _keys_launch(
    shared: dict[str, Any], d_out: Tensor, lse: Tensor, delta: Tensor, d_k: Tensor, d_v: Tensor, scale: float, device: str
):
    ragged = shared["RAGGED"]
    arguments = shared | dict(
        d_out=d_out, lse=lse, delta=delta, d_k=d_k, d_v=d_v, scale=scale, d_out_strides=strides_of(d_out, ragged),
        d_k_strides=strides_of(d_k, ragged), d_v_strides=strides_of(d_v, ragged), lse_strides=strides_of(lse[..., None], ragged),
    )  # fmt: skip
    return arguments, KEYS.pick(device, *_sizes(shared))


def _remember(ctx, inputs, output):
    q, k, v, sink, slopes, q_offsets, k_offsets, key_mask, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output, sink, slopes, q_offsets, k_offsets, key_mask)


def _differentiate(ctx, d_out, d_lse):
    if ctx.needs_input_grad[4]:
        raise ValueError("alibi_slopes receive no gradient here; use a bias and another backend")
    d_q, d_k, d_v, d_sink = _attend_backward(d_out, d_lse, *ctx.saved_tensors, *ctx.options)
    return d_q, d_k, d_v, d_sink if ctx.needs_input_grad[3] else None, *[None] * 8


_attend.register_autograd(_differentiate, setup_context=_remember)


# ---- the public function ---------------------------------------------------------------------------------------------------------


def flash_attention(
    q: Float[Tensor, "*batch heads queries head_dim"],
    k: Float[Tensor, "*batch kv_heads keys head_dim"],
    v: Float[Tensor, "*batch kv_heads keys value_dim"],
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, " heads"] | None = None,
    alibi_slopes: Float[Tensor, " heads"] | None = None,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    cu_seqlens: Int[Tensor, " sequences+1"] | None = None,
    cu_seqlens_k: Int[Tensor, " sequences+1"] | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention of every query over the keys, in memory linear in both:

    .. math:: o_i = \sum_j \frac{e^{z_{ij}}}{e^{s_h} + \sum_j e^{z_{ij}}} v_j, \qquad
        z_{ij} = c \tanh(q_i \cdot k_j \cdot \mathrm{scale} / c) - m_h\,|i - j|

    Args:
        q, k, v: (batch, heads, tokens, width) each, fewer key heads than heads shared by groups; or ragged, without the batch
            axis, all sequences one after the other along the tokens.
        scale: factor of the dot product, 1 / sqrt(head_dim) by default.
        causal, window: as in :func:`mhlib.attention`: the last query of a sequence stands at its last key.
        softcap: c, the bound of the logits; None leaves out the tanh.
        sink: s, one logit per head that takes weight and gives nothing; receives a gradient.
        alibi_slopes: m, one slope per head; receives none.
        key_mask: True = a real key; not for ragged input.
        cu_seqlens: ragged input only: where each sequence begins among the queries, and the number of them at the end,
            (0, n_0, n_0 + n_1, ...). The lengths stay on the device.
        cu_seqlens_k: the same for the keys; ``cu_seqlens`` by default.
        return_lse: return (output, lse) with the log-sum-exp of the logits of each query, the sink among them, in float32.

    Returns:
        Like q, with the width of v. A query that sees no key gets zeros, and lse = -inf (without a sink).

    Raises:
        ValueError: shapes do not fit, or :func:`supports` says no.

    Source: Dao, "FlashAttention-2", arXiv 2307.08691; Zhai et al., "ByteTransformer", arXiv 2210.03052 (row 280).
    """
    ragged = cu_seqlens is not None
    check_shapes(q, k, v, ragged=ragged, key_mask=key_mask, sink=sink, alibi_slopes=alibi_slopes)
    _check_ragged(q, k, key_mask, cu_seqlens, cu_seqlens_k)
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap must be positive, got {softcap}")
    support = supports(q, k, v)
    if not support:
        raise ValueError(f"flash_attention cannot run: {support.reason}")
    left, right = window_sides(window, causal)
    right = 0 if causal else right
    offsets = None if cu_seqlens is None else cu_seqlens.int()
    k_offsets = offsets if cu_seqlens_k is None else cu_seqlens_k.int()
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if ragged:
        q, k, v = q[None], k[None], v[None]
    out, lse = _attend(
        q, k, v, sink, alibi_slopes, offsets, k_offsets, key_mask, scale, softcap or 0.0,
        -1 if left is None else left, -1 if right is None else right,
    )  # fmt: skip
    if ragged:
        out, lse = out[0], lse[0]
    return (out, lse) if return_lse else out


def check_shapes(
    q: Tensor, k: Tensor, v: Tensor, *, ragged: bool = False, key_mask: Tensor | None, sink: Tensor | None, alibi_slopes: Tensor | None
) -> None:
    """Raise a ValueError that names the shapes unless they fit together."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not (q.ndim == k.ndim == v.ndim == (3 if ragged else 4)):
        wanted = "(heads, tokens, width) with cu_seqlens" if ragged else "(batch, heads, tokens, width) without cu_seqlens"
        raise ValueError(f"q, k and v must be {wanted}, got {shapes}")
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or q.shape[:-3] != k.shape[:-3]:
        raise ValueError(f"q and k must be equally wide, k and v equally long, all with the same batch, got {shapes}")
    heads, kv_heads = q.shape[-3], k.shape[-3]
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"the number of key heads must divide the number of query heads, got {shapes}")
    for name, per_head in (("sink", sink), ("alibi_slopes", alibi_slopes)):
        if per_head is not None and per_head.shape != (heads,):
            raise ValueError(f"{name} must be (heads,) = ({heads},), got {tuple(per_head.shape)}")
    if key_mask is not None and not ragged:
        wanted = (k.shape[0], k.shape[2])
        if key_mask.dtype != torch.bool or key_mask.shape != wanted:
            raise ValueError(f"key_mask must be boolean (batch, keys) = {wanted}, got {key_mask.dtype} {tuple(key_mask.shape)}")


def _check_ragged(q: Tensor, k: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None) -> None:
    if cu_seqlens_k is not None and (cu_seqlens is None or cu_seqlens_k.shape != cu_seqlens.shape):
        raise ValueError("cu_seqlens_k needs cu_seqlens with as many sequences")
    if cu_seqlens is None:
        return
    if key_mask is not None:
        raise ValueError("ragged input has no padding to mask: leave key_mask out")
    if cu_seqlens_k is None and q.shape[1] != k.shape[1]:
        shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}"
        raise ValueError(f"queries and keys differ in number, so cu_seqlens_k is needed, got {shapes}")


def supports(q: Tensor, k: Tensor, v: Tensor) -> Support:
    """Whether the kernels can run on these tensors, and if not, why."""
    if max(q.shape[-1], v.shape[-1]) > WIDEST:
        return Support(False, f"heads are at most {WIDEST} wide, got {q.shape[-1]} and {v.shape[-1]}")
    return dtype_support("flash_attention", q, k, v)


WIDEST = 256


def counts(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, head_dim: int, value_dim: int, *, itemsize: int = 2,
    causal: bool = False, window: int | tuple[int | None, int | None] | None = None, backward: bool = False,
) -> Counts:  # fmt: skip
    """What one pass cannot do without: products over visible pairs alone, every tensor across the memory bus once.

    The backward pass makes the logits again: five products where the forward pass has two.
    """
    left, right = window_sides(window, causal)
    right = 0 if causal else right
    at = torch.arange(queries) + keys - queries
    first = torch.zeros_like(at) if left is None else (at - left).clamp_min(0)
    last = torch.full_like(at, keys) if right is None else (at + right + 1).clamp_max(keys)
    pairs = batch * heads * int((last - first).clamp_min(0).sum())
    products = 3 * head_dim + 2 * value_dim if backward else head_dim + value_dim
    q_side, kv_side = batch * heads * queries, batch * kv_heads * keys * (head_dim + value_dim)
    # forward: q, k, v in, out and lse out; backward: these and d_out in, three gradients out
    moved = q_side * (head_dim + value_dim) * (2 if backward else 1) + kv_side * (2 if backward else 1)
    return Counts(2 * pairs * products, (6 if backward else 4) * pairs, moved * itemsize + q_side * 4)


# ---- ahead of time ---------------------------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """Every row of the tables as causal grouped attention, and once per device class everything else at once."""
    for target, (bits, width, value_width), _ in FORWARD.each():
        dtype = torch.bfloat16 if bits == 16 else torch.float32
        name = f"{'bf16' if bits == 16 else 'fp32'} {width}/{value_width}"
        yield from _cases(target, name, dtype, width, value_width, spill_free=bits == 16)
        if (bits, width) == (16, 128):
            yield from _cases(target, "fp16 96/80 every option", torch.float16, 96, 80, everything=True)
            yield from _cases(target, "bf16 128 ragged", torch.bfloat16, 128, 128, ragged=True)


def _cases(
    target: str, name: str, dtype: torch.dtype, width: int, value_width: int, everything=False, ragged=False, spill_free=False
) -> Iterator[Case]:  # fmt: skip
    empty = lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")  # noqa: E731
    batch, heads, kv_heads, tokens = (1 if ragged else 2), 8, 2, 1024
    q, k = empty(batch, heads, tokens, width), empty(batch, kv_heads, tokens, width)
    v, out = empty(batch, kv_heads, tokens, value_width), empty(batch, heads, tokens, value_width)
    lse = empty(batch, heads, tokens, dtype=torch.float32)
    per_head = empty(heads, dtype=torch.float32) if everything else None
    offsets = empty(5, dtype=torch.int32) if ragged else None
    key_mask = empty(batch, tokens, dtype=torch.bool) if everything else None
    softcap, left, right = (30.0, 256, 64) if everything else (0.0, -1, 0)
    shared = _arguments(q, k, v, per_head, offsets, offsets, key_mask, width**-0.5, softcap, left, right, target)
    for label, kernel, (arguments, chosen) in (
        ("forward", _forward, _forward_launch(shared, out, lse, per_head, target)),
        ("backward q", _backward_of_queries, _queries_launch(shared, out, lse, lse, q, 1.0, target)),
        ("backward kv", _backward_of_keys, _keys_launch(shared, out, lse, lse, k, v, 1.0, target)),
    ):
        yield Case(f"flash {label} {name}", kernel, target, arguments, chosen, spill_free)
    if everything:
        arguments, chosen = _delta_launch(shared, out, out, lse, lse, target)
        yield Case("flash row products fp16", _row_products, target, arguments, chosen, True)
