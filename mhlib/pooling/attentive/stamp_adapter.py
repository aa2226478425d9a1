"""STAMP's adapter: a small trainable classifier on frozen embeddings of a time by channel grid (row 1)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.pooling.attentive.criss_cross import CrissCrossGatedMLP
from mhlib.pooling.attentive.stamp_pool import StampPool

__all__ = ["StampAdapter"]


class StampAdapter(nn.Module):
    """Frozen embeddings to classes: normalise, project, add positions, mix, pool, classify (row 1).

    Args:
        input_dim: width of the frozen embeddings.
        num_classes: number of classes.
        times, channels: sizes of the grid.
        dim: width inside.
        num_blocks: criss-cross gated MLPs; 0 leaves the mixing out.
        hidden_dim: width inside of them.
        positions: which learned tables are added, of "token", "time" and "channel".
        pool: pools (batch, tokens, dim) to (batch, dim); by default :class:`mhlib.pooling.StampPool` with 4 heads of 8 queries.
        dropout: in training.

    Source: Shook et al., "STAMP: Spatial-temporal adapter with multi-head pooling", arXiv 2511.10848 (row 1).
    """

    def __init__(
        self,
        input_dim: int,
        num_classes: int,
        *,
        times: int,
        channels: int,
        dim: int = 128,
        num_blocks: int = 8,
        hidden_dim: int = 256,
        positions: tuple[str, ...] = ("token", "time", "channel"),
        pool: nn.Module | None = None,
        dropout: float = 0.3,
    ):
        super().__init__()
        if unknown := set(positions) - {"token", "time", "channel"}:
            raise ValueError(f"positions are of token, time and channel, got {', '.join(sorted(unknown))}")
        self.times, self.channels, self.input_dim = times, channels, input_dim
        self.norm = nn.InstanceNorm1d(input_dim, affine=True)
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(input_dim, dim)
        shapes = {"token": (times, channels), "time": (times, 1), "channel": (1, channels)}
        self.positions = nn.ParameterDict({name: torch.randn(*shapes[name], dim) for name in positions})
        self.blocks = nn.Sequential(
            *(
                CrissCrossGatedMLP(dim, hidden_dim, times=times, channels=channels, dropout=dropout)
                for _ in range(num_blocks)
            )
        )
        self.pool = StampPool(dim, dropout=dropout) if pool is None else pool
        self.classify = nn.Linear(dim, num_classes)

    def tokens(self, x: Float[Tensor, "batch times channels input_dim"]) -> Float[Tensor, "batch tokens dim"]:
        """The tokens that are pooled, times outermost."""
        if x.shape[1:] != (self.times, self.channels, self.input_dim):
            raise ValueError(f"x must be (batch, {self.times}, {self.channels}, {self.input_dim}), got {tuple(x.shape)}")
        normed = self.norm(x.flatten(1, 2).mT).mT.unflatten(1, (self.times, self.channels))
        x = self.project(self.dropout(normed))
        for table in self.positions.values():
            x = x + table
        return self.blocks(x).flatten(1, 2)

    def forward(self, x: Float[Tensor, "batch times channels input_dim"]) -> Float[Tensor, "batch classes"]:
        """Logits of the classes."""
        return self.classify(self.pool(self.tokens(x)))
