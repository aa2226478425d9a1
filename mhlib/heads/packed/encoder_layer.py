"""An encoder layer on packed rows: everything but attention works on tokens one by one, and so never sees padding."""

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.functional.ragged import ragged_attention

__all__ = ["PackedEncoderLayer"]


class PackedEncoderLayer(nn.Module):
    r"""BERT's encoder layer over the rows that :func:`mhlib.functional.pack` leaves:

    .. math::
        Y = \mathrm{LN}(Z + \mathrm{attend}(Z W_{QKV} + b)\,W_O + b_O), \qquad
        Z' = \mathrm{LN}(Y + \mathrm{GELU}(Y W_1 + b_1)\,W_2 + b_2)

    for :math:`Z \in \mathbb{R}^{N \times d}`, with N the number of real tokens in the batch. Stacked layers stay packed.

    Args:
        dim: width of the tokens.
        num_heads: number of heads.
        hidden: width of the feed-forward layer, 4 dim by default.
        eps: of both layer norms.
        backend: as in :func:`mhlib.functional.ragged_attention`.

    Weights start as those of ``torch.nn.Linear``.
    Source: Zhai et al., "ByteTransformer", arXiv 2210.03052 (row 280).
    """

    def __init__(self, dim: int, num_heads: int, *, hidden: int | None = None, eps: float = 1e-5, backend: str = "auto"):
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads must divide dim, got dim={dim}, num_heads={num_heads}")
        self.dim, self.num_heads, self.backend = dim, num_heads, backend
        hidden = 4 * dim if hidden is None else hidden
        self.qkv_proj, self.o_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=eps), nn.LayerNorm(dim, eps=eps)

    def forward(self, rows: Float[Tensor, "total dim"], cu_seqlens: Int[Tensor, " offsets"]) -> Float[Tensor, "total dim"]:
        q, k, v = self.qkv_proj(rows).unflatten(-1, (3, self.num_heads, -1)).permute(1, 2, 0, 3)
        heads = ragged_attention(q, k, v, cu_seqlens, backend=self.backend)
        rows = self.norm1(rows + self.o_proj(heads.transpose(0, 1).flatten(1)))
        return self.norm2(rows + self.down(F.gelu(self.up(rows))))

    @classmethod
    def from_torch(cls, layer: nn.TransformerEncoderLayer) -> "PackedEncoderLayer":
        """The same function as PyTorch's layer with ``activation="gelu"``, norms after the sums, and no dropout.

        Raises:
            ValueError: the layer is another one.
        """
        if layer.norm_first or layer.activation is not F.gelu or layer.linear1.bias is None:
            raise ValueError("expected a TransformerEncoderLayer with norm_first=False, activation='gelu' and biases; build it so")
        attention = layer.self_attn
        packed = cls(attention.embed_dim, attention.num_heads, hidden=layer.linear1.out_features, eps=layer.norm1.eps)
        pairs = {
            "qkv_proj.weight": attention.in_proj_weight, "qkv_proj.bias": attention.in_proj_bias,
            "o_proj.weight": attention.out_proj.weight, "o_proj.bias": attention.out_proj.bias,
        }  # fmt: skip
        for ours, theirs in (("up", layer.linear1), ("down", layer.linear2), ("norm1", layer.norm1), ("norm2", layer.norm2)):
            pairs |= {f"{ours}.weight": theirs.weight, f"{ours}.bias": theirs.bias}
        packed.load_state_dict({name: value.detach() for name, value in pairs.items()})
        return packed.to(layer.linear1.weight)
