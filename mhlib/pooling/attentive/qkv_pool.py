"""QKV pooling: self-attention among the tokens, then the mean of what they fetched.

Differs from attention pooling in that every token asks, and in ``normalize``: the mean over queries is taken on the weights,
where it is one row per head, instead of on the outputs.
"""

from typing import Any

import torch
from torch import Tensor

from mhlib.cost.model import StageCost
from mhlib.functional.pooling import masked_mean
from mhlib.heads.base import MultiHeadAttention
from mhlib.pooling.attentive.query_pool import AttentionPool
from mhlib.registry import Reduction, register

__all__ = ["QKVPool"]


def _no_query_is_mean():
    pool = QKVPool(8, 2)
    with torch.no_grad():
        pool.q_proj.weight.zero_()
    return pool, lambda x: pool.o_proj(pool.v_proj(x).mean(1))


def _mean_of_self_attention():
    pool, attention = QKVPool(8, 2), MultiHeadAttention(8, 2)
    attention.load_state_dict(pool.state_dict())
    return pool, lambda x: attention.to(x)(x).mean(1)


def _column_means():
    pool = QKVPool(8, 2)
    return pool, lambda x: pool(x, return_weights=True)[0]


@register(
    "qkv_pool",
    kind="pool",
    family="pool-attentive",
    stage="queries, normalize",
    papers=(4,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: QKVPool(8, 2),
    reductions=(
        Reduction("a query map of zeros: mean pooling of the values", _no_query_is_mean),
        Reduction("the mean over the outputs of multi-head attention", _mean_of_self_attention),
        Reduction("the column means of the weights give the same as the mean of the outputs", _column_means),
    ),
    peers=("torch",),
)
class QKVPool(AttentionPool):
    r"""QKV pooling, the mean of self-attention, by the column means of its weights:

    .. math::
        y = \mathrm{concat}_h\!\Big(\frac1N \sum_i A^h_{i\cdot} V^h\Big) W_O
          = \mathrm{concat}_h(\bar A^h V^h)\, W_O, \qquad \bar A^h_j = \frac1N \sum_i A^h_{ij}

    Args:
        dim: width of the tokens and of the result.
        num_heads: number of heads.
        asks: "tokens", all of them, as the paper; or "mean": their mean alone, in linear time.

    Weights are (batch, heads, 1, tokens): the column means. Padded tokens neither ask nor answer.
    Source: Shendabadi et al., arXiv 2602.06000 (row 4).
    """

    def __init__(self, dim: int, num_heads: int = 1, *, asks: str = "tokens", **options: Any):
        if asks not in ("tokens", "mean"):
            raise ValueError(f"asks must be 'tokens' or 'mean', got {asks!r}")
        super().__init__(dim, num_heads, **options)
        self.asks = asks

    def make_queries(self) -> None:
        """None: the set asks for itself."""

    def queries(self, x, key_mask, extra):
        return x if self.asks == "tokens" else masked_mean(x, key_mask)[:, None]

    def normalize(self, logits, mask, call):
        return self.over_queries(super().normalize(logits, mask, call), call)

    def fused(self, q, k, v, mask, call):
        return self.over_queries(super().fused(q, k, v, mask, call), call)

    def over_queries(self, x: Tensor, call: Any) -> Tensor:
        """The mean over the real queries of (batch, heads, queries, width), as one row."""
        if self.asks == "mean":
            return x
        if call.key_mask is None:
            return x.mean(2, keepdim=True)
        real = call.key_mask[:, None, :, None]
        return torch.where(real, x, 0.0).sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp_min(1)

    def stage_costs(self, batch, queries, keys, new_keys):
        found = super().stage_costs(batch, queries, keys, new_keys)
        if self.asks == "tokens":  # one row of weights is left to aggregate and to merge
            one = super().stage_costs(batch, 1, keys, new_keys)
            found |= {"aggregate": one["aggregate"], "merge": one["merge"]}
            found["normalize"] += StageCost(0, 0, batch * self.num_heads * queries * keys, 0)
        return found
