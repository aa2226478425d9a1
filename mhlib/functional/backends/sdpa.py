"""PyTorch's fused attention, fed so that it takes its fast path."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mhlib.functional.normalizers import softmax
from mhlib.functional.request import Request, Support


FEW = 4  # queries for which the unfused path is as good


def supports(request: Request) -> Support:
    if request.return_weights:
        return Support(False, "it never holds the weights")
    if request.normalizer is not softmax:
        return Support(False, "it knows softmax alone")
    return Support(True)


def run(request: Request) -> Tensor:
    q, k, v = request.q, request.k, request.v
    (queries, dim), width = q.shape[-2:], v.shape[-1]
    causal = _plainly_causal(request)
    mask = None if causal else _table(request)
    # SDPA is fused only when queries, keys and values are equally wide: a zero column changes neither logit nor sum.
    # For a few queries that would copy the whole cache to save a handful of logits.
    if queries <= FEW:
        pass
    elif width < dim:
        v = F.pad(v, (0, dim - width))
    elif width > dim:
        q, k = F.pad(q, (0, width - dim)), F.pad(k, (0, width - dim))
    grouped = q.shape[1] != k.shape[1]
    packed = grouped and queries == 1 and (mask is None or mask.shape[1] == 1)
    if packed:  # one new token: a group's heads become the queries of its key head, so K and V are read once
        q, grouped = q.unflatten(1, (k.shape[1], -1)).squeeze(-2), False
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=request.dropout, is_causal=causal, scale=request.scale, enable_gqa=grouped
    )
    if packed:
        out = out.flatten(1, 2).unsqueeze(-2)
    return out[..., :width]


def _plainly_causal(request: Request) -> bool:
    """SDPA's own flag aligns the first query with the first key, so it serves only square, otherwise open attention."""
    open_otherwise = request.mask is None and request.bias is None and request.window[0] is None
    # A branch: where lengths are symbols of torch.compile, the comparison is one too, and the flag must be a constant.
    return True if request.causal and open_otherwise and request.offset == 0 and request.q.shape[-2] > 1 else False


def _table(request: Request) -> Tensor | None:
    sees_all = request.mask is None and request.window == (None, None) and request.offset >= 0
    if sees_all and (not request.causal or request.q.shape[-2] == 1):
        allowed = None  # a single last query is causal by itself
    else:
        allowed = request.allowed()
    if request.bias is None:
        return allowed
    bias = request.bias.to(request.q.dtype)
    return bias if allowed is None else torch.where(allowed, bias, float("-inf"))
