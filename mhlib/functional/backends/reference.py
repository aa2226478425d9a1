"""Attention as the formula says it; every other backend is measured against this one."""

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.functional.request import Request, Support

__all__ = ["scores", "weighted_sum"]


def scores(
    q: Float[Tensor, "batch heads queries head_dim"], k: Float[Tensor, "batch kv_heads keys head_dim"], scale: float
) -> Float[Tensor, "batch heads queries keys"]:
    r"""Scaled dot products :math:`q_i \cdot k_j \cdot \mathrm{scale}`; fewer kv_heads than heads are shared by groups."""
    q = q * scale
    if q.shape[1] == k.shape[1]:
        return q @ k.mT
    group = q.shape[1] // k.shape[1]
    return torch.einsum("bgrnd,bgmd->bgrnm", q.unflatten(1, (-1, group)), k).flatten(1, 2)


def weighted_sum(
    weights: Float[Tensor, "batch heads queries keys"], v: Float[Tensor, "batch kv_heads keys value_dim"]
) -> Float[Tensor, "batch heads queries value_dim"]:
    r"""The weighted sum of the values, :math:`o_i = \sum_j w_{ij} v_j`; fewer kv_heads are shared by groups."""
    if weights.shape[1] == v.shape[1]:
        return weights @ v
    group = weights.shape[1] // v.shape[1]
    return torch.einsum("bgrnm,bgmd->bgrnd", weights.unflatten(1, (-1, group)), v).flatten(1, 2)


def supports(request: Request) -> Support:
    return Support(True)


def run(request: Request) -> Tensor | tuple[Tensor, Tensor]:
    logits = scores(request.q, request.k, request.scale)
    if request.bias is not None:
        logits = logits + request.bias
    weights = request.normalizer(logits, request.allowed())
    dropped = torch.dropout(weights, request.dropout, True) if request.dropout else weights
    out = weighted_sum(dropped, request.v)
    return (out, weights) if request.return_weights else out
