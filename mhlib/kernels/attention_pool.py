"""Attention pooling in one pass: a few learned queries read a whole set, whose keys and values cross the memory bus once.

Reference: :func:`mhlib.attention` with ``backend="reference"``. All queries of the heads that share keys form one tile, so K and V are
read once for all of them; a long set is cut into parts, each with an online softmax of its own, and the parts merge by their
log-sum-exps. The backward pass reads K and V once more and leaves all three gradients; no atomics, two runs agree to the bit.

Products are made in the precision of their inputs: with so few queries they hide behind the memory bus also in float32, without
tensor cores. Conditions: float16, bfloat16 or float32 on the device (float64 in the interpreter, bfloat16 not there), widths up to 256. The queries
of a key head are held in 16 KiB, which is 64 of 128 half-precision numbers; more of them are work for flash attention.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867; the merge of parts: Shyam et al.,
"Tree attention", arXiv 2408.04093.
"""

from collections.abc import Iterator
from typing import Any, Optional

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mhlib.functional.precision import accumulator
from mhlib.functional.request import Support
from mhlib.kernels.aot import Case
from mhlib.kernels.launch import Counts, Launch, Table, launch
from mhlib.kernels.online import LN2, LOG2E, softmax_step
from mhlib.kernels.parts import check_sets, dtype_support, part_size, parts_of
from mhlib.kernels.targets import device_class
from mhlib.kernels.tiles import as_bytes, kept, load_rows, padded, row_base, row_tile, row_tiles, store_rows, strides_of

__all__ = ["attention_pool"]

WIDEST, HELD = 256, 16384  # of a head, and bytes of queries

# ---- launch tables: (device class, bits, wider of keys and values, rows of queries) --------------------------------------------------

_SIZES = ("bits", "width", "rows")
FORWARD = Table(
    "attention_pool forward", _SIZES,
    {
        ("interpreter", 64, 256, 64): Launch({"BLOCK_N": 16}),
        ("any", 16, 128, 64): Launch({"BLOCK_N": 64}, 4, 2),
        ("any", 16, 256, 32): Launch({"BLOCK_N": 32}, 4, 2),
        ("any", 32, 128, 32): Launch({"BLOCK_N": 16}, 8, 2),
        ("any", 32, 256, 16): Launch({"BLOCK_N": 16}, 4, 2),
    },
)  # fmt: skip
BACKWARD = Table(
    "attention_pool backward", _SIZES,
    {
        ("interpreter", 64, 256, 64): Launch({"BLOCK_N": 16}),
        ("any", 16, 128, 64): Launch({"BLOCK_N": 32}, 4, 1),
        ("any", 16, 256, 32): Launch({"BLOCK_N": 16}, 4, 1),
        ("any", 32, 128, 32): Launch({"BLOCK_N": 16}, 4, 1),
        ("any", 32, 256, 16): Launch({"BLOCK_N": 16}, 8, 1),
    },
)  # fmt: skip
MERGE = Table(
    "attention_pool merge", ("width",), {("interpreter", 256): Launch({"BLOCK_P": 2}), ("any", 256): Launch({"BLOCK_P": 16}, 2, 1)}
)

# ---- the kernels -----------------------------------------------------------------------------------------------------------------
# ``rows`` are the queries of all heads of a group, one after the other: row 0 of key head h is row h * rows of ``q`` and ``out``.


@triton.jit(do_not_specialize=["tokens", "batch"])
def _forward(
    q, k, v, out, lse, offsets, key_mask, q_stride, k_strides, v_strides, factor, tokens, batch, kv_heads, rows,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    PART: tl.constexpr, SHARED: tl.constexpr, KEY_MASK: tl.constexpr, RAGGED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """What the queries of one key head find in one part of a set: normalised output, and log-sum-exp in base 2."""
    part = tl.program_id(0)
    head = tl.program_id(1)
    sequence, first, length, start = row_tile(part, offsets, tokens, batch, PART, RAGGED)
    if start >= length:
        return
    k = row_base(k, sequence, head, first, k_strides)
    v = row_base(v, sequence, head, first, v_strides)
    row = tl.arange(0, ROWS)
    q += tl.cast(sequence, tl.int64) * q_stride
    q_tile = load_rows(q, head * rows, D, row < rows, ROWS, D, BLOCK_D, True)
    top = tl.full([ROWS], float("-inf"), ACC)  # the highest logit so far
    norm = tl.zeros([ROWS], ACC)  # the sum of 2^(logit - top)
    total = tl.zeros([ROWS, BLOCK_DV], ACC)
    for at in range(start, tl.minimum(start + PART, length), BLOCK_N):
        keep = kept(key_mask, tl.cast(sequence, tl.int64) * tokens, at + tl.arange(0, BLOCK_N), length, KEY_MASK)
        k_tile = load_rows(k, at, k_strides[2], keep, BLOCK_N, D, BLOCK_D, True)
        logits = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee", out_dtype=ACC) * factor
        logits = tl.where(keep[None, :], logits, float("-inf"))
        if SHARED:
            v_tile = k_tile
        else:
            v_tile = load_rows(v, at, v_strides[2], keep, BLOCK_N, DV, BLOCK_DV, True)
        top, norm, total = softmax_step(logits, v_tile, top, norm, total, ACC, "ieee")
    norm = tl.where(norm == 0.0, 1.0, norm)  # nothing but padding: zeros, and -inf
    begin = (tl.cast(part, tl.int64) * kv_heads + head) * rows
    store_rows(out, begin, DV, total / norm[:, None], row < rows, ROWS, DV, BLOCK_DV)
    tl.store(lse + begin + row, top + tl.log2(norm), mask=row < rows)


@triton.jit(do_not_specialize=["tokens"])
def _merge(
    parts_out, parts_lse, out, lse, offsets, tokens, rows, DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_P: tl.constexpr,
    PART: tl.constexpr, RAGGED: tl.constexpr, SOFTMAX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """One row of a set from those of its parts: their mean with weights 2^lse, or without SOFTMAX their plain sum."""
    sequence = tl.program_id(0)
    row = tl.program_id(1)
    first, count = parts_of(sequence, offsets, tokens, PART, RAGGED)
    column = tl.arange(0, BLOCK_DV)
    top = tl.full([1], float("-inf"), ACC)
    norm = tl.zeros([1], ACC)
    total = tl.zeros([BLOCK_DV], ACC)
    for at in range(0, count, BLOCK_P):
        inside = at + tl.arange(0, BLOCK_P) < count
        place = tl.cast(first + at + tl.arange(0, BLOCK_P), tl.int64) * rows + row
        piece = tl.load(
            parts_out + place[:, None] * DV + column[None, :], mask=inside[:, None] & (column < DV)[None, :], other=0.0
        )
        if SOFTMAX:
            logits = tl.load(parts_lse + place, mask=inside, other=float("-inf"))
            higher = tl.maximum(top, tl.max(logits, 0))
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(logits - shift)
            decay = tl.exp2(top - shift)
            norm = norm * decay + tl.sum(weights, 0)
            total = total * decay + tl.sum(weights[:, None] * piece, 0)
            top = higher
        else:
            total += tl.sum(piece, 0)
    place = tl.cast(sequence, tl.int64) * rows + row
    if SOFTMAX:
        norm = tl.where(norm == 0.0, 1.0, norm)
        total = total / norm
        tl.store(lse + place + tl.arange(0, 1), top + tl.log2(norm))
    tl.store(out + place * DV + column, total.to(out.dtype.element_ty), mask=column < DV)


@triton.jit(do_not_specialize=["tokens", "batch"])
def _backward(
    q, k, v, d_out, lse, delta, d_q, d_k, d_v, offsets, key_mask, q_stride, k_strides, v_strides, d_k_strides, d_v_strides,
    scale, factor, tokens, batch, kv_heads, rows,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    PART: tl.constexpr, SHARED: tl.constexpr, KEY_MASK: tl.constexpr, RAGGED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Gradients of the keys and values of a part, and what it adds to the gradient of the queries: ds = w (dp - delta)."""
    part = tl.program_id(0)
    head = tl.program_id(1)
    sequence, first, length, start = row_tile(part, offsets, tokens, batch, PART, RAGGED)
    if start >= length:
        return
    k = row_base(k, sequence, head, first, k_strides)
    v = row_base(v, sequence, head, first, v_strides)
    d_k = row_base(d_k, sequence, head, first, d_k_strides)
    d_v = row_base(d_v, sequence, head, first, d_v_strides)
    row = tl.arange(0, ROWS)
    inside = row < rows
    q += tl.cast(sequence, tl.int64) * q_stride
    q_tile = load_rows(q, head * rows, D, inside, ROWS, D, BLOCK_D, True)
    begin = (tl.cast(sequence, tl.int64) * kv_heads + head) * rows
    d_out_tile = load_rows(d_out, begin, DV, inside, ROWS, DV, BLOCK_DV, True)
    log_norm = tl.load(lse + begin + row, mask=inside, other=0.0)
    taken = tl.load(delta + begin + row, mask=inside, other=0.0)
    total = tl.zeros([ROWS, BLOCK_D], ACC)
    for at in range(start, tl.minimum(start + PART, length), BLOCK_N):
        token = at + tl.arange(0, BLOCK_N)
        keep = kept(key_mask, tl.cast(sequence, tl.int64) * tokens, token, length, KEY_MASK)
        k_tile = load_rows(k, at, k_strides[2], keep, BLOCK_N, D, BLOCK_D, True)
        if SHARED:
            v_tile = k_tile
        else:
            v_tile = load_rows(v, at, v_strides[2], keep, BLOCK_N, DV, BLOCK_DV, True)
        logits = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee", out_dtype=ACC) * factor
        weights = tl.where(keep[:, None] & inside[None, :], tl.exp2(logits - log_norm[None, :]), 0.0)
        d_weights = tl.dot(v_tile, tl.trans(d_out_tile), input_precision="ieee", out_dtype=ACC)
        d_logits = weights * (d_weights - taken[None, :])
        d_v_tile = tl.dot(weights.to(d_out_tile.dtype), d_out_tile, input_precision="ieee", out_dtype=ACC)
        d_k_tile = tl.dot(d_logits.to(q_tile.dtype), q_tile, input_precision="ieee", out_dtype=ACC) * scale
        if SHARED:
            d_k_tile += d_v_tile
        else:
            store_rows(d_v, at, d_v_strides[2], d_v_tile, token < length, BLOCK_N, DV, BLOCK_DV)
        store_rows(d_k, at, d_k_strides[2], d_k_tile, token < length, BLOCK_N, D, BLOCK_D)
        total = tl.dot(tl.trans(d_logits).to(k_tile.dtype), k_tile, total, input_precision="ieee", out_dtype=ACC)
    place = (tl.cast(part, tl.int64) * kv_heads + head) * rows
    store_rows(d_q, place, D, total * scale, inside, ROWS, D, BLOCK_D)


# ---- arguments: the same for a launch and for compiling ahead of time ---------------------------------------------------------------


def _arguments(
    table: Table, q: Tensor, k: Tensor, v: Tensor | None, offsets: Tensor | None, key_mask: Tensor | None, scale: float, device: str
) -> tuple[dict[str, Any], Launch]:
    """What both passes take: q (batch or 1, heads, queries, D), k and v (batch, kv_heads, tokens, width), v None for v = k."""
    ragged, shared = offsets is not None, v is None
    v = k if shared else v
    width, v_width = padded(q.shape[3]), padded(v.shape[3])
    rows = q.shape[1] // k.shape[1] * q.shape[2]
    chosen = table.pick(device, q.dtype.itemsize * 8, max(width, v_width), padded(rows))
    batch = offsets.shape[0] - 1 if ragged else k.shape[0]
    return dict(
        q=q, k=k, v=v, offsets=offsets, key_mask=as_bytes(key_mask), q_stride=q.stride(0) if q.shape[0] > 1 else 0,
        k_strides=strides_of(k, ragged), v_strides=strides_of(v, ragged), factor=scale * LOG2E.value, tokens=k.shape[2], batch=batch,
        kv_heads=k.shape[1], rows=rows, D=q.shape[3], DV=v.shape[3], BLOCK_D=width, BLOCK_DV=v_width, ROWS=padded(rows),
        PART=part_size(k.shape[2], batch, chosen.blocks["BLOCK_N"], k.shape[1], ragged), SHARED=shared,
        KEY_MASK=key_mask is not None, RAGGED=ragged, ACC=tl.float64 if q.dtype == torch.float64 else tl.float32,
    ), chosen  # fmt: skip


def _merge_arguments(shared: dict[str, Any], parts: Tensor, parts_lse: Tensor | None, out: Tensor, lse: Tensor | None, device: str):
    width = padded(out.shape[3])
    return dict(
        parts_out=parts, parts_lse=parts_lse, out=out, lse=lse, offsets=shared["offsets"], tokens=shared["tokens"],
        rows=shared["kv_heads"] * shared["rows"], DV=out.shape[3], BLOCK_DV=width, PART=shared["PART"], RAGGED=shared["RAGGED"],
        SOFTMAX=lse is not None, ACC=shared["ACC"],
    ), MERGE.pick(device, width)  # fmt: skip


def _parts(shared: dict[str, Any]) -> int:
    return row_tiles(shared["tokens"], shared["batch"], shared["PART"], shared["RAGGED"])


def _prepared(q: Tensor, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows of queries one after the other; columns of keys and values side by side."""
    unit = lambda x: x if x is None or x.stride(-1) == 1 else x.contiguous()  # noqa: E731
    return q.contiguous(), unit(k), unit(v)


# ---- operators -------------------------------------------------------------------------------------------------------------------


@torch.library.custom_op("mhlib::attention_pool", mutates_args=())
def _pool(
    q: Tensor, k: Tensor, v: Optional[Tensor], offsets: Optional[Tensor], key_mask: Optional[Tensor], scale: float
) -> tuple[Tensor, Tensor]:
    """The pooled vectors (sets, heads, queries, value_dim), and the log-sum-exp in base 2."""
    device = device_class(k.device)
    q, k, v = _prepared(q, k, v)
    out, lse = _outputs(q, k, v, offsets)
    shared, chosen = _arguments(FORWARD, q, k, v, offsets, key_mask, scale, device)
    parts, per_set = _parts(shared), out.shape[1:]
    # One part per set: what it finds is the result.
    whole = offsets is None and parts == out.shape[0]
    parts_out = out if whole else lse.new_empty(parts, *per_set)
    parts_lse = lse if whole else lse.new_empty(parts, *per_set[:2])
    launch(_forward, (parts, k.shape[1]), shared | dict(out=parts_out, lse=parts_lse), chosen)
    if not whole:
        arguments, chosen = _merge_arguments(shared, parts_out, parts_lse, out, lse, device)
        launch(_merge, (out.shape[0], per_set[0] * per_set[1]), arguments, chosen)
    return out, lse


@_pool.register_fake
def _(q, k, v, offsets, key_mask, scale):
    return _outputs(q, k, v, offsets)


def _outputs(q: Tensor, k: Tensor, v: Tensor | None, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
    sets = k.shape[0] if offsets is None else offsets.shape[0] - 1
    out = q.new_empty(sets, q.shape[1], q.shape[2], (k if v is None else v).shape[3])
    return out, out.new_empty(out.shape[:3], dtype=accumulator(q.dtype))


@torch.library.custom_op("mhlib::attention_pool_backward", mutates_args=())
def _pool_backward(
    d_out: Tensor, d_lse: Tensor, q: Tensor, k: Tensor, v: Optional[Tensor], out: Tensor, lse: Tensor, offsets: Optional[Tensor],
    key_mask: Optional[Tensor], scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    device = device_class(k.device)
    q, k, v = _prepared(q, k, v)
    d_q, d_k, d_v = _gradients(q, k, v)
    d_out = d_out.contiguous()
    # The gradient of lse counts in nats: d lse / d logit is the weight.
    delta = (out.to(lse.dtype) * d_out).sum(-1) - d_lse * LOG2E.value
    shared, chosen = _arguments(BACKWARD, q, k, v, offsets, key_mask, scale, device)
    parts = lse.new_empty(_parts(shared), *q.shape[1:])
    arguments = _backward_arguments(shared, d_out, lse, delta, parts, d_k, k if v is None else d_v, scale)
    launch(_backward, (parts.shape[0], k.shape[1]), arguments, chosen)
    per_set = lse.new_empty(out.shape[0], *q.shape[1:])
    arguments, chosen = _merge_arguments(shared, parts, None, per_set, None, device)
    launch(_merge, (per_set.shape[0], q.shape[1] * q.shape[2]), arguments, chosen)
    d_q.copy_(per_set if q.shape[0] == per_set.shape[0] else per_set.sum(0, keepdim=True))
    return d_q, d_k, d_v


@_pool_backward.register_fake
def _(d_out, d_lse, q, k, v, out, lse, offsets, key_mask, scale):
    return _gradients(q, k, v)


def _gradients(q: Tensor, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), k.new_empty(0) if v is None else torch.empty_like(v)


def _backward_arguments(shared: dict[str, Any], d_out, lse, delta, parts, d_k, d_v, scale: float) -> dict[str, Any]:
    ragged = shared["RAGGED"]
    return shared | dict(
        d_out=d_out, lse=lse, delta=delta, d_q=parts, d_k=d_k, d_v=d_v, d_k_strides=strides_of(d_k, ragged),
        d_v_strides=strides_of(d_v, ragged), scale=scale,
    )  # fmt: skip


def _remember(ctx, inputs, output):
    q, k, v, offsets, key_mask, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, offsets, key_mask)


def _differentiate(ctx, d_out, d_lse):
    d_q, d_k, d_v = _pool_backward(d_out, d_lse, *ctx.saved_tensors, ctx.scale)
    return d_q, d_k, None if ctx.saved_tensors[2] is None else d_v, None, None, None


_pool.register_autograd(_differentiate, setup_context=_remember)


# ---- the public function ---------------------------------------------------------------------------------------------------------


def attention_pool(
    q: Float[Tensor, "*sets heads queries head_dim"],
    k: Float[Tensor, "*batch kv_heads tokens head_dim"],
    v: Float[Tensor, "*batch kv_heads tokens value_dim"] | None = None,
    *,
    scale: float | None = None,
    key_mask: Bool[Tensor, "batch tokens"] | None = None,
    cu_seqlens: Int[Tensor, " sets+1"] | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""What a few queries read out of each set of tokens:

    .. math:: o_m = \sum_n \frac{e^{z_{mn}}}{\sum_{n'} e^{z_{mn'}}} v_n, \qquad z_{mn} = q_m \cdot k_n \cdot \mathrm{scale}

    Args:
        q: (heads, queries, head_dim), learned and the same for all sets, or (sets, heads, queries, head_dim).
        k, v: (batch, kv_heads, tokens, width); or ragged, (kv_heads, total, width), the sets one after the other. ``kv_heads``
            divides ``heads``. Without ``v`` the keys are the values too, and are read once.
        scale: factor of the dot product, 1 / sqrt(head_dim) by default.
        key_mask: True = a real token; not for ragged input.
        cu_seqlens: ragged input only: where each set begins, and the number of tokens at the end, (0, n_0, n_0 + n_1, ...).
            The lengths stay on the device.
        return_lse: return (output, lse) with the log-sum-exp (sets, heads, queries) of the logits, in float32.

    Returns:
        (sets, heads, queries, value_dim). A set without a token gives zeros, and lse = -inf.

    Raises:
        ValueError: shapes do not fit, or :func:`supports` says no.

    Source: Milakov and Gimelshein, arXiv 1805.02867 (online softmax); Lee et al., "Set transformer", arXiv 1810.00825 (the pool).
    """
    _check(q, k, v, key_mask, cu_seqlens)
    support = supports(q, k, v)
    if not support:
        raise ValueError(f"attention_pool cannot run: {support.reason}")
    q = q[None] if q.ndim == 3 else q
    offsets = None
    if cu_seqlens is not None:
        k, v, offsets = k[None], None if v is None else v[None], cu_seqlens.int()
    out, lse = _pool(q, k, v, offsets, key_mask, q.shape[-1] ** -0.5 if scale is None else float(scale))
    return (out, lse * LN2.value) if return_lse else out


def _check(q: Tensor, k: Tensor, v: Tensor | None, key_mask: Tensor | None, cu_seqlens: Tensor | None) -> None:
    ragged, values = cu_seqlens is not None, k if v is None else v
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {None if v is None else tuple(v.shape)}"
    if k.ndim != (3 if ragged else 4) or values.ndim != k.ndim:
        wanted = "(kv_heads, total, width) with cu_seqlens" if ragged else "(batch, kv_heads, tokens, width) without cu_seqlens"
        raise ValueError(f"k and v must be {wanted}, got {shapes}")
    if q.ndim not in (3, 4):
        raise ValueError(f"q must be (heads, queries, head_dim) or (sets, heads, queries, head_dim), got {shapes}")
    check_sets((k.shape[0], k.shape[-2]), key_mask, cu_seqlens)
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != values.shape[:-1]:
        raise ValueError(f"q and k must be equally wide, k and v equally many, got {shapes}")
    if k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]:
        raise ValueError(f"the number of key heads must divide the number of query heads, got {shapes}")
    sets = len(cu_seqlens) - 1 if cu_seqlens is not None else k.shape[0]
    if q.ndim == 4 and q.shape[0] not in (1, sets):
        raise ValueError(f"q must have one set of queries for all or one for each of the {sets} sets, got {shapes}")


def supports(q: Tensor, k: Tensor, v: Tensor | None = None) -> Support:
    """Whether the kernels can run on these tensors, and if not, why."""
    v = k if v is None else v
    if max(q.shape[-1], v.shape[-1]) > WIDEST:
        return Support(False, f"heads are at most {WIDEST} wide, got {q.shape[-1]} and {v.shape[-1]}")
    rows = q.shape[-3] // k.shape[-3] * q.shape[-2]
    most = HELD // (q.dtype.itemsize * max(padded(q.shape[-1]), padded(v.shape[-1])))
    if padded(rows) > most:
        wide = max(q.shape[-1], v.shape[-1])
        return Support(False, f"a key head serves at most {most} queries of width {wide} in {q.dtype}, got {rows}: use flash_attention")
    return dtype_support("attention_pool", q, k, v)


def counts(
    sets: int, heads: int, kv_heads: int, queries: int, tokens: int, head_dim: int, value_dim: int, *, itemsize: int = 2,
    shared: bool = False, per_set: bool = False, backward: bool = False,
) -> Counts:  # fmt: skip
    """What one pass cannot do without; ``tokens`` are those of all sets, ``shared`` says v = k, ``per_set`` that queries differ.

    Keys and values go in once, their gradients out once; the logits of the backward pass are made again.
    """
    pairs = heads * queries * tokens
    products = 3 * head_dim + 2 * value_dim if backward else head_dim + value_dim
    passes = 2 if backward else 1
    token_side = kv_heads * tokens * (head_dim + (0 if shared else value_dim))
    query_side = heads * queries * (head_dim * (sets if per_set else 1) + sets * value_dim)
    moved = passes * (token_side + query_side) * itemsize + sets * heads * queries * 4
    return Counts(2 * pairs * products, (6 if backward else 4) * pairs, moved)


# ---- ahead of time ---------------------------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """Every row of the tables with a full tile of queries and ragged sets, and once one query, with a mask and keys as values."""
    for target, (bits, width, rows), _ in FORWARD.each():
        dtype = torch.bfloat16 if bits == 16 else torch.float32
        yield from _cases(target, f"{'bf16' if bits == 16 else 'fp32'} {width}", dtype, width, queries=rows, ragged=True)
        if (bits, width) == (16, 128):
            yield from _cases(target, "fp16 96 one query shared masked", torch.float16, 96, queries=1, everything=True)


def _cases(target: str, name: str, dtype: torch.dtype, width: int, queries: int, ragged=False, everything=False) -> Iterator[Case]:
    empty = lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")  # noqa: E731
    batch, heads, tokens = (1 if ragged else 16), 8, 1024
    q, k = empty(1, heads, queries, width), empty(batch, heads, tokens, width)
    v = None if everything else k
    offsets = empty(17, dtype=torch.int32) if ragged else None
    key_mask = empty(batch, tokens, dtype=torch.bool) if everything else None
    out, lse = _outputs(q, k, v, offsets)
    shared, chosen = _arguments(FORWARD, q, k, v, offsets, key_mask, 0.1, target)
    parts = lse.new_empty(64, *out.shape[1:])
    yield Case(f"pool forward {name}", _forward, target, shared | dict(out=parts, lse=lse), chosen)
    if everything:
        arguments, chosen = _merge_arguments(shared, parts, lse, out, lse, target)
        yield Case(f"pool merge {name}", _merge, target, arguments, chosen)
    shared, chosen = _arguments(BACKWARD, q, k, v, offsets, key_mask, 0.1, target)
    arguments = _backward_arguments(shared, out, lse, lse, parts, k, k, 0.1)
    yield Case(f"pool backward {name}", _backward, target, arguments, chosen)
