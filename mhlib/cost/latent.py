"""The cost of multi-head latent attention, expanded and absorbed."""

from typing import Any

from torch import nn

from mhlib.cost.model import StageCost
from mhlib.cost.stages import core, linear, rotary_ops

#: Operations per number of an RMS norm: square, sum, scale by the root, scale by the weight.
NORM_OPS = 4


def break_even_queries(layer: Any, keys: int) -> float:
    """Up to how many queries the absorbed form takes no more matrix-product FLOPs than expanding every cached token.

    Expanding costs ``r G (d + d_v)`` multiply-adds per key, then a logit costs ``d + d_r + d_v`` instead of the absorbed
    ``2 r + d_r``; absorbing costs ``r H (d + d_v)`` per query.
    """
    rank, wide = layer.kv_rank, layer.head_dim + layer.v_head_dim
    expanding = rank * layer.num_kv_heads * wide * keys
    per_query = layer.num_heads * (keys * (2 * rank - wide) + rank * wide)
    return expanding / per_query if per_query > 0 else float("inf")


def multi_head_latent_attention(layer: Any, batch: int, n: int, m: int, new: int) -> dict[str, StageCost]:
    """Costs of ``MultiHeadLatentAttention``: absorbed when keys come from a cache and few queries ask, as it runs."""
    heads, groups, rank = layer.num_heads, layer.num_kv_heads, layer.kv_rank
    dim, turned, width = layer.head_dim, layer.rope_dim, layer.v_head_dim
    cached = rank + layer.rope_heads * turned
    absorbed = layer.execution == "absorbed" or layer.execution == "auto" and new < m and n <= break_even_queries(layer, m)

    project = linear(layer.q_a_proj, batch * n) + linear(layer.q_proj, batch * n) + linear(layer.kv_a_proj, batch * new)
    norms = [norm for norm in (layer.q_a_norm, layer.kv_a_norm) if isinstance(norm, nn.RMSNorm)]
    tokens = {layer.q_a_norm: n, layer.kv_a_norm: new}
    for norm in norms:
        project += StageCost(norm.weight.numel(), 0, NORM_OPS * batch * tokens[norm] * norm.weight.numel(), 0)
    project += StageCost(0, 0, rotary_ops(layer, batch * (n * heads + new * layer.rope_heads) * turned), 0)
    project += StageCost(0, 0, 0, batch * (n * layer.dim + n * heads * (dim + turned) + new * cached))

    up_k, up_v = StageCost(rank * groups * dim), StageCost(rank * groups * width)
    merge = linear(layer.o_proj, batch * n) + StageCost(0, 0, 0, batch * n * (heads * width + layer.dim))
    if absorbed:
        project += up_k + StageCost(0, 2 * batch * n * heads * dim * rank, 0, 0)
        stages = core(batch, heads, n, m, rank + turned, rank, cached)
        merge += up_v + StageCost(0, 2 * batch * n * heads * rank * width, 0, 0)
    else:
        made = groups * (dim + turned + width)
        up = up_k + up_v
        expand = up + StageCost(0, 2 * batch * m * up.parameters, 0, batch * m * (cached + made))
        stages = {"expand": expand, **core(batch, heads, n, m, dim + turned, width, made)}
    if isinstance(layer.position_bias, nn.Module):
        learned = sum(p.numel() for p in layer.position_bias.parameters())
        stages["score"] += StageCost(learned, 0, batch * heads * n * m, 0)
    return {"project": project, **stages, "merge": merge}
