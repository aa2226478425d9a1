"""Triton functions for online softmax: which keys a query sees, the logits, and one more block of keys in the running sums."""

from math import log

import triton
import triton.language as tl

LOG2E = tl.constexpr(1 / log(2))
LN2 = tl.constexpr(log(2))


@triton.jit
def key_range(start, keys, offset, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Keys [first, last) that queries [start, start + ROWS) see; all of them see all of the keys in [full, rest).

    Query i stands at key i + offset. ``first``, ``full`` and ``rest`` are multiples of BLOCK.
    """
    first = 0
    full = 0
    last = keys
    rest = keys // BLOCK * BLOCK
    if LEFT:
        first = tl.maximum(start + offset - left, 0) // BLOCK * BLOCK
        full = tl.cdiv(tl.maximum(start + ROWS - 1 + offset - left, 0), BLOCK) * BLOCK
    if RIGHT:
        last = tl.minimum(keys, start + ROWS + offset + right)
        rest = tl.minimum(rest, tl.maximum(start + offset + right + 1, 0) // BLOCK * BLOCK)
    return first, full, tl.maximum(rest, full), last


@triton.jit
def block_counts(first, full, rest, last, BLOCK: tl.constexpr):
    """How many blocks: cut by the left edge, seen whole, cut by either edge or the end."""
    left = tl.cdiv(tl.maximum(tl.minimum(full, last) - first, 0), BLOCK)
    right = tl.cdiv(tl.maximum(last - rest, 0), BLOCK)
    return left, tl.cdiv(tl.maximum(tl.minimum(rest, last) - full, 0), BLOCK), left + right


@triton.jit
def block_start(i, first, full, rest, left_edge, EDGE: tl.constexpr, LEFT: tl.constexpr, BLOCK: tl.constexpr):
    """Where the i-th block of a loop begins."""
    at = full + i * BLOCK
    if EDGE:
        at = rest + i * BLOCK
        if LEFT:
            at = tl.where(i < left_edge, first + i * BLOCK, rest + (i - left_edge) * BLOCK)
    return at


@triton.jit
def sees_of(query, key, offset, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Whether queries see keys: two index tensors that broadcast, one of them with its bounds in it."""
    sees = (query >= 0) & (key >= 0)
    if LEFT:
        sees = sees & (key >= query + offset - left)
    if RIGHT:
        sees = sees & (key <= query + offset + right)
    return sees


@triton.jit
def logits_of(product, distance, slope, factor, softcap, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr):
    """Products of queries and keys to logits in base 2, and the soft-cap's derivative."""
    logits = product * factor
    slant = 1.0
    if SOFTCAP:
        bent = 1.0 - 2.0 / (1.0 + tl.exp2(logits))  # tanh: ``factor`` has 2 log2(e) / softcap in it
        logits = bent * softcap
        slant = 1.0 - bent * bent
    if ALIBI:
        logits -= slope * tl.abs(distance)
    return logits, slant


@triton.jit
def softmax_step(logits, v_tile, top, norm, total, ACC: tl.constexpr, PRECISION: tl.constexpr):
    """The highest logit, the sum of 2^(logit - top) and the weighted sum of values, with these keys taken in."""
    higher = tl.maximum(top, tl.max(logits, 1))
    shift = tl.where(higher == float("-inf"), 0.0, higher)  # no key so far: -inf - -inf would be NaN
    weights = tl.exp2(logits - shift[:, None])
    decay = tl.exp2(top - shift)
    norm = norm * decay + tl.sum(weights, 1)
    total = tl.dot(weights.to(v_tile.dtype), v_tile, total * decay[:, None], input_precision=PRECISION, out_dtype=ACC)
    return higher, norm, total
