"""SoftPool: in every window the activations weigh themselves by their softmax; the reference of the kernel.

Each window subtracts its own maximum. The shorter form, the average pool of x e^x over that of e^x, subtracts one for the whole map,
and a window 90 below it is then 0 / 0 in float32.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.functional.kernel_backend import takes_kernel

__all__ = ["soft_pool2d"]


def soft_pool2d(
    x: Float[Tensor, "batch channels height width"],
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    *,
    beta: float = 1.0,
    backend: str = "auto",
) -> Float[Tensor, "batch channels rows columns"]:
    r"""Each window's sum weighted by its softmax: :math:`y = \sum_i w_i x_i`, :math:`w_i = e^{\beta x_i} / \sum_j e^{\beta x_j}`.

    It lies between the average (beta = 0) and the maximum (as beta grows), and :math:`\partial y / \partial x_i =
    w_i\,(1 + \beta\,(x_i - y))`, which is negative for what lies more than 1 / beta below y.

    Args:
        kernel_size: height and width of the windows, or one number for both.
        stride: the same between windows; ``kernel_size`` by default. Rows and columns that fill no window are left out.
        beta: sharpness; 1 in the paper.
        backend: "reference" (the formula), "triton" (:func:`mhlib.kernels.soft_pool2d`, which unfolds nothing), or "auto":
            the kernel on CUDA, the formula elsewhere.

    Raises:
        ValueError: the map is smaller than a window, or a size is not positive.

    Source: Stergiou et al., "Refining activation downsampling with SoftPool", arXiv 2101.00440 (row 40).
    """
    if takes_kernel(backend, x):
        from mhlib.kernels import soft_pool2d as kernel_pool

        return kernel_pool(x, kernel_size, stride, beta=beta)
    kernel, step = window_sizes(x, kernel_size, stride)
    windows = x.unfold(2, kernel[0], step[0]).unfold(3, kernel[1], step[1]).flatten(4)
    return (torch.softmax(beta * windows, -1) * windows).sum(-1)


def window_sizes(
    x: Tensor, kernel_size: int | tuple[int, int], stride: int | tuple[int, int] | None
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Windows and steps as pairs (height, width), checked against the map."""
    kernel = _pair("kernel_size", kernel_size)
    step = kernel if stride is None else _pair("stride", stride)
    if x.ndim != 4:
        raise ValueError(f"soft_pool2d wants x of shape (batch, channels, height, width), got {tuple(x.shape)}")
    if x.shape[2] < kernel[0] or x.shape[3] < kernel[1]:
        raise ValueError(f"a window of {kernel} does not fit into a map of {tuple(x.shape[2:])}")
    return kernel, step


def _pair(name: str, size: int | tuple[int, int]) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ValueError(f"{name} must be a positive integer or a pair of them (height, width), got {size!r}")
    return pair
