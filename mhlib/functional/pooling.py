"""Pooling primitives: reductions over the tokens that leave out what is masked, and give zeros where nothing is left.

``x`` is (batch, tokens, dim); ``key_mask`` (batch, tokens) is True for real tokens, None when all are. Whatever a masked
token holds, it changes neither value nor gradient. Half-precision tokens are counted and averaged in float32, for neither
their numbers nor the sums of their squares need fit into 16 bits; the result has their dtype again.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mhlib.functional.precision import accumulator

__all__ = [
    "masked_count",
    "masked_logsumexp",
    "masked_max",
    "masked_mean",
    "masked_min",
    "masked_quantile",
    "masked_std",
    "masked_sum",
]

Tokens = Float[Tensor, "batch tokens dim"]
Mask = Bool[Tensor, "batch tokens"]
Pooled = Float[Tensor, "batch dim"]


def _fill(x: Tensor, key_mask: Tensor | None, value: float) -> Tensor:
    return x if key_mask is None else torch.where(key_mask[..., None], x, value)


def _nothing_is_zero(y: Tensor, key_mask: Tensor | None) -> Tensor:
    return y if key_mask is None else torch.where(key_mask.any(1)[:, None], y, 0.0)


def masked_count(
    x: Tokens, key_mask: Mask | None = None, *, dtype: torch.dtype | None = None
) -> Float[Tensor, "batch 1"]:
    """Number of real tokens, in the dtype of ``x`` unless another is given."""
    if key_mask is None:
        return x.new_full((x.shape[0], 1), x.shape[1], dtype=dtype)
    return key_mask.sum(1, keepdim=True).to(dtype or x.dtype)


def masked_sum(x: Tokens, key_mask: Mask | None = None, *, dtype: torch.dtype | None = None) -> Pooled:
    r"""The sum :math:`\sum_n x_n` over the real tokens, in the dtype of ``x`` unless another is given."""
    return _fill(x, key_mask, 0.0).sum(1, dtype=dtype)


def masked_mean(x: Tokens, key_mask: Mask | None = None) -> Pooled:
    r"""The mean :math:`\frac1N \sum_n x_n` over the N real tokens."""
    return _mean(x, key_mask).to(x.dtype)


def _mean(x: Tensor, key_mask: Tensor | None) -> Tensor:
    precise = accumulator(x.dtype)
    return masked_sum(x, key_mask, dtype=precise) / masked_count(x, key_mask, dtype=precise).clamp_min(1)


def masked_max(x: Tokens, key_mask: Mask | None = None) -> Pooled:
    r"""The largest value of each feature; tokens that tie share the gradient."""
    return _nothing_is_zero(_fill(x, key_mask, float("-inf")).amax(1), key_mask)


def masked_min(x: Tokens, key_mask: Mask | None = None) -> Pooled:
    r"""The smallest value of each feature; tokens that tie share the gradient."""
    return _nothing_is_zero(_fill(x, key_mask, float("inf")).amin(1), key_mask)


def masked_logsumexp(x: Tokens, key_mask: Mask | None = None) -> Pooled:
    r""":math:`\log \sum_n e^{x_n}` of each feature, whatever the size of x."""
    return _nothing_is_zero(_fill(x, key_mask, torch.finfo(x.dtype).min).logsumexp(1), key_mask)


def masked_std(x: Tokens, key_mask: Mask | None = None, *, eps: float = 0.0) -> Pooled:
    r"""The standard deviation :math:`\sqrt{\max(\frac1N \sum_n (x_n - \bar x)^2, \epsilon)}` (biased, as pooling uses it).

    In two passes, so that a large mean does not swallow a small deviation. Where the variance is at most ``eps`` the
    gradient is zero instead of infinite.
    """
    centred = x - _mean(x, key_mask)[:, None]
    variance = _mean(centred.square(), key_mask)
    spread = variance > eps
    root = torch.where(spread, variance, 1.0).sqrt()
    least = eps**0.5 if key_mask is None else eps**0.5 * key_mask.any(1)[:, None].to(root.dtype)
    return torch.where(spread, root, least).to(x.dtype)


def masked_quantile(x: Tokens, q: float, key_mask: Mask | None = None) -> Pooled:
    """The q-quantile of each feature, linear between order statistics (q = 0.5: the median)."""
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"q must be between 0 and 1, got {q}")
    ordered = _fill(x, key_mask, float("inf")).sort(1).values
    place = q * (masked_count(x, key_mask, dtype=torch.float64) - 1).clamp_min(0)  # a place among many tokens needs its digits
    low = place.floor().long()
    high = place.ceil().long()
    at = lambda index: ordered.gather(1, index[:, None].expand(-1, -1, x.shape[-1]))[:, 0]  # noqa: E731
    part = (place - low).to(x.dtype)
    below, above = (_nothing_is_zero(at(index), key_mask) for index in (low, high))
    return below + part * (above - below)
