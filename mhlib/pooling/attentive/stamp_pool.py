"""STAMP's pool: K learned queries in each head over tokens that are key and value at once, combined to one vector (row 1).

Differs from attention pooling in ``project`` (queries live in the heads, one map for keys and values) and in ``merge`` (the K
results of a head become one, and a little of the plain mean is added). Dropout is where the paper's code has it.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.cost.model import StageCost
from mhlib.cost.stages import core, linear
from mhlib.functional.pooling import masked_mean
from mhlib.heads.base import split_heads
from mhlib.heads.call import Call
from mhlib.pooling.attentive.query_pool import AttentionPool
from mhlib.registry import Reduction, register

__all__ = ["StampPool"]

COMBINATIONS = ("weighted_sum", "max", "learned_weights", "all_concat")


def _no_query_is_mean():
    pool = StampPool(8, 2, num_queries=3)
    with torch.no_grad():
        pool.query.zero_()
    return pool, lambda x: pool.o_proj(pool.kv_proj(x.to(pool.query)).mean(1)) + pool.residual * x.mean(1)


def _one_query_is_attention_pool():
    pool, plain = StampPool(8, 2, num_queries=1, residual=0.0), AttentionPool(8, 2, bias=True)
    with torch.no_grad():
        plain.q_proj.weight.copy_(torch.eye(8))
        for proj in (plain.k_proj, plain.v_proj):
            proj.weight.copy_(pool.kv_proj.weight)
        for proj in (plain.q_proj, plain.k_proj, plain.v_proj):
            proj.bias.zero_()
        plain.o_proj.load_state_dict(pool.o_proj.state_dict())
        plain.query.copy_(pool.query)
    return pool, plain


def _weighted_sum_is_the_mean_of_queries():
    pool = StampPool(8, 2, num_queries=3)
    every = StampPool(8, 2, num_queries=3, combine="all_concat")
    with torch.no_grad():
        every.kv_proj.load_state_dict(pool.kv_proj.state_dict())
        every.query.copy_(pool.query)
        per_head = pool.o_proj.weight.unflatten(1, (2, 1, 4)) / 3  # each query of a head gets the head's columns, over K
        every.o_proj.weight.copy_(per_head.expand(-1, -1, 3, -1).flatten(1))
        every.o_proj.bias.copy_(pool.o_proj.bias)
    return pool, every


@register(
    "stamp_pool",
    kind="pool",
    family="pool-attentive",
    papers=(1,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: StampPool(8, 2, num_queries=3),
    reductions=(
        Reduction("queries of zeros: mean pooling of the projected tokens", _no_query_is_mean),
        Reduction("one query per head: attention pooling with one map for keys and values", _one_query_is_attention_pool),
        Reduction("'weighted_sum' outside of training: the uniform mean over the queries", _weighted_sum_is_the_mean_of_queries),
    ),
    peers=("torch",),
)
class StampPool(AttentionPool):
    r"""STAMP's multi-query pool: K queries per head, combined to one vector, plus a little of the mean (row 1).

    .. math:: z_k^h = \mathrm{softmax}\!\left(\frac{u_k^h P_h^\top}{\sqrt{d_h}}\right) P_h, \quad P_h = x W^h, \qquad
        y = \mathrm{concat}_h\Big(\sum_k \beta_k^h z_k^h\Big) W_O + b + \lambda \bar x

    How the K results of a head are combined:

    - "weighted_sum": :math:`\beta^h = \mathrm{softmax}_k(\sum_n w_{kn}^h)`. The weights of a query sum to one, so this is
      1/K each, unless dropout has just struck some of them out: outside of training it is the mean over the queries.
    - "max": the query with the largest :math:`\sum_n w_{kn}^h` alone. Outside of training they tie and the first one
      counts (the paper's code leaves the choice to rounding).
    - "learned_weights": an MLP of the mean token gives :math:`\beta`, with one softmax over all heads and queries.
    - "all_concat": nothing is summed; W_O reads all K of them.

    Args:
        dim: width of the tokens and of the output.
        num_heads: number of heads.
        num_queries: queries K per head.
        combine: one of the four above.
        residual: how much (lambda) of the mean token is added.
        dropout: of the projected tokens, of the weights and in the MLP, in training.

    Queries start normal with deviation 0.02, all but the first with another 0.1 on top; maps start Xavier-uniform.
    Source: Shook et al., "STAMP: Spatial-temporal adapter with multi-head pooling", arXiv 2511.10848 (row 1).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 4,
        *,
        num_queries: int = 8,
        combine: str = "weighted_sum",
        residual: float = 0.1,
        dropout: float = 0.0,
    ):
        if combine not in COMBINATIONS:
            raise ValueError(f"combine must be one of {', '.join(COMBINATIONS)}, got {combine!r}")
        self.combine, self.residual = combine, residual
        super().__init__(dim, num_heads, num_queries=num_queries, dropout=dropout)
        if combine == "all_concat":
            self.o_proj = nn.Linear(num_queries * dim, dim)
        if combine == "learned_weights":
            hidden = max(1, dim // 2)
            self.weigh = nn.Sequential(
                nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, num_heads * num_queries)
            )
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def make_projections(self, bias: bool) -> None:
        self.kv_proj = nn.Linear(self.dim, self.num_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, self.dim)

    def make_queries(self) -> None:
        super().make_queries()  # (K, heads * head_dim): they are not projected
        with torch.no_grad():
            self.query[1:] += 0.1 * torch.randn_like(self.query[1:])

    def project(self, x: Tensor, context: Tensor, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        tokens = nn.functional.dropout(self.kv_proj(context), self.dropout, self.training)
        tokens = split_heads(tokens, self.num_heads)
        return split_heads(x, self.num_heads), (tokens, tokens)

    def aggregate(
        self, weights: Float[Tensor, "batch heads queries keys"], v: Tensor, call: Call
    ) -> Float[Tensor, "batch heads queries v_head_dim"]:
        call.extra["mass"] = weights.sum(-1)  # one, but for what dropout has done to it
        return super().aggregate(weights, v, call)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: Call) -> Tensor:
        if not (self.training and self.dropout):
            return super().fused(q, k, v, mask, call)
        weights = self.normalize(self.score(q, k, call), mask, call)
        return self.aggregate(torch.dropout(weights, self.dropout, True), v, call)

    def merge(self, heads: Float[Tensor, "batch heads queries v_head_dim"], call: Call) -> Float[Tensor, "batch 1 dim"]:
        if self.combine == "all_concat":
            pooled = heads.flatten(1)
        else:
            pooled = (self.shares(heads, call)[..., None] * heads).sum(2).flatten(1)
        y = self.o_proj(pooled)
        if self.residual:
            y = y + self.residual * masked_mean(call.context, call.key_mask)
        return y[:, None]

    def shares(self, heads: Tensor, call: Call) -> Float[Tensor, "batch heads queries"]:
        """How much each query of a head counts: beta."""
        if self.combine == "learned_weights":
            logits = self.weigh(masked_mean(call.context, call.key_mask))
            return logits.softmax(-1).unflatten(-1, (self.num_heads, self.num_queries))
        # Without dropout the sums are one by definition. Computed ones would be one up to rounding, and "max" would follow it.
        mass = call.extra["mass"] if self.training and self.dropout else torch.ones_like(heads[..., 0])
        if self.combine == "max":
            return nn.functional.one_hot(mass.argmax(-1), self.num_queries).to(mass.dtype)
        return mass.softmax(-1)

    def stage_costs(self, batch: int, queries: int, keys: int, new_keys: int) -> dict[str, StageCost]:
        width, rows = self.num_heads * self.head_dim, batch * self.num_heads * queries
        learned = StageCost(self.query.numel(), 0, 0, batch * (new_keys * (self.dim + width) + queries * width))
        merge = linear(self.o_proj, batch) + StageCost(0, 0, 2 * rows * self.head_dim + batch * keys * self.dim, 0)
        if self.combine == "learned_weights":
            merge += linear(self.weigh[0], batch) + linear(self.weigh[3], batch)
        stages = core(batch, self.num_heads, queries, keys, self.head_dim, self.head_dim, width)
        return {"project": linear(self.kv_proj, batch * new_keys) + learned, **stages, "merge": merge}
