"""PyTorch's FlexAttention: masks as rules, block-sparse on CUDA."""

import functools

import torch
from torch import Tensor

from mhlib.functional.normalizers import softmax
from mhlib.functional.request import Request, Support
from mhlib.masks import Mask


def supports(request: Request) -> Support:
    if request.return_weights:
        return Support(False, "it never holds the weights")
    if request.normalizer is not softmax:
        return Support(False, "it knows softmax alone")
    if request.dropout:
        return Support(False, "it has no dropout")
    if request.q.device.type == "cpu" and request.needs_grad():
        return Support(False, "it has no backward pass on CPU")
    if 0 in (*request.q.shape, *request.k.shape):
        return Support(False, "it divides by the number of blocks, and without queries or keys there are none")
    if request.q.dtype == torch.float64:
        return Support(False, "it does not take float64")
    return Support(True)


@functools.cache
def _compiled() -> tuple:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return torch.compile(flex_attention, dynamic=False), create_block_mask


def run(request: Request) -> Tensor:
    flex_attention, create_block_mask = _compiled()
    q, k, v = request.q, request.k, request.v
    block_mask = None
    rule = _rule(request)
    if rule is not None:
        block_mask = create_block_mask(rule, q.shape[0], q.shape[1], q.shape[-2], k.shape[-2], device=q.device)
    score_mod = None
    if request.bias is not None:
        bias = request.bias.expand(q.shape[0], q.shape[1], q.shape[-2], k.shape[-2])

        def score_mod(score, b, h, i, j):
            return score + bias[b, h, i, j]

    return flex_attention(
        q, k, v, score_mod=score_mod, block_mask=block_mask, scale=request.scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _rule(request: Request):
    left, right = request.reach
    offset, mask = request.offset, request.mask
    if isinstance(mask, Mask):
        inner = mask.flex(request.q.shape[-2], request.k.shape[-2])
    elif mask is not None:
        table = mask.expand(request.q.shape[0], request.q.shape[1], request.q.shape[-2], request.k.shape[-2])

        def inner(b, h, i, j):
            return table[b, h, i, j]
    else:
        inner = None
    if left is None and right is None:
        return inner

    def rule(b, h, i, j):
        ok = j == j
        if left is not None:
            ok = ok & (i + offset - j <= left)
        if right is not None:
            ok = ok & (j - i - offset <= right)
        return ok if inner is None else ok & inner(b, h, i, j)

    return rule
