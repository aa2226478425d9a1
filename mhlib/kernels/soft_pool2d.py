"""SoftPool of a map in one pass: each program keeps maximum, sum and weighted sum of its windows, so x is read once.

Reference: :func:`mhlib.functional.soft_pool2d`. In plain PyTorch the windows are unfolded into memory, kernel height x width times the
map, and the softmax reads them several times. The backward pass gathers: each element adds up over the windows that hold
it, with weights made again from their log-sum-exps. No atomics, two runs agree to the bit.

Conditions: float16, bfloat16 or float32 on the device (float64 in the interpreter, bfloat16 not there); maps in any order in memory.

Source: Stergiou et al., "Refining activation downsampling with SoftPool", arXiv 2101.00440 (row 40).
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from mhlib.functional.precision import accumulator
from mhlib.functional.request import Support
from mhlib.functional.soft_pool import window_sizes
from mhlib.kernels.aot import Case
from mhlib.kernels.launch import Counts, Launch, Table, launch
from mhlib.kernels.online import LOG2E
from mhlib.kernels.parts import dtype_support
from mhlib.kernels.targets import device_class

__all__ = ["soft_pool2d"]

# ---- launch tables: (device class,) --------------------------------------------------------------------------------------------------

FORWARD = Table("soft_pool2d forward", (), {("interpreter",): Launch({"BLOCK": 64}), ("any",): Launch({"BLOCK": 256}, 4, 1)})
BACKWARD = Table("soft_pool2d backward", (), {("interpreter",): Launch({"BLOCK": 128}), ("any",): Launch({"BLOCK": 256}, 4, 1)})

# ---- the kernels -----------------------------------------------------------------------------------------------------------------


@triton.jit
def _place(start, channels, rows, columns, BLOCK: tl.constexpr):
    """(batch, channel, row, column) of the elements from ``start`` on, counted in that order; one division alone is in 64 bits."""
    plane = start // (rows * columns)
    index = (start - plane * rows * columns).to(tl.int32) + tl.arange(0, BLOCK)
    column = index % columns
    row = index // columns % rows
    channel = (plane % channels).to(tl.int32) + index // (rows * columns)
    return plane // channels + channel // channels, channel % channels, row, column


@triton.jit
def _at(base, image, channel, row, column, strides):
    plane = tl.cast(image, tl.int64) * strides[0] + tl.cast(channel, tl.int64) * strides[1]
    return base + plane + tl.cast(row, tl.int64) * strides[2] + column * strides[3]


@triton.jit(do_not_specialize=["total"])
def _forward(
    x, out, lse, precise, x_strides, out_strides, channels, rows, columns, total, factor,
    BLOCK: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr, HALF: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """A run of windows: output, log-sum-exp in base 2, and for HALF the output once more before it is rounded."""
    start = tl.cast(tl.program_id(0), tl.int64) * BLOCK
    inside = tl.arange(0, BLOCK) < total - start
    image, channel, row, column = _place(start, channels, rows, columns, BLOCK)
    corner = _at(x, image, channel, row * DOWN, column * RIGHT, x_strides)
    top = tl.full([BLOCK], float("-inf"), ACC)
    norm = tl.zeros([BLOCK], ACC)
    weighted = tl.zeros([BLOCK], ACC)
    for cell in range(HIGH * WIDE):
        value = tl.load(corner + cell // WIDE * x_strides[2] + cell % WIDE * x_strides[3], mask=inside, other=0.0).to(ACC)
        logit = value * factor
        higher = tl.maximum(top, logit)
        weight = tl.exp2(logit - higher)
        decay = tl.exp2(top - higher)
        norm = norm * decay + weight
        weighted = weighted * decay + weight * value
        top = higher
    pooled = weighted / norm
    tl.store(_at(out, image, channel, row, column, out_strides), pooled.to(out.dtype.element_ty), mask=inside)
    tl.store(lse + start + tl.arange(0, BLOCK), top + tl.log2(norm), mask=inside)
    if HALF:
        tl.store(precise + start + tl.arange(0, BLOCK), pooled, mask=inside)


@triton.jit(do_not_specialize=["total"])
def _backward(
    x, out, lse, d_out, d_x, x_strides, out_strides, d_out_strides, d_x_strides, channels, height, width, rows, columns, total,
    beta, factor, BLOCK: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """A run of elements: dx = sum of dy w (1 + beta (x - y)) over the windows that hold them."""
    start = tl.cast(tl.program_id(0), tl.int64) * BLOCK
    inside = tl.arange(0, BLOCK) < total - start
    image, channel, row, column = _place(start, channels, height, width, BLOCK)
    value = tl.load(_at(x, image, channel, row, column, x_strides), mask=inside, other=0.0).to(ACC)
    gathered = tl.zeros([BLOCK], ACC)
    first_window = (tl.cast(image, tl.int64) * channels + channel) * rows * columns
    last_row = row // DOWN
    last_column = column // RIGHT
    # At most so many windows reach back to an element, in each direction.
    BACK: tl.constexpr = (HIGH + DOWN - 1) // DOWN
    ASIDE: tl.constexpr = (WIDE + RIGHT - 1) // RIGHT
    for cell in range(BACK * ASIDE):
        window_row = last_row - cell // ASIDE
        window_column = last_column - cell % ASIDE
        holds = inside & (window_row >= 0) & (window_row < rows) & (window_column >= 0) & (window_column < columns)
        holds = holds & (row - window_row * DOWN < HIGH) & (column - window_column * RIGHT < WIDE)
        log_norm = tl.load(lse + first_window + window_row * columns + window_column, mask=holds, other=float("inf"))
        pooled = tl.load(_at(out, image, channel, window_row, window_column, out_strides), mask=holds, other=0.0).to(ACC)
        come = tl.load(_at(d_out, image, channel, window_row, window_column, d_out_strides), mask=holds, other=0.0).to(ACC)
        gathered += come * tl.exp2(value * factor - log_norm) * (1.0 + beta * (value - pooled))
    tl.store(_at(d_x, image, channel, row, column, d_x_strides), gathered.to(d_x.dtype.element_ty), mask=inside)


# ---- arguments: the same for a launch and for compiling ahead of time ---------------------------------------------------------------


def _arguments(x: Tensor, window: list[int], rows: int, columns: int, beta: float) -> dict[str, Any]:
    """What both passes take; ``window`` is height, width, step down, step right."""
    high, wide, down, right = window
    return dict(
        x=x, x_strides=x.stride(), channels=x.shape[1], rows=rows, columns=columns, factor=beta * LOG2E.value,
        HIGH=high, WIDE=wide, DOWN=down, RIGHT=right, ACC=tl.float64 if x.dtype == torch.float64 else tl.float32,
    )  # fmt: skip


def _forward_launch(shared: dict[str, Any], out: Tensor, lse: Tensor, precise: Tensor, device: str):
    return shared | dict(
        out=out, lse=lse, precise=precise, out_strides=out.stride(), total=out.numel(), HALF=_rounds(out.dtype)
    ), FORWARD.pick(device)  # fmt: skip


def _backward_launch(shared: dict[str, Any], out: Tensor, lse: Tensor, d_out: Tensor, d_x: Tensor, beta: float, device: str):
    return shared | dict(
        out=out, lse=lse, d_out=d_out, d_x=d_x, out_strides=out.stride(), d_out_strides=d_out.stride(), d_x_strides=d_x.stride(),
        height=d_x.shape[2], width=d_x.shape[3], total=d_x.numel(), beta=beta,
    ), BACKWARD.pick(device)  # fmt: skip


def _rounds(dtype: torch.dtype) -> bool:
    """Whether the output loses what x - y needs: y near 1000 is rounded by a half in float16."""
    return dtype in (torch.float16, torch.bfloat16)


# ---- operators -------------------------------------------------------------------------------------------------------------------


@torch.library.custom_op("mhlib::soft_pool2d", mutates_args=())
def _pool(x: Tensor, window: list[int], beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """The pooled map, the log-sum-exp in base 2, and for halves the pooled map in float32, else nothing."""
    out, lse, precise = _outputs(x, window)
    arguments, chosen = _forward_launch(_arguments(x, window, *out.shape[2:], beta), out, lse, precise, device_class(x.device))
    launch(_forward, (triton.cdiv(out.numel(), chosen.blocks["BLOCK"]),), arguments, chosen)
    return out, lse, precise


@_pool.register_fake
def _(x, window, beta):
    return _outputs(x, window)


def _outputs(x: Tensor, window: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = ((size - side) // step + 1 for size, side, step in zip(x.shape[2:], window[:2], window[2:]))
    out = x.new_empty(*x.shape[:2], rows, columns)
    sums = accumulator(x.dtype)
    return out, out.new_empty(out.shape, dtype=sums), out.new_empty(out.shape if _rounds(x.dtype) else 0, dtype=sums)


@torch.library.custom_op("mhlib::soft_pool2d_backward", mutates_args=())
def _pool_backward(d_out: Tensor, x: Tensor, out: Tensor, lse: Tensor, window: list[int], beta: float) -> Tensor:
    d_x = torch.empty_like(x)
    shared = _arguments(x, window, *out.shape[2:], beta)
    arguments, chosen = _backward_launch(shared, out, lse, d_out, d_x, beta, device_class(x.device))
    launch(_backward, (triton.cdiv(x.numel(), chosen.blocks["BLOCK"]),), arguments, chosen)
    return d_x


@_pool_backward.register_fake
def _(d_out, x, out, lse, window, beta):
    return torch.empty_like(x)


def _remember(ctx, inputs, output):
    x, ctx.window, ctx.beta = inputs
    out, lse, precise = output
    ctx.save_for_backward(x, precise if _rounds(x.dtype) else out, lse)


def _differentiate(ctx, d_out, d_lse, d_precise):
    """The gradient of the pooled map alone: the other results are notes for this function."""
    return _pool_backward(d_out, *ctx.saved_tensors, ctx.window, ctx.beta), None, None


_pool.register_autograd(_differentiate, setup_context=_remember)


# ---- the public function ---------------------------------------------------------------------------------------------------------


def soft_pool2d(
    x: Float[Tensor, "batch channels height width"],
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    *,
    beta: float = 1.0,
) -> Float[Tensor, "batch channels rows columns"]:
    r"""Each window's sum weighted by its softmax: :math:`y = \sum_i w_i x_i`, :math:`w_i = e^{\beta x_i} / \sum_j e^{\beta x_j}`.

    Arguments and errors as in :func:`mhlib.functional.soft_pool2d`, which is its reference; and a ValueError when
    :func:`supports` says no. Source: Stergiou et al., arXiv 2101.00440 (row 40).
    """
    kernel, step = window_sizes(x, kernel_size, stride)
    support = supports(x)
    if not support:
        raise ValueError(f"soft_pool2d cannot run: {support.reason}")
    return _pool(x, [*kernel, *step], float(beta))[0]


def supports(x: Tensor) -> Support:
    """Whether the kernels can run on this tensor, and if not, why."""
    return dtype_support("soft_pool2d", x)


def counts(
    batch: int, channels: int, height: int, width: int, kernel_size: int, stride: int, *, itemsize: int = 2, backward: bool = False
) -> Counts:
    """What one pass cannot do without: the map in and the pooled map out; backward also the gradient out and the sums in.

    An exponential counts as one operation. No products of matrices.
    """
    windows = batch * channels * ((height - kernel_size) // stride + 1) * ((width - kernel_size) // stride + 1)
    elements = batch * channels * height * width
    cells = windows * kernel_size**2
    if backward:  # x, d_out and two sums of each window in, d_x out
        return Counts(0, 7 * cells, 2 * elements * itemsize + windows * (itemsize + 8))
    return Counts(0, 7 * cells, (elements + windows) * itemsize)


# ---- ahead of time ---------------------------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """Windows side by side, and windows that overlap in a map with channels last, for each device class."""
    for target, _, _ in FORWARD.each():
        yield from _cases(target, "bf16 2/2", torch.bfloat16, [2, 2, 2, 2])
        yield from _cases(target, "fp32 3/2 channels last", torch.float32, [3, 3, 2, 2], last=True)


def _cases(target: str, name: str, dtype: torch.dtype, window: list[int], last=False) -> Iterator[Case]:
    x = torch.empty(16, 64, 56, 56, dtype=dtype, device="meta", memory_format=torch.channels_last if last else torch.contiguous_format)
    out, lse, precise = _outputs(x, window)
    shared = _arguments(x, window, *out.shape[2:], 1.0)
    yield Case(f"soft forward {name}", _forward, target, *_forward_launch(shared, out, lse, precise, target))
    yield Case(f"soft backward {name}", _backward, target, *_backward_launch(shared, out, lse, out, x, 1.0, target))
