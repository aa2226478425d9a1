"""The pre-norm block of the small transformers around pools."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from mhlib.heads.base import MultiHeadAttention

__all__ = ["PreNormBlock"]


class PreNormBlock(nn.Module):
    r"""One pre-norm block: :math:`x \leftarrow x + \mathrm{attention}(\mathrm{norm}(x))`, then the same with the MLP.

    Args:
        dim: width of the tokens.
        num_heads: number of heads.
        mlp: maps tokens to tokens; by default two linear maps with an exact GELU between them, four times as wide inside.
    """

    def __init__(self, dim: int, num_heads: int, mlp: nn.Module | None = None):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = MultiHeadAttention(dim, num_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) if mlp is None else mlp

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], key_mask: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        """The tokens after the block."""
        x = x + self.attention(self.attention_norm(x), key_mask=key_mask)
        return x + self.mlp(self.mlp_norm(x))
