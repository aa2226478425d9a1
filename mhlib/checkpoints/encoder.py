"""A bidirectional encoder in the shape of BERT: three embeddings added, then post-norm blocks of attention and MLP."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.functional.positions import LearnedPositions

__all__ = ["EncoderBlock", "EncoderOutput", "TextEncoder"]


class EncoderBlock(nn.Module):
    r"""One post-norm block: :math:`x \leftarrow \mathrm{norm}(x + \mathrm{attention}(x))`, then the same with the MLP.

    The MLP is :math:`\mathrm{gelu}(x W_1 + b_1) W_2 + b_2` with the exact GELU.
    """

    def __init__(self, dim: int, hidden_dim: int, attention: nn.Module, eps: float):
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(dim, eps=eps)
        self.up = nn.Linear(dim, hidden_dim)
        self.down = nn.Linear(hidden_dim, dim)
        self.mlp_norm = nn.LayerNorm(dim, eps=eps)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        *,
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
        return_weights: bool = False,
    ) -> tuple[Float[Tensor, "batch tokens dim"], Tensor | None]:
        """The tokens after the block, and its attention weights (batch, heads, queries, keys) if asked for."""
        y = self.attention(x, key_mask=key_mask, return_weights=return_weights)
        y, weights = y if return_weights else (y, None)
        x = self.attention_norm(x + y)
        return self.mlp_norm(x + self.down(F.gelu(self.up(x)))), weights


class EncoderOutput(NamedTuple):
    """What an encoder returns when weights or hidden states were asked for; what was not is an empty tuple.

    Attributes:
        tokens: (batch, tokens, dim).
        weights: per block (batch, heads, queries, keys).
        hidden: the tokens that enter each block and, last, those that leave the last one.
    """

    tokens: Tensor
    weights: tuple[Tensor, ...]
    hidden: tuple[Tensor, ...]


class TextEncoder(nn.Module):
    """Token numbers to contextual token vectors.

    Args:
        vocab_size: number of tokens.
        dim: width of a token.
        num_layers: number of blocks.
        hidden_dim: width inside the MLP.
        max_tokens: number of positions that have a vector.
        attention: called once per block, builds its attention; replace one later by ``encoder.blocks[3].attention = ...``.
        eps: of the layer norms.
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        *,
        num_layers: int,
        hidden_dim: int,
        max_tokens: int,
        attention: Callable[[], nn.Module],
        eps: float = 1e-12,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.positions = LearnedPositions(max_tokens, dim)
        self.segments = nn.Embedding(2, dim)
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.blocks = nn.ModuleList(EncoderBlock(dim, hidden_dim, attention(), eps) for _ in range(num_layers))

    def forward(
        self,
        ids: Int[Tensor, "batch tokens"],
        key_mask: Bool[Tensor, "batch tokens"] | None = None,
        *,
        segments: Int[Tensor, "batch tokens"] | None = None,
        return_weights: bool = False,
        return_hidden: bool = False,
    ) -> Float[Tensor, "batch tokens dim"] | EncoderOutput:
        """The vectors of the tokens.

        Args:
            key_mask: True = a real token.
            segments: 0 for the first text of a pair and 1 for the second; all 0 by default.
            return_weights: also return the attention weights of every block.
            return_hidden: also return the tokens between the blocks.

        Returns:
            (batch, tokens, dim), or an :class:`EncoderOutput` when weights or hidden states were asked for.
        """
        segments = torch.zeros_like(ids) if segments is None else segments
        x = self.norm(self.positions(self.embedding(ids) + self.segments(segments)))
        weights, hidden = [], [x]
        for block in self.blocks:
            x, w = block(x, key_mask=key_mask, return_weights=return_weights)
            weights.append(w)
            hidden.append(x)
        if not (return_weights or return_hidden):
            return x
        return EncoderOutput(x, tuple(weights) if return_weights else (), tuple(hidden) if return_hidden else ())
