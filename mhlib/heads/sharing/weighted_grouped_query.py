"""Weighted grouped-query attention: a group's shared head is a learned weighted sum of its original heads.

Differs from grouped-query attention in ``project``: all H key and value matrices are kept while training and combined on
the fly; ``fold()`` then gives an ordinary grouped layer.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.cost.model import StageCost
from mhlib.heads.base import MultiHeadAttention, split_heads
from mhlib.heads.call import Call
from mhlib.heads.sharing.grouped_query import GroupedQueryAttention, check_convertible, options, sizes
from mhlib.registry import Reduction, register

__all__ = ["WeightedGroupedQueryAttention"]

GRANULARITIES = ("scalar", "column", "row")


def _is_mean_pooled():
    mha = MultiHeadAttention(16, 4)
    return (
        WeightedGroupedQueryAttention.from_multi_head(mha, 2, granularity="column"),
        GroupedQueryAttention.from_multi_head(mha, 2),
    )


def _is_multi_head():
    mha = MultiHeadAttention(16, 4)
    return WeightedGroupedQueryAttention.from_multi_head(mha, 4), mha


def _is_its_fold():
    layer = WeightedGroupedQueryAttention(16, 4, num_kv_heads=2, granularity="row")
    with torch.no_grad():
        layer.k_weights.normal_()
        layer.v_weights.normal_()
    return layer, layer.fold()


@register(
    "weighted_grouped_query_attention",
    kind="head",
    family="kv-sharing",
    stage="project",
    papers=(231,),
    properties=("causal", "decodes", "equivariant", "compiles"),
    example=lambda: WeightedGroupedQueryAttention(16, 4, num_kv_heads=2),
    reductions=(
        Reduction("equal weights (the start): grouped-query attention with mean-pooled heads", _is_mean_pooled),
        Reduction("num_kv_heads = num_heads with weights of one: multi-head attention", _is_multi_head, ({"causal": True},)),
        Reduction("folded after training: grouped-query attention", _is_its_fold),
    ),
)
class WeightedGroupedQueryAttention(GroupedQueryAttention):
    r"""Weighted grouped-query attention: with m = H / G heads in group g,

    .. math:: W_K^{(g)} = \sum_{h \in g} w_K^h \odot W_K^h, \qquad W_V^{(g)} = \sum_{h \in g} w_V^h \odot W_V^h

    The weights w start at 1/m, are not normalised, and are learned together with the original matrices W^h.

    Args:
        num_kv_heads: number of groups G.
        granularity: of the weights: "scalar" (WGQA, one per head), "column" (ColWGQA, one per head and number of the
            head) or "row" (RowWGQA, one per head and number of the token).

    All else as in :class:`mhlib.heads.MultiHeadAttention`. The cache is that of grouped-query attention.
    Source: Chinnakonduru and Mohapatra, "Weighted grouped query attention in transformers", arXiv 2407.10855 (row 231).
    """

    def __init__(self, dim: int, num_heads: int, *, num_kv_heads: int, granularity: str = "scalar", **options):
        if granularity not in GRANULARITIES:
            raise ValueError(f"granularity must be one of {', '.join(GRANULARITIES)}, got {granularity!r}")
        self.granularity = granularity
        super().__init__(dim, num_heads, num_kv_heads=num_kv_heads, **options)

    def make_projections(self, bias: bool) -> None:
        super().make_projections(bias)
        self.k_proj = nn.Linear(self.context_dim, self.num_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(self.context_dim, self.num_heads * self.v_head_dim, bias=bias)
        start = self.num_kv_heads / self.num_heads
        for name, width in (("k_weights", self.head_dim), ("v_weights", self.v_head_dim)):
            shape = {"scalar": (1, 1), "column": (width, 1), "row": (1, self.context_dim)}[self.granularity]
            self.register_parameter(name, nn.Parameter(torch.full((self.num_heads, *shape), start)))

    def project(self, x: Tensor, context: Tensor, call: Call):
        q = split_heads(self.q_proj(x), self.num_heads)
        k, v = (
            split_heads(F.linear(context, *self._pooled(proj, weights)), self.num_kv_heads)
            for proj, weights in ((self.k_proj, self.k_weights), (self.v_proj, self.v_weights))
        )
        if self.rope is not None:
            q, k = self.rope.rotate(q, call.q_pos), self.rope.rotate(k, call.k_pos)
        return q, (k, v)

    def _pooled(self, proj: nn.Linear, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        """Matrix and bias of the grouped projection. A bias has no rows, so row weights pool it by their mean."""
        matrix = proj.weight.unflatten(0, (self.num_heads, -1)) * weights
        matrix = matrix.unflatten(0, (self.num_kv_heads, -1)).sum(1).flatten(0, 1)
        if proj.bias is None:
            return matrix, None
        bias = proj.bias.unflatten(0, (self.num_heads, -1)) * weights.mean(-1)
        return matrix, bias.unflatten(0, (self.num_kv_heads, -1)).sum(1).flatten(0, 1)

    def fold(self) -> GroupedQueryAttention:
        """The same function as an ordinary grouped-query layer, for inference."""
        gqa = GroupedQueryAttention(**sizes(self), num_kv_heads=self.num_kv_heads, **options(self)).to(self.q_proj.weight)
        state = {name: value.clone() for name, value in self.state_dict().items() if name in gqa.state_dict()}
        with torch.no_grad():
            for name, weights in (("k_proj", self.k_weights), ("v_proj", self.v_weights)):
                matrix, bias = self._pooled(getattr(self, name), weights)
                state |= {f"{name}.weight": matrix} | ({} if bias is None else {f"{name}.bias": bias})
        gqa.load_state_dict(state)
        return gqa.train(self.training)

    @classmethod
    def from_multi_head(
        cls, mha: MultiHeadAttention, num_kv_heads: int, *, granularity: str = "scalar"
    ) -> "WeightedGroupedQueryAttention":
        """Keep the H key and value matrices of a trained multi-head layer and start from their group means."""
        check_convertible(mha)
        if mha.num_kv_heads != mha.num_heads:
            raise ValueError(f"expected a layer with a key head per head, got {mha.num_kv_heads} for {mha.num_heads} heads")
        layer = cls(**sizes(mha), num_kv_heads=num_kv_heads, granularity=granularity, **options(mha)).to(mha.q_proj.weight)
        layer.load_state_dict({name: value.clone() for name, value in mha.state_dict().items()}, strict=False)
        return layer.train(mha.training)

    def stage_costs(self, batch: int, queries: int, keys: int, new_keys: int) -> dict[str, StageCost]:
        stages = super().stage_costs(batch, queries, keys, new_keys)
        # The base counted k_proj and v_proj as applied to tokens; here they are pooled first, and that is applied.
        per_head = self.num_heads * (self.head_dim + self.v_head_dim) * self.context_dim
        saved = 2 * batch * new_keys * (per_head - per_head // self.num_heads * self.num_kv_heads)
        weights = self.k_weights.numel() + self.v_weights.numel()
        stages["project"] += StageCost(weights, -saved, 2 * per_head, 0)
        return stages
