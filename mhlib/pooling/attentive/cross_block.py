"""One cross-attention block for both directions of a set autoencoder: it pools a set, and it unpools it again (row 9).

Differs from multi-head attention in ``project`` (both sides are normed) and in ``merge`` (residual path and gated MLP); its
pool differs in that the queries are learned.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.checkpoints.decoder import GatedMLP
from mhlib.cost.model import StageCost
from mhlib.cost.stages import linear
from mhlib.heads.base import MultiHeadAttention
from mhlib.heads.call import Call
from mhlib.pooling.attentive.query_pool import AttentionPool
from mhlib.registry import Reduction, register

__all__ = ["CrossAttentionBlock", "InducedPool"]

EPS = 1e-8  # of the released configuration


def _without_mlp_is_pre_norm_attention():
    block = CrossAttentionBlock(8, 2)
    plain = MultiHeadAttention(8, 2)
    with torch.no_grad():
        block.mlp.down.weight.zero_()
        plain.load_state_dict(block.state_dict(), strict=False)

    def reduced(x: Tensor) -> Tensor:
        return x + plain.to(x.dtype)(block.query_norm(x), block.context_norm(x))

    return block, reduced


def _no_query_projection_is_mean():
    pool = InducedPool(8, 2, num_queries=3)
    with torch.no_grad():
        pool.q_proj.weight.zero_()
        pool.mlp.down.weight.zero_()
    return pool, lambda x: pool.query + pool.o_proj(pool.v_proj(pool.context_norm(x)).mean(1, keepdim=True))


@register(
    "cross_attention_block",
    kind="head",
    family="pool-attentive",
    stage="project, merge",
    papers=(9,),
    properties=("equivariant", "compiles"),
    example=lambda: CrossAttentionBlock(8, 2),
    reductions=(
        Reduction("gated MLP of zero: pre-norm multi-head attention with a residual path", _without_mlp_is_pre_norm_attention),
    ),
    peers=("torch",),
)
class CrossAttentionBlock(MultiHeadAttention):
    r"""Multi-head cross-attention block (MCAB): every query reads a set, in one pre-norm transformer block (row 9).

    .. math:: z = q + \mathrm{attention}(\mathrm{norm}_q(q), \mathrm{norm}_x(x)), \qquad y = z + \mathrm{SwiGLU}(\mathrm{norm}(z))

    With the set's own items as queries it unpools: one output for each item asked for, in the order of asking. With learned
    queries it pools: :class:`mhlib.pooling.InducedPool`.

    Arguments as in :class:`mhlib.heads.MultiHeadAttention`. The gated MLP is 8/3 dim wide inside, rounded up to a multiple of 4.
    Source: Palla et al., "Scalable single-cell gene expression generation with latent diffusion models", arXiv 2511.02986
    (row 9).
    """

    def make_projections(self, bias: bool) -> None:
        super().make_projections(bias)
        self.query_norm, self.mlp_norm = (nn.LayerNorm(self.dim, eps=EPS) for _ in range(2))
        self.context_norm = nn.LayerNorm(self.context_dim, eps=EPS)
        self.mlp = GatedMLP(self.dim, -(-(8 * self.dim // 3) // 4) * 4)

    def project(self, x: Tensor, context: Tensor, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        return super().project(self.query_norm(x), self.context_norm(context), call)

    def merge(self, heads: Tensor, call: Call) -> Float[Tensor, "batch queries dim"]:
        y = call.x + super().merge(heads, call)
        return y + self.mlp(self.mlp_norm(y))

    def stage_costs(self, batch: int, queries: int, keys: int, new_keys: int) -> dict[str, StageCost]:
        stages = super().stage_costs(batch, queries, keys, new_keys)
        n, hidden = batch * queries, self.mlp.gate.out_features
        norms = 8 * (n * self.dim + batch * new_keys * self.context_dim)
        stages["project"] += StageCost(2 * self.dim + 2 * self.context_dim, 0, norms, 0)
        stages["merge"] += StageCost(2 * self.dim, 0, n * (10 * self.dim + 6 * hidden), n * self.dim)
        for proj in (self.mlp.gate, self.mlp.up, self.mlp.down):
            stages["merge"] += linear(proj, n)
        return stages


@register(
    "induced_pool",
    kind="pool",
    family="pool-attentive",
    papers=(9,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: InducedPool(8, 2, num_queries=3),
    reductions=(
        Reduction("no query projection and no MLP: mean pooling of the values, added to each query", _no_query_projection_is_mean),
    ),
    peers=("torch",),
)
class InducedPool(CrossAttentionBlock, AttentionPool):
    r"""Pooling with inducing points: m learned queries read the set through one cross-attention block (row 9).

    What it gives is a set of m tokens of width dim, whatever the number and the order of the tokens that came in.

    Args:
        dim: width of the tokens.
        num_heads: number of heads.
        num_queries: number m of inducing points; they start normal with deviation 1.

    All else as in :class:`mhlib.pooling.AttentionPool`.
    Source: Palla et al., "Scalable single-cell gene expression generation with latent diffusion models", arXiv 2511.02986
    (row 9).
    """

    def make_queries(self) -> None:
        self.query = nn.Parameter(torch.randn(self.num_queries, self.dim))
