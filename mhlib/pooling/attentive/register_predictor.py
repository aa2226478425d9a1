"""Reading registers off the patches: R learned probes, one attention pool, one MLP (row 3).

Differs from attention pooling in ``project`` (the tokens are normed) and in ``merge`` (an MLP on a residual path).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.heads.call import Call
from mhlib.pooling.attentive.query_pool import AttentionPool
from mhlib.registry import Reduction, register

__all__ = ["RegisterPredictor"]


def _no_probe_is_mean():
    pool = RegisterPredictor(8, 2, num_queries=1)
    with torch.no_grad():
        pool.query.zero_()

    def mean(x: Tensor) -> Tensor:
        z = pool.o_proj(pool.v_proj(pool.token_norm(x)).mean(1))
        return z + pool.mlp(pool.mlp_norm(z))

    return pool, mean


def _no_mlp_is_attention_pool():
    pool, plain = RegisterPredictor(8, 2, num_queries=3), AttentionPool(8, 2, num_queries=3)
    with torch.no_grad():
        for p in pool.mlp[2].parameters():
            p.zero_()
    plain.load_state_dict(pool.state_dict(), strict=False)
    return pool, lambda x: plain.to(x.dtype)(pool.token_norm(x))


@register(
    "register_predictor",
    kind="pool",
    family="pool-attentive",
    papers=(3,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: RegisterPredictor(8, 2, num_queries=3),
    reductions=(
        Reduction("one probe of zeros: mean pooling of the values, then the MLP", _no_probe_is_mean),
        Reduction("an MLP of zero: attention pooling of the normed tokens", _no_mlp_is_attention_pool),
    ),
    peers=("transformers",),
)
class RegisterPredictor(AttentionPool):
    r"""Register predictor: R probes read the patches, and an MLP finishes what each has read (row 3).

    .. math:: z = \mathrm{attention}(u, \mathrm{norm}(x)), \qquad \hat g = z + \mathrm{MLP}(\mathrm{norm}(z))

    Probes do not see each other: each register is read off the patches on its own. The prediction is of standardised
    registers: :meth:`fit` takes the statistics of real ones, :meth:`loss` compares in standard units, and :meth:`registers`
    gives them back in their own.

    Args:
        dim: width of patches and registers.
        num_heads: number of heads.
        num_queries: number R of registers.

    All else as in :class:`mhlib.pooling.AttentionPool`. The MLP is four times as wide inside.
    Source: row 3, a 2026 paper on registers in representation autoencoders whose text we could not find; the head is that of
    SigLIP (Zhai et al., arXiv 2303.15343) with R probes, as the row describes it.
    """

    def __init__(self, dim: int, num_heads: int = 1, *, num_queries: int = 4, **options: Any):
        super().__init__(dim, num_heads, num_queries=num_queries, **options)
        self.token_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.register_buffer("mean", torch.zeros(num_queries, dim))
        self.register_buffer("deviation", torch.ones(num_queries, dim))

    def project(self, x: Tensor, context: Tensor, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        return super().project(x, self.token_norm(context), call)

    def merge(self, heads: Tensor, call: Call) -> Float[Tensor, "batch queries dim"]:
        z = super().merge(heads, call)
        return z + self.mlp(self.mlp_norm(z))

    @torch.no_grad()
    def fit(self, registers: Float[Tensor, "images registers dim"]) -> None:
        """Take mean and deviation of each number of each register from real ones."""
        if registers.shape[1:] != self.mean.shape:
            raise ValueError(f"registers must be (images, {self.num_queries}, {self.dim}), got {tuple(registers.shape)}")
        self.mean.copy_(registers.mean(0))
        self.deviation.copy_(registers.std(0, correction=0).clamp_min(1e-6))

    def loss(self, batch: tuple[Float[Tensor, "images patches dim"], Float[Tensor, "images registers dim"]]) -> Tensor:
        """Mean squared error for (patches, registers), in standard units: 1 is what predicting the mean costs."""
        patches, registers = batch
        predicted = self(patches).view_as(registers)
        return (predicted - (registers - self.mean) / self.deviation).square().mean()

    def registers(self, patches: Float[Tensor, "images patches dim"]) -> Float[Tensor, "images registers dim"]:
        """Predicted registers in their own units."""
        return self(patches).view(-1, self.num_queries, self.dim) * self.deviation + self.mean
