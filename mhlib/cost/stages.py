"""The cost of plain multi-head attention, stage by stage; subclasses replace the entries of the stages that they change."""

from typing import Any

from torch import nn

from mhlib.cost.model import StageCost

#: Operations per logit: scale, subtract the maximum, exponential, sum, divide, and the comparison that found the maximum.
SOFTMAX_OPS = 6


def linear(layer: nn.Linear | None, tokens: int) -> StageCost:
    """A linear map applied to ``tokens`` tokens, without the traffic of its input and output."""
    if layer is None:
        return StageCost()
    biases = 0 if layer.bias is None else layer.out_features
    weights = layer.in_features * layer.out_features
    return StageCost(weights + biases, 2 * tokens * weights, tokens * biases)


def core(batch: int, heads: int, n: int, m: int, score_dim: int, value_dim: int, kv_numbers: int) -> dict[str, StageCost]:
    """Score, normalize and aggregate.

    Args:
        kv_numbers: numbers per key that must be read for all heads of one sequence. They are charged to score as keys
            and values together, for a fused kernel reads them in one pass.
    """
    logits = batch * heads * n * m
    return {
        "score": StageCost(0, 2 * logits * score_dim, 0, batch * (n * heads * score_dim + m * kv_numbers)),
        "normalize": StageCost(0, 0, SOFTMAX_OPS * logits, 0),
        "aggregate": StageCost(0, 2 * logits * value_dim, 0, batch * n * heads * value_dim),
    }


def rotary_ops(layer: Any, numbers: int) -> int:
    """Turning a pair takes 4 products and 2 sums, 3 operations per number turned."""
    return 0 if layer.rope is None else 3 * numbers


def multi_head_attention(layer: Any, batch: int, n: int, m: int, new: int) -> dict[str, StageCost]:
    """Costs of ``MultiHeadAttention`` for ``n`` queries and ``m`` keys, ``new`` of which are projected now."""
    heads, groups, dim, width = layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.v_head_dim
    turned = 0 if layer.rope is None else layer.rope.dim
    project = (
        linear(layer.q_proj, batch * n)
        + linear(layer.k_proj, batch * new)
        + linear(layer.v_proj, batch * new)
        + StageCost(0, 0, rotary_ops(layer, batch * (n * heads + new * groups) * turned), 0)
        + StageCost(0, 0, 0, batch * (n * layer.dim + n * heads * dim + new * groups * (dim + width)))
    )
    if new != n:  # keys from a context of their own
        project += StageCost(0, 0, 0, batch * new * layer.context_dim)
    stages = core(batch, heads, n, m, dim, width, groups * (dim + width))
    if isinstance(layer.position_bias, nn.Module):
        learned = sum(p.numel() for p in layer.position_bias.parameters())
        stages["score"] += StageCost(learned, 0, batch * heads * n * m, 0)
    merge = linear(layer.o_proj, batch * n) + StageCost(0, 0, 0, batch * n * (heads * width + layer.dim))
    return {"project": project, **stages, "merge": merge}
