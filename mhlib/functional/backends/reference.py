"""Attention as the formula says it; every other backend is measured against this one."""

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.functional.precision import widened
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
    dtype = request.q.dtype
    q, k, v = (widened(x) for x in (request.q, request.k, request.v))  # products of large numbers leave float16
    logits, allowed = scores(q, k, request.scale), request.allowed()
    if request.bias is not None:
        logits, allowed = with_bias(logits, request.bias, allowed)
    weights = request.normalizer(logits, allowed)
    dropped = torch.dropout(weights, request.dropout, True) if request.dropout else weights
    out = weighted_sum(dropped, v).to(dtype)
    return (out, weights.to(dtype)) if request.return_weights else out


def with_bias(logits: Tensor, bias: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Logits with the bias added, and the mask with what a bias of -inf rules out: a whole row of -inf would be NaN."""
    ruled_out = bias == float("-inf")
    allowed = ~ruled_out if allowed is None else allowed & ~ruled_out
    return logits + bias.masked_fill(ruled_out, 0.0), allowed
