"""Weighted mean and standard deviation of every channel, in one pass over the tokens.

Reference: :func:`mhlib.functional.weighted_statistics`. A tile of tokens gives its weight, mean and sum of squared deviations in
registers, and these merge as in Chan et al., so a large mean does not swallow a small deviation, as it does in mean of squares
minus square of mean. A long set is cut into parts that merge in the same way. The backward pass is one more pass over the tokens; no
atomics, two runs agree to the bit.

Conditions: float16, bfloat16 or float32 on the device (float64 in the interpreter, bfloat16 not there); any order in memory.

Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
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
from mhlib.kernels.parts import (
    check_tokens, dtype_support, part_size, parts_of, token_base, token_pointers,
)  # fmt: skip
from mhlib.kernels.targets import device_class
from mhlib.kernels.tiles import as_bytes, kept, row_tile, row_tiles, strides_of

__all__ = ["statistics_pool"]

# ---- launch tables: (device class, bits) ---------------------------------------------------------------------------------------------

FORWARD = Table(
    "statistics_pool forward", ("bits",),
    {
        ("interpreter", 64): Launch({"BLOCK_N": 16, "BLOCK_C": 16}),
        ("any", 16): Launch({"BLOCK_N": 64, "BLOCK_C": 64}, 4, 2),
        ("any", 32): Launch({"BLOCK_N": 32, "BLOCK_C": 64}, 4, 2),
    },
)  # fmt: skip
MERGE = Table(
    "statistics_pool merge", (),
    {("interpreter",): Launch({"BLOCK_P": 2, "BLOCK_C": 16}), ("any",): Launch({"BLOCK_P": 16, "BLOCK_C": 64}, 4, 1)},
)  # fmt: skip
BACKWARD = Table(
    "statistics_pool backward", ("bits",),
    {
        ("interpreter", 64): Launch({"BLOCK_N": 16, "BLOCK_C": 16}),
        ("any", 16): Launch({"BLOCK_N": 64, "BLOCK_C": 64}, 4, 1),
        ("any", 32): Launch({"BLOCK_N": 32, "BLOCK_C": 64}, 4, 1),
    },
)  # fmt: skip

# ---- the kernels -----------------------------------------------------------------------------------------------------------------
# WEIGHTS: 0 none, 1 one per token, 2 one per token and group of WIDTH channels.


@triton.jit
def _weights(w, start, keep, channel, inside, strides, WEIGHTS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, ACC: tl.constexpr):
    """The weights of a tile (ROWS, channels); zero where there is no real token or no channel."""
    real = keep[:, None] & inside[None, :]
    if WEIGHTS == 0:
        weight = real.to(ACC)
    elif WEIGHTS == 1:
        at = w + (tl.cast(start, tl.int64) + tl.arange(0, ROWS)) * strides[1]
        weight = tl.where(inside[None, :], tl.load(at, mask=keep, other=0.0).to(ACC)[:, None], 0.0)
    else:
        weight = tl.load(token_pointers(w, start, channel // WIDTH, strides, ROWS), mask=real, other=0.0).to(ACC)
    return weight


@triton.jit
def _moments(weight, x, within):
    """Weight, mean and sum of squared deviations of the rows of a tile, ``within`` being squared deviations that rows already have."""
    total = tl.sum(weight, 0)
    some = tl.where(total == 0.0, 1.0, total)
    mean = tl.sum(weight * x, 0) / some
    apart = x - mean[None, :]
    rest = tl.sum(weight * apart, 0)  # zero but for rounding, which this takes off
    return total, mean + rest / some, tl.sum(within + weight * apart * apart, 0) - rest * rest / some


@triton.jit
def _merged(total, mean, square, other_total, other_mean, other_square):
    """The moments of two sets of tokens from those of each."""
    both = total + other_total
    share = other_total / tl.where(both == 0.0, 1.0, both)
    apart = other_mean - mean
    return both, mean + apart * share, square + other_square + apart * apart * total * share


@triton.jit(do_not_specialize=["tokens", "batch"])
def _forward(
    x, w, parts, offsets, key_mask, x_strides, w_strides, tokens, batch, channels, number,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, PART: tl.constexpr, WEIGHTS: tl.constexpr, WIDTH: tl.constexpr,
    KEY_MASK: tl.constexpr, RAGGED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The moments of some channels over one part of a set: three rows of ``parts`` (3, number, channels)."""
    part = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < channels
    sequence, first, length, start = row_tile(part, offsets, tokens, batch, PART, RAGGED)
    if start >= length:
        return
    x = token_base(x, sequence, first, x_strides)
    if WEIGHTS:
        w = token_base(w, sequence, first, w_strides)
    total = tl.zeros([BLOCK_C], ACC)
    mean = tl.zeros([BLOCK_C], ACC)
    square = tl.zeros([BLOCK_C], ACC)
    for at in range(start, tl.minimum(start + PART, length), BLOCK_N):
        keep = kept(key_mask, tl.cast(sequence, tl.int64) * tokens, at + tl.arange(0, BLOCK_N), length, KEY_MASK)
        weight = _weights(w, at, keep, channel, inside, w_strides, WEIGHTS, WIDTH, BLOCK_N, ACC)
        real = keep[:, None] & inside[None, :]
        tile = tl.load(token_pointers(x, at, channel, x_strides, BLOCK_N), mask=real, other=0.0).to(ACC)
        more, here, squares = _moments(weight, tile, 0.0)
        total, mean, square = _merged(total, mean, square, more, here, squares)
    at = parts + tl.cast(part, tl.int64) * channels + channel
    step = tl.cast(number, tl.int64) * channels
    tl.store(at, total, mask=inside)
    tl.store(at + step, mean, mask=inside)
    tl.store(at + 2 * step, square, mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _merge(
    parts, out, offsets, tokens, channels, number, sets, floor,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, PART: tl.constexpr, RAGGED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Weight, mean and deviation of a set, from the moments of its parts: rows of ``out`` (3, sets, channels)."""
    sequence = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < channels
    first, count = parts_of(sequence, offsets, tokens, PART, RAGGED)
    step = tl.cast(number, tl.int64) * channels
    total = tl.zeros([BLOCK_C], ACC)
    mean = tl.zeros([BLOCK_C], ACC)
    square = tl.zeros([BLOCK_C], ACC)
    for at in range(0, count, BLOCK_P):
        part = at + tl.arange(0, BLOCK_P)
        real = (part < count)[:, None] & inside[None, :]
        place = parts + tl.cast(first + part, tl.int64)[:, None] * channels + channel[None, :]
        weight = tl.load(place, mask=real, other=0.0)
        means = tl.load(place + step, mask=real, other=0.0)
        more, here, squares = _moments(weight, means, tl.load(place + 2 * step, mask=real, other=0.0))
        total, mean, square = _merged(total, mean, square, more, here, squares)
    deviation = tl.sqrt(tl.maximum(square / tl.where(total == 0.0, 1.0, total), 0.0))
    deviation = tl.where(deviation > floor, deviation, tl.zeros([BLOCK_C], ACC) + floor)  # a bare float would be float32
    at = out + tl.cast(sequence, tl.int64) * channels + channel
    step = tl.cast(sets, tl.int64) * channels
    tl.store(at, total, mask=inside)
    tl.store(at + step, mean, mask=inside)
    tl.store(at + 2 * step, tl.where(total == 0.0, 0.0, deviation), mask=inside)


@triton.jit(do_not_specialize=["tokens", "batch"])
def _backward(
    x, w, d_x, d_w, found, d_found, offsets, key_mask, x_strides, w_strides, d_x_strides, d_w_strides, tokens, batch, channels, sets,
    floor, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, WEIGHTS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
    KEY_MASK: tl.constexpr, RAGGED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of tokens, over SPAN channels: those of a group, whose weights' gradient is a sum over them."""
    sequence, first, length, start = row_tile(tl.program_id(0), offsets, tokens, batch, BLOCK_N, RAGGED)
    if start >= length:
        return
    x = token_base(x, sequence, first, x_strides)
    d_x = token_base(d_x, sequence, first, d_x_strides)
    if WEIGHTS:
        w = token_base(w, sequence, first, w_strides)
        d_w = token_base(d_w, sequence, first, d_w_strides)
    token = start + tl.arange(0, BLOCK_N)
    keep = kept(key_mask, tl.cast(sequence, tl.int64) * tokens, token, length, KEY_MASK)
    step = tl.cast(sets, tl.int64) * channels
    stop = tl.minimum((tl.program_id(1) + 1) * SPAN, channels)
    gathered = tl.zeros([BLOCK_N], ACC)
    for begin in range(tl.program_id(1) * SPAN, stop, BLOCK_C):
        channel = begin + tl.arange(0, BLOCK_C)
        inside = channel < stop
        at = tl.cast(sequence, tl.int64) * channels + channel
        total = tl.load(found + at, mask=inside, other=0.0)
        mean = tl.load(found + step + at, mask=inside, other=0.0)
        deviation = tl.load(found + 2 * step + at, mask=inside, other=0.0)
        d_total = tl.load(d_found + at, mask=inside, other=0.0)
        d_mean = tl.load(d_found + step + at, mask=inside, other=0.0)
        d_deviation = tl.load(d_found + 2 * step + at, mask=inside, other=0.0)
        some = tl.where(total == 0.0, 1.0, total)
        spread = (deviation > floor) & (total != 0.0)
        pull = d_mean / some
        push = tl.where(spread, d_deviation / (some * tl.where(spread, deviation, 1.0)), 0.0)
        real = keep[:, None] & inside[None, :]
        there = (token < length)[:, None] & inside[None, :]
        tile = tl.load(token_pointers(x, start, channel, x_strides, BLOCK_N), mask=real, other=0.0).to(ACC)
        weight = _weights(w, start, keep, channel, inside, w_strides, WEIGHTS, WIDTH, BLOCK_N, ACC)
        apart = tile - mean[None, :]
        d_tile = weight * (pull[None, :] + push[None, :] * apart)
        tl.store(token_pointers(d_x, start, channel, d_x_strides, BLOCK_N), d_tile.to(d_x.dtype.element_ty), mask=there)
        if WEIGHTS:
            variance = deviation * deviation
            d_weight = d_total[None, :] + pull[None, :] * apart + 0.5 * push[None, :] * (apart * apart - variance[None, :])
            d_weight = tl.where(real, d_weight, 0.0)
            if WIDTH == 1:
                at_weight = token_pointers(d_w, start, channel, d_w_strides, BLOCK_N)
                tl.store(at_weight, d_weight.to(d_w.dtype.element_ty), mask=there)
            else:
                gathered += tl.sum(d_weight, 1)
    if WEIGHTS:
        if WIDTH != 1:
            at_group = d_w + tl.cast(token, tl.int64) * d_w_strides[1] + tl.program_id(1) * d_w_strides[2]
            tl.store(at_group, gathered.to(d_w.dtype.element_ty), mask=token < length)


# ---- arguments: the same for a launch and for compiling ahead of time ---------------------------------------------------------------


def _arguments(x: Tensor, w: Tensor | None, offsets: Tensor | None, key_mask: Tensor | None) -> dict[str, Any]:
    """What both passes take: x (batch, tokens, channels), w (batch, tokens, groups)."""
    ragged, channels = offsets is not None, x.shape[2]
    groups = 0 if w is None else w.shape[2]
    return dict(
        x=x, w=w, offsets=offsets, key_mask=as_bytes(key_mask), x_strides=strides_of(x, ragged),
        w_strides=(0, 0, 0) if w is None else strides_of(w, ragged), tokens=x.shape[1],
        batch=offsets.shape[0] - 1 if ragged else x.shape[0], channels=channels, WEIGHTS=min(groups, 2),
        WIDTH=channels // groups if groups else 1, KEY_MASK=key_mask is not None, RAGGED=ragged,
        ACC=tl.float64 if x.dtype == torch.float64 else tl.float32,
    )  # fmt: skip


def _forward_launch(shared: dict[str, Any], device: str) -> tuple[dict[str, Any], Launch]:
    chosen = FORWARD.pick(device, shared["x"].dtype.itemsize * 8)
    blocks = triton.cdiv(shared["channels"], chosen.blocks["BLOCK_C"])
    part = part_size(shared["tokens"], shared["batch"], chosen.blocks["BLOCK_N"], blocks, shared["RAGGED"])
    return shared | dict(PART=part, number=row_tiles(shared["tokens"], shared["batch"], part, shared["RAGGED"])), chosen


def _merge_launch(forward: dict[str, Any], parts: Tensor, out: Tensor, floor: float, device: str):
    kept_arguments = {name: forward[name] for name in ("offsets", "tokens", "channels", "number", "PART", "RAGGED", "ACC")}
    return kept_arguments | dict(parts=parts, out=out, sets=out.shape[1], floor=floor), MERGE.pick(device)


def _backward_launch(shared: dict[str, Any], d_x, d_w, found, d_found, floor: float, device: str):
    chosen = BACKWARD.pick(device, shared["x"].dtype.itemsize * 8)
    summed = shared["WEIGHTS"] and shared["WIDTH"] > 1
    return shared | dict(
        d_x=d_x, d_w=d_w, found=found, d_found=d_found, d_x_strides=strides_of(d_x, shared["RAGGED"]),
        d_w_strides=(0, 0, 0) if d_w is None else strides_of(d_w, shared["RAGGED"]), sets=found.shape[1], floor=floor,
        SPAN=shared["WIDTH"] if summed else chosen.blocks["BLOCK_C"],
    ), chosen  # fmt: skip


# ---- operators -------------------------------------------------------------------------------------------------------------------


@torch.library.custom_op("mhlib::statistics_pool", mutates_args=())
def _pool(x: Tensor, w: Optional[Tensor], offsets: Optional[Tensor], key_mask: Optional[Tensor], floor: float) -> Tensor:
    """Weight, mean and deviation: (3, sets, channels), in the dtype of sums."""
    device, out = device_class(x.device), _outputs(x, offsets)
    arguments, chosen = _forward_launch(_arguments(x, w, offsets, key_mask), device)
    parts = out.new_empty(3, arguments["number"], x.shape[2])
    grid = arguments["number"], triton.cdiv(x.shape[2], chosen.blocks["BLOCK_C"])
    launch(_forward, grid, arguments | dict(parts=parts), chosen)
    merging, chosen = _merge_launch(arguments, parts, out, floor, device)
    launch(_merge, (out.shape[1], triton.cdiv(x.shape[2], chosen.blocks["BLOCK_C"])), merging, chosen)
    return out


@_pool.register_fake
def _(x, w, offsets, key_mask, floor):
    return _outputs(x, offsets)


def _outputs(x: Tensor, offsets: Tensor | None) -> Tensor:
    sets = x.shape[0] if offsets is None else offsets.shape[0] - 1
    return x.new_empty(3, sets, x.shape[2], dtype=accumulator(x.dtype))


@torch.library.custom_op("mhlib::statistics_pool_backward", mutates_args=())
def _pool_backward(
    d_found: Tensor, x: Tensor, w: Optional[Tensor], found: Tensor, offsets: Optional[Tensor], key_mask: Optional[Tensor], floor: float
) -> tuple[Tensor, Tensor]:
    d_x, d_w = _gradients(x, w)
    shared = _arguments(x, w, offsets, key_mask)
    given = None if w is None else d_w
    arguments, chosen = _backward_launch(shared, d_x, given, found, d_found.contiguous(), floor, device_class(x.device))
    tiles = row_tiles(shared["tokens"], shared["batch"], chosen.blocks["BLOCK_N"], shared["RAGGED"])
    launch(_backward, (tiles, triton.cdiv(x.shape[2], arguments["SPAN"])), arguments, chosen)
    return d_x, d_w


@_pool_backward.register_fake
def _(d_found, x, w, found, offsets, key_mask, floor):
    return _gradients(x, w)


def _gradients(x: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0) if w is None else torch.empty_like(w)


def _remember(ctx, inputs, output):
    x, w, offsets, key_mask, ctx.floor = inputs
    ctx.save_for_backward(x, w, output, offsets, key_mask)


def _differentiate(ctx, d_found):
    d_x, d_w = _pool_backward(d_found, *ctx.saved_tensors, ctx.floor)
    return d_x, None if ctx.saved_tensors[1] is None else d_w, None, None, None


_pool.register_autograd(_differentiate, setup_context=_remember)


# ---- the public function ---------------------------------------------------------------------------------------------------------


def statistics_pool(
    x: Float[Tensor, "*batch tokens dim"],
    weights: Float[Tensor, "*batch tokens _"] | Float[Tensor, "*batch tokens"] | None = None,
    *,
    key_mask: Bool[Tensor, "batch tokens"] | None = None,
    cu_seqlens: Int[Tensor, " sets+1"] | None = None,
    eps: float = 0.0,
) -> tuple[Float[Tensor, "sets dim"], Float[Tensor, "sets dim"]]:
    r"""Mean and standard deviation of each channel over the tokens of each set:

    .. math:: \mu = \frac1W \sum_n w_n x_n, \qquad
        \sigma = \sqrt{\max\left(\frac1W \sum_n w_n (x_n - \mu)^2, \epsilon\right)}, \qquad W = \sum_n w_n

    Args:
        x: (batch, tokens, dim), or ragged, (total, dim), the sets one after the other.
        weights: not negative: one per token (batch, tokens), or (batch, tokens, groups) where ``groups`` divides ``dim`` and
            each serves neighbouring channels (groups = dim: a weight per channel). They need not sum to one.
        key_mask: True = a real token; not for ragged input.
        cu_seqlens: ragged input only: where each set begins, and the number of tokens at the end.
        eps: the least variance; where it holds, the deviation has no gradient.

    Returns:
        mean and deviation, (sets, dim) each. A set without a token, or whose weights are zero, gives zeros.

    Raises:
        ValueError: shapes do not fit, or :func:`supports` says no.

    Source: Okabe et al., "Attentive statistics pooling", arXiv 1803.10963; Chan et al. (1979) for the merge.
    """
    check_tokens("statistics_pool", x, key_mask, cu_seqlens)
    if weights is not None:
        weights = _checked_weights(x, weights)
    if eps < 0:
        raise ValueError(f"eps must not be negative, got {eps}")
    support = supports(x)
    if not support:
        raise ValueError(f"statistics_pool cannot run: {support.reason}")
    offsets = None
    if cu_seqlens is not None:
        x, weights, offsets = x[None], None if weights is None else weights[None], cu_seqlens.int()
    _, mean, deviation = _pool(x, weights, offsets, key_mask, eps**0.5).unbind(0)
    return mean.to(x.dtype), deviation.to(x.dtype)


def _checked_weights(x: Tensor, weights: Tensor) -> Tensor:
    weights = weights[..., None] if weights.ndim == x.ndim - 1 else weights
    groups = weights.shape[-1] if weights.ndim else 0
    if weights.shape[:-1] != x.shape[:-1] or groups == 0 or x.shape[-1] % groups:
        raise ValueError(
            f"weights must be {tuple(x.shape[:-1])} or have a last axis that divides dim={x.shape[-1]}, got {tuple(weights.shape)}"
        )
    return weights


def supports(x: Tensor) -> Support:
    """Whether the kernels can run on this tensor, and if not, why."""
    return dtype_support("statistics_pool", x)


def counts(sets: int, tokens: int, dim: int, *, groups: int = 0, itemsize: int = 2, backward: bool = False) -> Counts:
    """What one pass cannot do without; ``tokens`` are those of all sets, ``groups`` the weights per token.

    Tokens and weights go in once, their gradients out once. No products of matrices.
    """
    passes = 2 if backward else 1
    return Counts(0, (9 if backward else 6) * tokens * dim, passes * itemsize * tokens * (dim + groups) + 2 * sets * dim * itemsize)


# ---- ahead of time ---------------------------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """Every row of the tables; weights of each kind, ragged sets, a mask, and a map, whose tokens lie side by side, among them."""
    for target, (bits,), _ in FORWARD.each():
        if bits == 16:
            yield from _cases(target, "bf16 weights ragged", torch.bfloat16, 1, ragged=True)
            yield from _cases(target, "fp16 groups masked map", torch.float16, 8, turned=True)
        else:
            yield from _cases(target, "fp32 plain", torch.float32, 0)


def _cases(target: str, name: str, dtype: torch.dtype, groups: int, ragged=False, turned=False) -> Iterator[Case]:
    empty = lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")  # noqa: E731
    batch, tokens, channels = (1 if ragged else 16), 1024, 512
    x = empty(batch, channels, tokens).transpose(1, 2) if turned else empty(batch, tokens, channels)
    w = empty(batch, tokens, groups) if groups else None
    offsets = empty(17, dtype=torch.int32) if ragged else None
    shared = _arguments(x, w, offsets, empty(batch, tokens, dtype=torch.bool) if turned else None)
    arguments, chosen = _forward_launch(shared, target)
    found = _outputs(x, offsets)
    yield Case(f"statistics forward {name}", _forward, target, arguments | dict(parts=found), chosen)
    if ragged:
        yield Case(f"statistics merge {name}", _merge, target, *_merge_launch(arguments, found, found, 0.0, target))
    yield Case(f"statistics backward {name}", _backward, target, *_backward_launch(shared, x, w, found, found, 0.0, target))
