"""A small pre-norm encoder, in the shape of a vision transformer, to train pools behind."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mhlib.functional.positions import LearnedPositions
from mhlib.heads.base import MultiHeadAttention

__all__ = ["TinyEncoder"]


class TinyEncoder(nn.Module):
    r"""Blocks of attention and feed-forward: :math:`x \leftarrow x + \mathrm{attention}(\mathrm{norm}(x))`, then the same
    with the feed-forward map.

    Args:
        dim: width of the tokens.
        num_heads: heads of each attention layer.
        num_layers: number of blocks.
        max_tokens: if given, learned positions for that many tokens are added first; without, order is not seen.
        feed_forward: ``feed_forward() -> module`` builds what stands after attention, by default a GELU layer of width
            ``4 dim``.
        norm: whether a last layer norm follows the blocks, as in a vision transformer.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_layers: int = 2,
        max_tokens: int | None = None,
        feed_forward: Callable[[], nn.Module] | None = None,
        norm: bool = False,
    ):
        super().__init__()
        self.dim = dim
        self.positions = None if max_tokens is None else LearnedPositions(max_tokens, dim)
        make = feed_forward or (lambda: nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)))
        self.attention = nn.ModuleList(MultiHeadAttention(dim, num_heads) for _ in range(num_layers))
        self.feed_forward = nn.ModuleList(make() for _ in range(num_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * num_layers))
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], key_mask: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        """The tokens after all blocks; masked ones are not attended to."""
        x = x if self.positions is None else self.positions(x)
        for i, (attention, feed_forward) in enumerate(zip(self.attention, self.feed_forward)):
            x = x + attention(self.norms[2 * i](x), key_mask=key_mask)
            x = x + feed_forward(self.norms[2 * i + 1](x))
        return self.norm(x)
