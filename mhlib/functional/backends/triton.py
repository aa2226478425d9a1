"""Our Triton kernels: flash attention, and split-key decoding when a few queries meet a long cache.

Nothing here imports Triton before a request needs it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mhlib import masks
from mhlib.functional.normalizers import sink_of, softmax
from mhlib.functional.request import Request, Support
from mhlib.kernels.targets import available


FEW = 16  #: queries up to which a call counts as decoding: too few rows to fill a tile of flash attention


class _Mask(NamedTuple):
    """What the kernels know of masks: a reach to either side, and keys that nobody sees."""

    left: int | None
    right: int | None
    keys: Tensor | None


def supports(request: Request) -> Support:
    if request.return_weights:
        return Support(False, "it never holds the weights")
    if request.dropout:
        return Support(False, "it has no dropout")
    if request.bias is not None:
        return Support(False, "it adds no bias (mhlib.kernels.flash_attention takes ALiBi slopes)")
    if request.normalizer is not softmax and _sink(request) is None:
        return Support(False, "online normalisation needs softmax, softmax_one or sink_softmax")
    if _mask(request) is None:
        return Support(False, "of masks it knows (batch, 1, 1, keys), Causal and SlidingWindow")
    able = available(request.q.device)
    if not able:
        return able
    from mhlib.kernels.flash_attention import supports as flash_supports

    return flash_supports(request.q, request.k, request.v)


def run(request: Request) -> Tensor:
    from mhlib.kernels import decode_attention, flash_attention

    left, right, keys = _mask(request)
    sink = _sink(request)
    learned = request.needs_grad() or torch.is_grad_enabled() and sink is not None and sink.requires_grad
    kernel = decode_attention if request.q.shape[-2] <= FEW and not learned else flash_attention
    return kernel(request.q, request.k, request.v, scale=request.scale, window=(left, right), sink=sink, key_mask=keys)


def _sink(request: Request) -> Tensor | None:
    return sink_of(request.normalizer, request.q.shape[1], request.q)


def _mask(request: Request) -> _Mask | None:
    """The request's mask, causality and window as the kernels take them; None if they cannot."""
    left, right = request.reach
    mask = request.mask
    if mask is None:
        return _Mask(left, right, None)
    if isinstance(mask, Tensor):
        if mask.shape[1] != 1 or mask.shape[2] != 1:
            return None
        return _Mask(left, right, mask[:, 0, 0].expand(request.q.shape[0], request.k.shape[2]))
    if type(mask) is masks.Causal:
        return _Mask(left, _nearer(right, 0), None)
    if type(mask) is masks.SlidingWindow:
        return _Mask(_nearer(left, mask.left), _nearer(right, mask.right), None)
    return None


def _nearer(a: int | None, b: int) -> int:
    return b if a is None else min(a, b)
