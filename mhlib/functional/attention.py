"""Scaled dot-product attention with one meaning and several implementations."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mhlib.functional.backends import chunked, flex, reference, sdpa, triton
from mhlib.functional.normalizers import Normalizer, get_normalizer, sink_of, softmax
from mhlib.functional.request import Request, Support, window_sides
from mhlib.masks import Mask

__all__ = ["attention_backends"]  # attention itself is public as mhlib.attention; here the name is this module

BACKENDS = {"reference": reference, "chunked": chunked, "sdpa": sdpa, "flex": flex, "triton": triton}


def attention(
    q: Float[Tensor, "batch heads queries head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    mask: Bool[Tensor, "..."] | Mask | None = None,
    bias: Float[Tensor, "..."] | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: int | tuple[int | None, int | None] | None = None,
    normalizer: str | Normalizer = "softmax",
    dropout: float = 0.0,
    return_weights: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention of every query over the keys:

    .. math:: o_i = \sum_j w_{ij} v_j, \qquad w_{i\cdot} = \mathrm{normalize}_j(q_i \cdot k_j \cdot \mathrm{scale} + b_{ij})

    Args:
        q, k, v: queries, keys and values. ``kv_heads`` divides ``heads``: query head h reads key head
            ``h // (heads / kv_heads)`` (grouped-query attention; one key head is multi-query attention).
        mask: True = may attend. A boolean tensor that broadcasts to (batch, heads, queries, keys), or a
            :class:`mhlib.masks.Mask`. A query with nothing to attend to gets zeros and sends back no gradient.
        bias: added to the scaled logits; broadcasts likewise; receives a gradient.
        scale: factor of the dot product, 1 / sqrt(head_dim) by default.
        causal: a query sees no key after it. The last query stands at the last key, also when there are more keys than
            queries (decoding): query i sees key j when ``j <= i + keys - queries``.
        window: how far a query sees. An integer w: itself and w - 1 keys before it when ``causal``, else w // 2 each
            side. A pair (left, right): that many keys each side; None = no limit.
        normalizer: a name or callable of :mod:`mhlib.functional.normalizers`.
        dropout: probability with which a weight is dropped; the rest grow by 1 / (1 - dropout).
        return_weights: return (output, weights), the weights before dropout (batch, heads, queries, keys).
        backend: "reference" (the formula), "chunked" (memory linear in the keys), "sdpa" and "flex" (PyTorch's), "triton"
            (our kernels, on CUDA), or "auto", the fastest that serves the request. A backend never changes the result
            beyond rounding.

    Returns:
        (batch, heads, queries, value_dim), or a pair with the weights.

    Raises:
        ValueError: shapes or dtypes do not fit, or the named backend cannot serve the request (the message says which
            can).

    Source: Vaswani et al., "Attention is all you need", arXiv 1706.03762.
    """
    q, k, v = _autocast(q, k, v)
    _check_numbers(bias, scale)
    request = Request(
        q, k, v, mask,
        None if bias is None else bias.to(q.dtype),
        q.shape[-1] ** -0.5 if scale is None else scale,
        causal, window_sides(window, causal), get_normalizer(normalizer), dropout, return_weights,
    )  # fmt: skip
    _check(request)
    return _backend(backend, request).run(request)


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Under autocast all backends get its dtype, as PyTorch's own attention does: a cache may have been made in another."""
    kind = q.device.type
    if q.dtype == torch.float64 or not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return q, k, v
    dtype = torch.get_autocast_dtype(kind)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _check_numbers(bias: Tensor | None, scale: float | None) -> None:
    """What would silently mean something else."""
    if bias is not None and not bias.is_floating_point():
        raise ValueError(f"bias is added to the logits and must be of a float dtype, got {bias.dtype}; a boolean table goes in as mask")
    if isinstance(scale, Tensor):
        raise ValueError("scale must be a number, got a tensor; multiply the queries by a learned scale and pass scale=1.0")


def attention_backends(request: Request) -> dict[str, Support]:
    """Which backends can serve a request, and why the others cannot."""
    return {name: module.supports(request) for name, module in BACKENDS.items()}


def _backend(name: str, request: Request):
    if name == "auto":
        name = _choose(request)
    elif name not in BACKENDS:
        raise ValueError(f"backend must be 'auto' or one of {', '.join(BACKENDS)}, got {name!r}")
    module = BACKENDS[name]
    support = module.supports(request)
    if not support:
        able = [other for other, ok in attention_backends(request).items() if ok]
        raise ValueError(f"backend {name!r} cannot serve this request: {support.reason}; use {' or '.join(able)}")
    return module


#: Logits (queries x keys) beyond which holding a table of them costs more than going block by block.
LARGE = 2**22


def _choose(request: Request) -> str:
    queries, keys = request.q.shape[-2], request.k.shape[-2]
    half = request.q.dtype.itemsize == 2  # float32 takes three products each in our kernels: SDPA is ahead
    if request.q.device.type == "cuda" and (half or request.normalizer is not softmax) and triton.supports(request):
        return "triton"
    if request.return_weights or request.dropout and request.normalizer is not softmax:
        return "reference"
    if request.normalizer is not softmax:
        online = sink_of(request.normalizer, request.q.shape[1], request.q) is not None
        return "chunked" if online and queries * keys > LARGE else "reference"
    if request.dropout or request.q.device.type != "cpu" or isinstance(request.mask, Tensor):
        return "sdpa"
    left, right = request.reach
    bounded = left is not None and right is not None
    narrow = bounded and queries > 512 and keys > 2 * (left + right + 512)  # most blocks can be left out
    table = isinstance(request.mask, Mask) or bounded or (request.causal and request.offset)
    return "chunked" if narrow or table and queries * keys > LARGE else "sdpa"


def _check(request: Request) -> None:
    q, k, v = request.q, request.k, request.v
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not (q.ndim == k.ndim == v.ndim == 4):
        raise ValueError(f"q, k and v must be (batch, heads, tokens, head_dim), got {shapes}")
    if not (q.dtype == k.dtype == v.dtype and q.is_floating_point()):
        raise ValueError(f"q, k and v must share one float dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if not (q.shape[0] == k.shape[0] == v.shape[0]):
        raise ValueError(f"q, k and v must have the same batch size, got {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"queries and keys must be equally wide (last axis), got {shapes}")
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(f"keys and values must agree in heads and tokens, got {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"the number of key heads must divide the number of query heads, got {shapes}")
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if isinstance(request.mask, Mask):
        request.mask.check(q.shape[2], k.shape[2], q.shape[0])
    if isinstance(request.mask, Tensor):
        if request.mask.dtype != torch.bool:
            raise ValueError(f"mask must be boolean (True = may attend), got {request.mask.dtype}; for additive terms use bias")
        _check_table("mask", request.mask, full)
    if request.bias is not None:
        _check_table("bias", request.bias, full)
    if not 0.0 <= request.dropout < 1.0:
        raise ValueError(f"dropout is a probability in [0, 1), got {request.dropout}")


def _check_table(name: str, table: Tensor, full: tuple[int, ...]) -> None:
    if table.ndim != 4 or any(size not in (1, want) for size, want in zip(table.shape, full)):
        raise ValueError(
            f"{name} must broadcast to (batch, heads, queries, keys) = {full}, got {tuple(table.shape)}; "
            "a mask over keys (batch, keys) goes in as key_mask[:, None, None, :]"
        )
