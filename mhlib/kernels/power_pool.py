"""Generalized mean of every channel with an exponent of its own, in one pass over the tokens and in logarithms.

Reference: :class:`mhlib.pooling.GroupGeneralizedMeanPool`. The mean of powers is a log-sum-exp of p log x, kept online as maximum and
sum, so no power overflows. A third running number, the mean logit under the softmax weights, gives the gradient of the exponent at
the end of the forward pass: dy/dp = y KL(w || uniform) / p^2, where w are the weights of the tokens. The gradient of x is one more
pass; no atomics, two runs agree to the bit.

Conditions: float16, bfloat16 or float32 on the device (float64 in the interpreter, bfloat16 not there); any order in memory.

Source: Radenović et al., "Fine-tuning CNN image retrieval with no human annotation", arXiv 1711.02512; Ko et al., "Group generalized
mean pooling for vision transformer", arXiv 2212.04114 (row 7).
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
from mhlib.kernels.online import LN2
from mhlib.kernels.parts import (
    check_tokens, dtype_support, part_size, parts_of, token_base, token_pointers,
)  # fmt: skip
from mhlib.kernels.targets import device_class
from mhlib.kernels.tiles import as_bytes, kept, row_tile, row_tiles, strides_of

__all__ = ["power_pool"]

# ---- launch tables: (device class, bits) ---------------------------------------------------------------------------------------------

FORWARD = Table(
    "power_pool forward", ("bits",),
    {
        ("interpreter", 64): Launch({"BLOCK_N": 16, "BLOCK_C": 16}),
        ("any", 16): Launch({"BLOCK_N": 64, "BLOCK_C": 64}, 4, 2),
        ("any", 32): Launch({"BLOCK_N": 32, "BLOCK_C": 64}, 4, 2),
    },
)  # fmt: skip
MERGE = Table(
    "power_pool merge", (),
    {("interpreter",): Launch({"BLOCK_P": 2, "BLOCK_C": 16}), ("any",): Launch({"BLOCK_P": 16, "BLOCK_C": 64}, 4, 1)},
)  # fmt: skip
BACKWARD = Table(
    "power_pool backward", ("bits",),
    {
        ("interpreter", 64): Launch({"BLOCK_N": 16, "BLOCK_C": 16}),
        ("any", 16): Launch({"BLOCK_N": 64, "BLOCK_C": 64}, 4, 1),
        ("any", 32): Launch({"BLOCK_N": 32, "BLOCK_C": 64}, 4, 1),
    },
)  # fmt: skip

# ---- the kernels -----------------------------------------------------------------------------------------------------------------
# The state of a channel is (top, norm, moment, count): with logits z = p log2(x), top is their maximum, norm the sum of
# 2^(z - top), moment the sum of 2^(z - top) (z - top), and count the number of tokens.


@triton.jit
def _absorbed(top, norm, moment, count, tops, norms, moments, counts):
    """The state of a channel once it has taken in the states in the rows of a tile; a row of no token has top = -inf."""
    higher = tl.maximum(top, tl.max(tops, 0))
    shift = tl.where(higher == float("-inf"), 0.0, higher)
    down = tl.where(tops == float("-inf"), 0.0, tops - shift[None, :])
    decays = tl.where(tops == float("-inf"), 0.0, tl.exp2(down))
    fall = tl.where(top == float("-inf"), 0.0, top - shift)
    decay = tl.where(top == float("-inf"), 0.0, tl.exp2(fall))
    # A logit that lay a below its own top lies a + fall below the new one.
    moment = decay * (moment + fall * norm) + tl.sum(decays * (moments + down * norms), 0)
    return higher, decay * norm + tl.sum(decays * norms, 0), moment, count + tl.sum(counts, 0)


@triton.jit(do_not_specialize=["tokens", "batch"])
def _forward(
    x, p, parts, offsets, key_mask, x_strides, tokens, batch, channels, number, eps,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, PART: tl.constexpr, KEY_MASK: tl.constexpr, RAGGED: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """The state of some channels over one part of a set: four rows of ``parts`` (4, number, channels)."""
    part = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < channels
    sequence, first, length, start = row_tile(part, offsets, tokens, batch, PART, RAGGED)
    if start >= length:
        return
    x = token_base(x, sequence, first, x_strides)
    exponent = tl.load(p + channel, mask=inside, other=1.0)
    top = tl.full([BLOCK_C], float("-inf"), ACC)
    norm = tl.zeros([BLOCK_C], ACC)
    moment = tl.zeros([BLOCK_C], ACC)
    count = tl.zeros([BLOCK_C], ACC)
    for at in range(start, tl.minimum(start + PART, length), BLOCK_N):
        keep = kept(key_mask, tl.cast(sequence, tl.int64) * tokens, at + tl.arange(0, BLOCK_N), length, KEY_MASK)
        real = keep[:, None] & inside[None, :]
        tile = tl.load(token_pointers(x, at, channel, x_strides, BLOCK_N), mask=real, other=1.0).to(ACC)
        logits = exponent[None, :] * tl.log2(tl.where(tile < eps, tl.zeros_like(tile) + eps, tile))
        ones = real.to(ACC)
        top, norm, moment, count = _absorbed(
            top, norm, moment, count, tl.where(real, logits, float("-inf")), ones, tl.zeros_like(ones), ones
        )
    at = parts + tl.cast(part, tl.int64) * channels + channel
    step = tl.cast(number, tl.int64) * channels
    tl.store(at, top, mask=inside)
    tl.store(at + step, norm, mask=inside)
    tl.store(at + 2 * step, moment, mask=inside)
    tl.store(at + 3 * step, count, mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _merge(
    parts, p, out, offsets, tokens, channels, number, sets,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, PART: tl.constexpr, RAGGED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Rows of ``out`` (3, sets, channels): the mean, the number of tokens, and KL(w || uniform)."""
    sequence = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < channels
    first, amount = parts_of(sequence, offsets, tokens, PART, RAGGED)
    step = tl.cast(number, tl.int64) * channels
    top = tl.full([BLOCK_C], float("-inf"), ACC)
    norm = tl.zeros([BLOCK_C], ACC)
    moment = tl.zeros([BLOCK_C], ACC)
    count = tl.zeros([BLOCK_C], ACC)
    for at in range(0, amount, BLOCK_P):
        part = at + tl.arange(0, BLOCK_P)
        real = (part < amount)[:, None] & inside[None, :]
        place = parts + tl.cast(first + part, tl.int64)[:, None] * channels + channel[None, :]
        top, norm, moment, count = _absorbed(
            top, norm, moment, count,
            tl.load(place, mask=real, other=float("-inf")), tl.load(place + step, mask=real, other=0.0),
            tl.load(place + 2 * step, mask=real, other=0.0), tl.load(place + 3 * step, mask=real, other=0.0),
        )  # fmt: skip
    some = count > 0.0
    norm = tl.where(some, norm, 1.0)
    top = tl.where(some, top, 0.0)
    # One logarithm of the ratio: those of norm and count would cancel when p is small, and be divided by p.
    ratio = tl.log2(norm / tl.where(some, count, 1.0))
    exponent = tl.load(p + channel, mask=inside, other=1.0)
    mean = tl.where(some, tl.exp2((top + ratio) / exponent), 0.0)
    # sum w log (N w), with w = 2^(z - top) / norm; at least zero, but for rounding
    apart = tl.maximum(moment / norm - ratio, 0.0) * LN2
    at = out + tl.cast(sequence, tl.int64) * channels + channel
    step = tl.cast(sets, tl.int64) * channels
    tl.store(at, mean, mask=inside)
    tl.store(at + step, tl.where(some, count, 1.0), mask=inside)
    tl.store(at + 2 * step, tl.where(some, apart, 0.0), mask=inside)


@triton.jit(do_not_specialize=["tokens", "batch"])
def _backward(
    x, p, d_x, found, d_mean, offsets, key_mask, x_strides, d_x_strides, tokens, batch, channels, sets, eps,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, KEY_MASK: tl.constexpr, RAGGED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of tokens: dx = dy (x / y)^(p - 1) / N, and none where eps took the place of x."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < channels
    sequence, first, length, start = row_tile(tl.program_id(0), offsets, tokens, batch, BLOCK_N, RAGGED)
    if start >= length:
        return
    x = token_base(x, sequence, first, x_strides)
    d_x = token_base(d_x, sequence, first, d_x_strides)
    token = start + tl.arange(0, BLOCK_N)
    keep = kept(key_mask, tl.cast(sequence, tl.int64) * tokens, token, length, KEY_MASK)
    real = keep[:, None] & inside[None, :]
    exponent = tl.load(p + channel, mask=inside, other=1.0)
    at = tl.cast(sequence, tl.int64) * channels + channel
    step = tl.cast(sets, tl.int64) * channels
    mean = tl.load(found + at, mask=inside, other=1.0)
    slope = tl.load(d_mean + at, mask=inside, other=0.0) / tl.load(found + step + at, mask=inside, other=1.0)
    tile = tl.load(token_pointers(x, start, channel, x_strides, BLOCK_N), mask=real, other=1.0).to(ACC)
    above = real & (tile >= eps)
    # The logarithm of the ratio, not of x: it is exact where x is near y, which is where a large power looks.
    ratio = tl.where(above, tile / tl.where(mean == 0.0, 1.0, mean)[None, :], 1.0)
    d_tile = tl.where(above, slope[None, :] * tl.exp2((exponent - 1.0)[None, :] * tl.log2(ratio)), 0.0)
    there = (token < length)[:, None] & inside[None, :]
    tl.store(token_pointers(d_x, start, channel, d_x_strides, BLOCK_N), d_tile.to(d_x.dtype.element_ty), mask=there)


# ---- arguments: the same for a launch and for compiling ahead of time ---------------------------------------------------------------


def _arguments(x: Tensor, p: Tensor, offsets: Tensor | None, key_mask: Tensor | None, eps: float) -> dict[str, Any]:
    """What both passes take: x (batch, tokens, channels), p (channels,) in the dtype of sums."""
    ragged = offsets is not None
    return dict(
        x=x, p=p, offsets=offsets, key_mask=as_bytes(key_mask), x_strides=strides_of(x, ragged), tokens=x.shape[1],
        batch=offsets.shape[0] - 1 if ragged else x.shape[0], channels=x.shape[2], eps=eps, KEY_MASK=key_mask is not None,
        RAGGED=ragged, ACC=tl.float64 if x.dtype == torch.float64 else tl.float32,
    )  # fmt: skip


def _forward_launch(shared: dict[str, Any], device: str) -> tuple[dict[str, Any], Launch]:
    chosen = FORWARD.pick(device, shared["x"].dtype.itemsize * 8)
    blocks = triton.cdiv(shared["channels"], chosen.blocks["BLOCK_C"])
    part = part_size(shared["tokens"], shared["batch"], chosen.blocks["BLOCK_N"], blocks, shared["RAGGED"])
    return shared | dict(PART=part, number=row_tiles(shared["tokens"], shared["batch"], part, shared["RAGGED"])), chosen


def _merge_launch(forward: dict[str, Any], parts: Tensor, out: Tensor, device: str) -> tuple[dict[str, Any], Launch]:
    kept_arguments = {name: forward[name] for name in ("p", "offsets", "tokens", "channels", "number", "PART", "RAGGED", "ACC")}
    return kept_arguments | dict(parts=parts, out=out, sets=out.shape[1]), MERGE.pick(device)


def _backward_launch(shared: dict[str, Any], d_x, found, d_mean, device: str) -> tuple[dict[str, Any], Launch]:
    arguments = shared | dict(d_x=d_x, found=found, d_mean=d_mean, d_x_strides=strides_of(d_x, shared["RAGGED"]), sets=found.shape[1])
    return arguments, BACKWARD.pick(device, shared["x"].dtype.itemsize * 8)


# ---- operators -------------------------------------------------------------------------------------------------------------------


@torch.library.custom_op("mhlib::power_pool", mutates_args=())
def _pool(x: Tensor, p: Tensor, offsets: Optional[Tensor], key_mask: Optional[Tensor], eps: float) -> Tensor:
    """Mean, number of tokens (at least 1), KL divergence: (3, sets, channels), in the dtype of sums."""
    device, out = device_class(x.device), _outputs(x, offsets)
    arguments, chosen = _forward_launch(_arguments(x, p.contiguous(), offsets, key_mask, eps), device)
    parts = out.new_empty(4, arguments["number"], x.shape[2])
    grid = arguments["number"], triton.cdiv(x.shape[2], chosen.blocks["BLOCK_C"])
    launch(_forward, grid, arguments | dict(parts=parts), chosen)
    merging, chosen = _merge_launch(arguments, parts, out, device)
    launch(_merge, (out.shape[1], triton.cdiv(x.shape[2], chosen.blocks["BLOCK_C"])), merging, chosen)
    return out


@_pool.register_fake
def _(x, p, offsets, key_mask, eps):
    return _outputs(x, offsets)


def _outputs(x: Tensor, offsets: Tensor | None) -> Tensor:
    sets = x.shape[0] if offsets is None else offsets.shape[0] - 1
    return x.new_empty(3, sets, x.shape[2], dtype=accumulator(x.dtype))


@torch.library.custom_op("mhlib::power_pool_backward", mutates_args=())
def _pool_backward(
    d_mean: Tensor, x: Tensor, p: Tensor, found: Tensor, offsets: Optional[Tensor], key_mask: Optional[Tensor], eps: float
) -> Tensor:
    d_x = torch.empty_like(x)
    shared = _arguments(x, p.contiguous(), offsets, key_mask, eps)
    arguments, chosen = _backward_launch(shared, d_x, found, d_mean.contiguous(), device_class(x.device))
    tiles = row_tiles(shared["tokens"], shared["batch"], chosen.blocks["BLOCK_N"], shared["RAGGED"])
    launch(_backward, (tiles, triton.cdiv(x.shape[2], chosen.blocks["BLOCK_C"])), arguments, chosen)
    return d_x


@_pool_backward.register_fake
def _(d_mean, x, p, found, offsets, key_mask, eps):
    return torch.empty_like(x)


def _remember(ctx, inputs, output):
    x, p, offsets, key_mask, ctx.eps = inputs
    ctx.save_for_backward(x, p, output, offsets, key_mask)


def _differentiate(ctx, d_found):
    """The gradient of the mean alone: the other two rows are notes for this function."""
    x, p, found, *rest = ctx.saved_tensors
    d_x = d_p = None
    if ctx.needs_input_grad[0]:
        d_x = _pool_backward(d_found[0], x, p, found, *rest, ctx.eps)
    if ctx.needs_input_grad[1]:
        d_p = (d_found[0] * found[0] * found[2]).sum(0) / p.square()
    return d_x, d_p, None, None, None


_pool.register_autograd(_differentiate, setup_context=_remember)


# ---- the public function ---------------------------------------------------------------------------------------------------------


def power_pool(
    x: Float[Tensor, "*batch tokens dim"],
    p: Float[Tensor, " groups"],
    *,
    key_mask: Bool[Tensor, "batch tokens"] | None = None,
    cu_seqlens: Int[Tensor, " sets+1"] | None = None,
    eps: float = 1e-6,
) -> Float[Tensor, "sets dim"]:
    r"""Generalized mean of each channel over the tokens of each set:

    .. math:: y_c = \Big(\frac1N \sum_n \max(x_{nc}, \epsilon)^{p_g}\Big)^{1/p_g}, \qquad g = \lfloor c\,G / d \rfloor

    Args:
        x: (batch, tokens, dim), or ragged, (total, dim), the sets one after the other.
        p: exponents, not zero: one for all channels, one per group of neighbouring channels, or one per channel.
        key_mask: True = a real token; not for ragged input.
        cu_seqlens: ragged input only: where each set begins, and the number of tokens at the end.
        eps: what a smaller value counts as; such a value has no gradient.

    Returns:
        (sets, dim). A set without a token gives zeros.

    Raises:
        ValueError: shapes do not fit, or :func:`supports` says no.

    Source: Radenović et al., arXiv 1711.02512 (GeM); Ko et al., arXiv 2212.04114 (row 7).
    """
    check_tokens("power_pool", x, key_mask, cu_seqlens)
    if p.ndim != 1 or len(p) == 0 or x.shape[-1] % len(p):
        raise ValueError(f"p must be (groups,) where groups divides dim={x.shape[-1]}, got {tuple(p.shape)}")
    if eps <= 0:
        raise ValueError(f"eps must be positive: the logarithm of 0 is not finite; got {eps}")
    support = supports(x)
    if not support:
        raise ValueError(f"power_pool cannot run: {support.reason}")
    offsets = None
    if cu_seqlens is not None:
        x, offsets = x[None], cu_seqlens.int()
    exponents = p.to(accumulator(x.dtype)).repeat_interleave(x.shape[-1] // len(p))
    return _pool(x, exponents, offsets, key_mask, float(eps))[0].to(x.dtype)


def supports(x: Tensor) -> Support:
    """Whether the kernels can run on this tensor, and if not, why."""
    return dtype_support("power_pool", x)


def counts(sets: int, tokens: int, dim: int, *, itemsize: int = 2, backward: bool = False) -> Counts:
    """What one pass cannot do without; ``tokens`` are those of all sets. A logarithm and an exponential count as one operation each.

    Tokens go in once, their gradient out once. No products of matrices.
    """
    passes = 2 if backward else 1
    return Counts(0, (6 if backward else 8) * tokens * dim, passes * itemsize * tokens * dim + itemsize * sets * dim + 4 * dim)


# ---- ahead of time ---------------------------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """Every row of the tables: ragged sets, a mask, and a map, whose tokens lie side by side."""
    for target, (bits,), _ in FORWARD.each():
        if bits == 16:
            yield from _cases(target, "bf16 ragged", torch.bfloat16, ragged=True)
        else:
            yield from _cases(target, "fp32 masked map", torch.float32, turned=True)


def _cases(target: str, name: str, dtype: torch.dtype, ragged=False, turned=False) -> Iterator[Case]:
    empty = lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")  # noqa: E731
    batch, tokens, channels = (1 if ragged else 16), 1024, 512
    x = empty(batch, channels, tokens).transpose(1, 2) if turned else empty(batch, tokens, channels)
    offsets = empty(17, dtype=torch.int32) if ragged else None
    key_mask = empty(batch, tokens, dtype=torch.bool) if turned else None
    shared = _arguments(x, empty(channels, dtype=torch.float32), offsets, key_mask, 1e-6)
    arguments, chosen = _forward_launch(shared, target)
    found = _outputs(x, offsets)
    yield Case(f"power forward {name}", _forward, target, arguments | dict(parts=found), chosen)
    if ragged:
        yield Case(f"power merge {name}", _merge, target, *_merge_launch(arguments, found, found, target))
    yield Case(f"power backward {name}", _backward, target, *_backward_launch(shared, x, found, found, target))
