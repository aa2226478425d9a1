"""Four orders in which latent attention can decode: one result, different FLOPs and bytes (Geens and Verhelst, row 89)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mhlib.cost.devices import Device
from mhlib.cost.model import Cost, StageCost
from mhlib.functional.attention import attention
from mhlib.heads.latent.multi_head_latent import MultiHeadLatentAttention
from mhlib.registry import Example, Reduction, register

__all__ = ["DEEPSEEK_V3", "LatentShape", "ORDERS", "best_order", "latent_order_cost", "latent_orders"]

#: naive: make every cached token's keys and values. Absorbed, with M_h = W_UQ^h W_UK^hT: reuse reads a stored M_h;
#: recompute reads its two factors and multiplies them each step; sequential applies one factor after the other.
ORDERS = ("naive", "reuse", "recompute", "sequential")


@dataclass(frozen=True)
class LatentShape:
    """Sizes of a latent attention layer, in the paper's terms."""

    dim: int
    num_heads: int
    head_dim: int  # of the part without rotation
    rope_dim: int
    v_head_dim: int
    q_rank: int
    kv_rank: int


DEEPSEEK_V3 = LatentShape(7168, 128, 128, 64, 128, 1536, 512)


def _layer() -> MultiHeadLatentAttention:
    return MultiHeadLatentAttention(32, 4, head_dim=8, kv_rank=12, q_rank=10, rope_dim=4).double().eval()


def _decoding_step(layer: MultiHeadLatentAttention) -> dict:
    return {"layer": layer, "tokens": torch.randn(2, 9, 32, dtype=torch.float64)}


def _is_the_layer(order: str):
    problem = _decoding_step(_layer())
    return (
        lambda: latent_orders(**problem, order=order),
        lambda: problem["layer"](problem["tokens"], causal=True)[:, -1:],
    )


@register(
    "latent_execution_orders",
    kind="analysis",
    family="systems",
    papers=(89,),
    gradient="none",
    example=lambda: Example(latent_orders, _decoding_step(_layer()) | {"order": "recompute"}),
    reductions=tuple(
        Reduction(f"order {order!r}: multi-head latent attention", lambda order=order: _is_the_layer(order)) for order in ORDERS
    ),
)
def latent_orders(
    layer: MultiHeadLatentAttention, tokens: Float[Tensor, "batch tokens dim"], *, order: str
) -> Float[Tensor, "batch 1 dim"]:
    """The output for the last token, the others being its cache, computed in one of the ``ORDERS``.

    For layers with a query latent and one shared rotary key. ``latent_order_cost`` counts the same orders.
    Source: Geens and Verhelst, "Hardware-centric analysis of DeepSeek's multi-head latent attention", arXiv 2506.02523.
    """
    _known(order)
    heads, dim, turned, rank = layer.num_heads, layer.head_dim, layer.rope_dim, layer.kv_rank
    at = torch.arange(tokens.shape[1], device=tokens.device)
    latent, k_rope = layer.kv_a_proj(tokens).split([rank, turned], -1)
    latent, k_rope = layer.kv_a_norm(latent)[:, None], layer.rope.rotate(k_rope[:, None], at)
    c_q = layer.q_a_norm(layer.q_a_proj(tokens[:, -1:]))
    up_q, up_qr = layer.q_proj.weight.unflatten(0, (heads, -1)).split([dim, turned], 1)  # (heads, width, q_rank)
    up_k, up_v = layer.kv_b_proj.weight.unflatten(0, (heads, -1)).split([dim, layer.v_head_dim], 1)
    q_rope = layer.rope.rotate(torch.einsum("bnq,hdq->bhnd", c_q, up_qr), at[-1:])
    if order == "naive":
        q = torch.einsum("bnq,hdq->bhnd", c_q, up_q)
        k, v = torch.einsum("bgmc,hdc->bhmd", latent, up_k), torch.einsum("bgmc,hvc->bhmv", latent, up_v)
        k = torch.cat([k, k_rope.expand(-1, heads, -1, -1)], -1)
        out = attention(torch.cat([q, q_rope], -1), k, v, scale=layer.scale)
    else:
        if order == "sequential":
            q = torch.einsum("bhnd,hdc->bhnc", torch.einsum("bnq,hdq->bhnd", c_q, up_q), up_k)
        else:  # reuse keeps this product from step to step, recompute makes it anew
            q = torch.einsum("bnq,hqc->bhnc", c_q, torch.einsum("hdq,hdc->hqc", up_q, up_k))
        out = attention(torch.cat([q, q_rope], -1), torch.cat([latent, k_rope], -1), latent, scale=layer.scale)
        out = torch.einsum("bhnc,hvc->bhnv", out, up_v)
    return layer.o_proj(out.transpose(1, 2).flatten(2))


def latent_order_cost(order: str, shape: LatentShape, context: int, *, batch: int = 1, bytes_per_number: int = 2) -> Cost:
    """FLOPs and bytes of one decoding step; only the query side of the absorption changes with the order.

    The value side is taken sequentially throughout: its product W_UV W_O would be r x dim per head, far larger than its
    factors.
    """
    _known(order)
    s, b = shape, batch
    heads, nope, turned, width = s.num_heads, s.head_dim, s.rope_dim, s.v_head_dim
    down = StageCost(
        s.dim * (s.q_rank + s.kv_rank + turned) + s.q_rank * heads * turned,
        2 * b * (s.dim * (s.q_rank + s.kv_rank + turned) + s.q_rank * heads * turned),
        0,
        b * (s.dim + s.kv_rank + turned),
    )
    factors = heads * nope * (s.q_rank + s.kv_rank)  # weights of W_UQ and W_UK without the rotary part
    absorb = {
        "naive": StageCost(factors, 2 * b * heads * nope * (s.q_rank + context * s.kv_rank)),
        "reuse": StageCost(heads * s.q_rank * s.kv_rank, 2 * b * heads * s.q_rank * s.kv_rank),
        "recompute": StageCost(factors, 2 * heads * s.q_rank * s.kv_rank * (nope + b)),
        "sequential": StageCost(factors, 2 * b * factors),
    }[order]
    cache = b * context * (s.kv_rank + turned)
    if order == "naive":
        score = 2 * b * heads * context * (nope + turned + width)
        value = 2 * b * heads * width * context * s.kv_rank
    else:
        score = 2 * b * heads * context * (2 * s.kv_rank + turned)
        value = 2 * b * heads * width * s.kv_rank
    return Cost(
        {
            "project": down,
            "absorb": absorb,
            "attend": StageCost(0, score, 0, cache),
            "merge": StageCost(
                heads * width * (s.kv_rank + s.dim), value + 2 * b * heads * width * s.dim, 0, b * s.dim
            ),
        },
        bytes_per_number,
        s.kv_rank + turned,
    )


def best_order(shape: LatentShape, context: int, ridge: float, *, batch: int = 1) -> str:
    """The fastest order on a machine with that ridge (peak FLOP/s over bytes/s), by the roofline."""
    machine = Device("", flops=ridge, bandwidth=1.0, memory=0.0, source="")
    return min(ORDERS, key=lambda order: machine.seconds(latent_order_cost(order, shape, context, batch=batch)))


def _known(order: str) -> None:
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
