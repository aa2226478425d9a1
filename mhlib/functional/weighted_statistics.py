"""Weighted mean and standard deviation over the tokens, in three passes: the formula as it stands."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mhlib.functional.kernel_backend import takes_kernel
from mhlib.functional.precision import widened

__all__ = ["weighted_statistics"]


def weighted_statistics(
    x: Float[Tensor, "batch tokens dim"],
    weights: Float[Tensor, "batch tokens groups"] | None = None,
    key_mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    eps: float = 0.0,
    backend: str = "auto",
) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch dim"]]:
    r"""Mean :math:`\mu = \frac1W \sum_n w_n x_n` and deviation :math:`\sqrt{\max(\frac1W \sum_n w_n (x_n - \mu)^2, \epsilon)}`,
    with :math:`W = \sum_n w_n`.

    Args:
        weights: not negative, and need not sum to one; each of the ``groups`` columns serves dim / groups neighbouring
            channels. None: all tokens count alike.
        key_mask: True = a real token.
        eps: the least variance; where it holds, the deviation has no gradient.
        backend: "reference" (the formula), "triton" (:func:`mhlib.kernels.statistics_pool`, one pass), or "auto": the
            kernel on CUDA, the formula elsewhere.

    A set without a token, or whose weights are zero, gives zeros. Half precision is summed in float32.
    """
    if takes_kernel(backend, x):
        from mhlib.kernels import statistics_pool

        return statistics_pool(x, weights, key_mask=key_mask, eps=eps)
    if weights is None:
        weights = x.new_ones(*x.shape[:2], 1)
    if x.shape[-1] % weights.shape[-1]:
        raise ValueError(f"the number of weights per token must divide dim={x.shape[-1]}, got {weights.shape[-1]}")
    dtype = x.dtype
    x = widened(x)
    weights = weights.to(x.dtype)
    w = weights.repeat_interleave(x.shape[-1] // weights.shape[-1], -1)
    if key_mask is not None:
        w, x = (torch.where(key_mask[..., None], a, 0.0) for a in (w, x))
    total = w.sum(1)
    some = torch.where(total == 0, 1.0, total)
    mean = (w * x).sum(1) / some
    variance = (w * (x - mean[:, None]).square()).sum(1) / some
    spread = (variance > eps) & (total != 0)
    root = torch.where(spread, torch.where(spread, variance, 1.0).sqrt(), eps**0.5)
    return mean.to(dtype), torch.where(total == 0, 0.0, root).to(dtype)
