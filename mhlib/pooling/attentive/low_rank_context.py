"""LAMA: each head compares every token with one context vector by a bilinear form of low rank, and averages whole tokens.

Differs from attention pooling in ``queries`` (the context), ``project`` (thin maps, no value map), ``score`` (a tanh, and
the heads of a token share a budget) and ``merge`` (heads side by side).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.cost import stages
from mhlib.cost.model import StageCost
from mhlib.functional.pooling import masked_mean
from mhlib.heads.base import split_heads
from mhlib.pooling.attentive.query_pool import AttentionPool
from mhlib.registry import Reduction, register

__all__ = ["LowRankContextPool"]

CONTEXTS = ("mean", "learned", "given")


def _no_factor_is_mean():
    pool = LowRankContextPool(8, 3)
    with torch.no_grad():
        pool.k_proj.weight.zero_()
    return pool, lambda x: x.mean(1).repeat(1, 3)


def _attention_with_one_query():
    pool = LowRankContextPool(8, 3, rank=2, squash=False, normalize=False)

    def attention(x):
        q, k = (split_heads(F.linear(t, w.weight.to(x)), 3) for t, w in ((x.mean(1, keepdim=True), pool.q_proj), (x, pool.k_proj)))
        values = x[:, None].expand(-1, 3, -1, -1)
        return F.scaled_dot_product_attention(q, k, values, scale=1.0).flatten(1)

    return pool, attention


def _learned_context_is_one_vector_per_head():
    """A context that never changes only scales the second factor of each head."""
    pool = LowRankContextPool(8, 3, context="learned")

    def without_context(x):
        size = F.linear(pool.query[0], pool.q_proj.weight).to(x)
        z = F.normalize(torch.tanh(x @ (pool.k_proj.weight.to(x) * size[:, None]).T), dim=-1)
        return (z.softmax(1).mT @ x).flatten(1)

    return pool, without_context


@register(
    "low_rank_context_pool",
    kind="pool",
    family="pool-attentive",
    stage="queries, project, score, merge",
    papers=(186,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: LowRankContextPool(8, 3),
    reductions=(
        Reduction("a factor of zeros: mean pooling in every head", _no_factor_is_mean),
        Reduction("no tanh and no norm: multi-head attention with the context as query, heads of width rank", _attention_with_one_query),
        Reduction("a learned context: one vector per head and no context at all", _learned_context_is_one_vector_per_head),
    ),
    peers=("torch",),
)
class LowRankContextPool(AttentionPool):
    r"""Pooling with a context by low-rank bilinear heads (LAMA):

    .. math::
        f_{hn} = \tanh\Big(\sum_{r} (p_{hr} \cdot c)(q_{hr} \cdot x_n)\Big), \qquad
        a_h = \mathrm{softmax}_n\Big(\frac{f_{hn}}{|f_{\cdot n}|_2}\Big), \qquad y = \mathrm{concat}_h \sum_n a_{hn} x_n

    The form :math:`W_h = \sum_r p_{hr} q_{hr}^\top` has rank R; the paper uses 1. The norm is over the heads of one token.

    Args:
        dim: width D of the tokens and of the context.
        num_heads: number H of heads; the output is (batch, H * D).
        rank: rank R of each head's form.
        context: "mean" of the tokens, "learned" (one vector for all sets), or "given" by the caller as ``query=`` (batch, D).
        squash: whether the tanh is there.
        normalize: whether a token's logits are divided by their length; never done with one head, where only signs would be
            left.

    Weights are (batch, heads, 1, tokens). Both factors start uniform in ±1/sqrt(D), the learned context normal.
    Source: Mehta et al., "Low rank factorization for compact multi-head self-attention", arXiv 1912.00835 (row 186).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        rank: int = 1,
        context: str = "mean",
        squash: bool = True,
        normalize: bool = True,
        **options: Any,
    ):
        if context not in CONTEXTS:
            raise ValueError(f"context must be one of {', '.join(CONTEXTS)}, got {context!r}")
        if num_heads < 1 or rank < 1:
            raise ValueError(f"num_heads and rank must be at least 1, got {num_heads} and {rank}")
        self.source = context
        super().__init__(dim, num_heads, head_dim=rank, v_head_dim=dim, **options)
        self.scale, self.squash, self.norm_heads = 1.0, squash, normalize and num_heads > 1
        if context == "given":
            self.inputs = ("query",)

    def make_projections(self, bias: bool) -> None:
        self.q_proj = nn.Linear(self.dim, self.num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(self.dim, self.num_heads * self.head_dim, bias=bias)

    def make_queries(self) -> None:
        if self.source == "learned":
            self.query = nn.Parameter(torch.randn(1, self.dim))

    def queries(self, x, key_mask, extra) -> Float[Tensor, "batch 1 dim"]:
        if self.source == "mean":
            return masked_mean(x, key_mask)[:, None]
        if self.source == "learned":
            return super().queries(x, key_mask, extra)
        if extra["query"].shape != (x.shape[0], self.dim):
            raise ValueError(f"query must be (batch, dim) = {(x.shape[0], self.dim)}, got {tuple(extra['query'].shape)}")
        return extra["query"][:, None]

    def project(self, x, context, call):
        q, k = split_heads(self.q_proj(x), self.num_heads), split_heads(self.k_proj(context), self.num_heads)
        return q, (k, context[:, None])  # one value head for all: whole tokens

    def score(self, q, k, call):
        logits = super().score(q, k, call)
        logits = logits.tanh() if self.squash else logits
        return F.normalize(logits, dim=1, eps=1e-6) if self.norm_heads else logits

    def merge(self, heads, call):
        return heads.transpose(1, 2).flatten(2)

    def stage_costs(self, batch, queries, keys, new_keys):
        found = stages.core(batch, self.num_heads, queries, keys, self.head_dim, self.dim, self.head_dim + self.dim)
        logits = batch * self.num_heads * queries * keys
        found["score"] += StageCost(0, 0, logits * (self.squash + 3 * self.norm_heads), 0)
        found["project"] = stages.linear(self.q_proj, batch * queries) + stages.linear(self.k_proj, batch * new_keys)
        learned = self.dim if self.source == "learned" else 0
        found["project"] += StageCost(learned, 0, 0, batch * (queries + new_keys) * (self.dim + self.num_heads * self.head_dim))
        found["merge"] = StageCost(0, 0, 0, batch * queries * self.num_heads * self.dim)
        return found
