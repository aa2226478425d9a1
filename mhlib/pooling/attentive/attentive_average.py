"""Multi-head attentive average pooling: a small scorer per head looks at each token and weighs whole tokens.

Differs from attention pooling in ``project``: keys are hidden units of the scorer, the learned query reads them out, and
every head averages the tokens themselves, at full width.
"""

from typing import Any

import torch
from torch import nn

from mhlib.cost import stages
from mhlib.cost.model import StageCost
from mhlib.heads.base import split_heads
from mhlib.pooling.attentive.query_pool import AttentionPool
from mhlib.registry import Reduction, register

__all__ = ["AttentiveAveragePool"]


def _no_scorer_is_mean():
    pool = AttentiveAveragePool(8, 2)
    with torch.no_grad():
        pool.query.zero_()
    return pool, lambda x: pool.o_proj(x.mean(1).repeat(1, 2))


def _one_head():
    pool = AttentiveAveragePool(8, 1)

    def self_attentive(x):
        scores = torch.tanh(pool.hidden(x)) @ pool.query[0].to(x)
        return pool.o_proj((scores.softmax(1)[..., None] * x).sum(1))

    return pool, self_attentive


@register(
    "attentive_average_pool",
    kind="pool",
    family="pool-attentive",
    stage="project",
    papers=(4,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: AttentiveAveragePool(8, 2),
    reductions=(
        Reduction("scorers of zeros: mean pooling and the output map", _no_scorer_is_mean),
        Reduction("one head: self-attentive pooling, softmax(v tanh(W x + b))", _one_head),
    ),
    peers=("torch_geometric",),
)
class AttentiveAveragePool(AttentionPool):
    r"""Multi-head attentive average pooling, with full-width heads:

    .. math::
        e_n^h = v_h \cdot \tanh(W_h x_n + b_h), \qquad a^h = \mathrm{softmax}_n(e^h), \qquad
        y = \mathrm{concat}_h\!\Big(\sum_n a_n^h x_n\Big) W_O

    with :math:`W_h` of shape (dim / heads, dim): as attention, keys are :math:`\tanh(W_h x + b_h)`, the learned query is
    :math:`v_h`, values are the tokens, and nothing is scaled.

    Args:
        dim: width of the tokens and of the result.
        num_heads: number of heads, each with a scorer of dim / num_heads hidden units.

    Weights are (batch, heads, 1, tokens). Scorers v start with deviation 1 / sqrt(dim / heads), all else as in
    ``torch.nn.Linear``. Source: Shendabadi et al., arXiv 2602.06000 (row 4); one head is Lin et al., arXiv 1703.03130.
    """

    def __init__(self, dim: int, num_heads: int = 1, **options: Any):
        super().__init__(dim, num_heads, v_head_dim=dim, **options)
        self.scale = 1.0

    def make_projections(self, bias: bool) -> None:
        self.hidden = nn.Linear(self.dim, self.dim)
        self.o_proj = nn.Linear(self.num_heads * self.dim, self.dim, bias=bias)

    def make_queries(self) -> None:
        self.query = nn.Parameter(self.head_dim**-0.5 * torch.randn(1, self.dim))

    def project(self, x, context, call):
        keys = split_heads(torch.tanh(self.hidden(context)), self.num_heads)
        return split_heads(x, self.num_heads), (keys, context[:, None].expand(-1, self.num_heads, -1, -1))

    def stage_costs(self, batch, queries, keys, new_keys):
        found = stages.core(batch, self.num_heads, queries, keys, self.head_dim, self.dim, 2 * self.dim)
        scorer = stages.linear(self.hidden, batch * new_keys) + StageCost(self.dim, 0, batch * new_keys * self.dim, 0)
        found["project"] = scorer + StageCost(0, 0, 0, batch * new_keys * 2 * self.dim)
        found["merge"] = stages.linear(self.o_proj, batch * queries) + StageCost(0, 0, 0, batch * queries * self.dim)
        return found
