"""The whole decoder of INTR: layers in which class queries talk to each other and search the image (row 284).

Its cross-attention is multi-head attention as it is; its self-attention differs in ``project``: what says which class it is goes
into queries and keys, not into values.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mhlib.heads.base import MultiHeadAttention
from mhlib.heads.call import Call
from mhlib.pooling.base import Pool, PoolCall
from mhlib.registry import Reduction, register

__all__ = ["ClassQueryDecoder"]


class _AmongClasses(MultiHeadAttention):
    """Self-attention whose values do not see the positions: q = k = x + position, v = x. ``context`` is x without it."""

    def project(self, x: Tensor, context: Tensor, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        q, (_, v) = super().project(x, context, call)
        return q, (super().project(x, x, call)[1][0], v)


class _Layer(nn.Module):
    """Self-attention among the classes, cross-attention to the tokens, MLP; a norm after each.

    In the first layer the values of self-attention are all zero, so what it adds is its biases, the same for each class and
    whatever the weights: one learned vector stands for it.
    """

    def __init__(self, dim: int, num_heads: int, hidden_dim: int, dropout: float, first: bool):
        super().__init__()
        self.among = None if first else _AmongClasses(dim, num_heads, bias=True, dropout=dropout)
        self.start = nn.Parameter(torch.zeros(dim)) if first else None
        self.search = MultiHeadAttention(dim, num_heads, bias=True, dropout=dropout)
        for attention in filter(None, (self.among, self.search)):  # a bias on keys adds the same to all logits of a query
            attention.k_proj = nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden_dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden_dim, dim))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor, query: Tensor, x: Tensor, key_mask: Tensor | None, return_weights: bool):
        heard = self.start if self.among is None else self.among(state + query, state)
        state = self.norms[0](state + self.dropout(heard))
        y = self.search(state + query, x, key_mask=key_mask, return_weights=return_weights)
        y, weights = y if return_weights else (y, None)
        state = self.norms[1](state + self.dropout(y))
        return self.norms[2](state + self.dropout(self.mlp(state))), weights


def _one_layer_is_cross_attention():
    """In the first layer classes do not talk: cross-attention from the queries, normed three times, and the shared score."""
    decoder = ClassQueryDecoder(8, 4, 2, num_layers=1, hidden_dim=6)
    layer = decoder.layers[0]
    with torch.no_grad():
        for p in layer.mlp[3].parameters():
            p.zero_()

    def reduced(x: Tensor) -> Tensor:
        found = layer.norms[1](layer.search(decoder.query.expand(x.shape[0], -1, -1), x))
        return decoder.presence(decoder.norm(layer.norms[2](found)))[..., 0]

    return decoder, reduced


@register(
    "class_query_decoder",
    kind="pool",
    family="pool-attentive",
    papers=(284,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: ClassQueryDecoder(8, 4, 2, num_layers=2, hidden_dim=6),
    reductions=(Reduction("one layer with an MLP of zero: one cross-attention from the queries", _one_layer_is_cross_attention),),
    peers=("transformers",),
)
class ClassQueryDecoder(Pool):
    r"""INTR's decoder: L layers of self-attention among class queries and cross-attention to the tokens, one shared score (row 284).

    With the class queries :math:`u` and a state :math:`t` that starts at zero, each layer does

    .. math:: t \leftarrow \mathrm{norm}(t + \mathrm{attention}(t + u, t + u, t)), \quad
        t \leftarrow \mathrm{norm}(t + \mathrm{attention}(t + u, x, x)), \quad t \leftarrow \mathrm{norm}(t + \mathrm{MLP}(t))

    (queries, keys, values), and the logit of class c is :math:`w \cdot \mathrm{norm}(t_c) + b`. Keys get no positions here; the
    tokens are to bring theirs along. In the first layer the state is zero, so self-attention would give the same vector to every class
    whatever its weights; that vector is learned directly.

    Args:
        dim: width of the tokens.
        num_classes: number of classes, at least 2.
        num_heads: number of heads.
        num_layers: number L of layers; 6 in the source.
        hidden_dim: width inside the MLP; 2048 in the source.
        dropout: in training; 0.1 in the source.

    The output is (batch, classes): logits. Weights are those of the last layer's cross-attention, (batch, heads, classes,
    tokens): the explanation. ``return_aux`` gives the normed states as "found" (batch, classes, dim).
    Source: Paul et al., "A simple interpretable transformer for fine-grained image classification and analysis", arXiv
    2311.04157 (row 284).
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        num_heads: int = 8,
        *,
        num_layers: int = 6,
        hidden_dim: int = 2048,
        dropout: float = 0.0,
    ):
        super().__init__(dim)
        if num_classes < 2 or num_layers < 1:
            raise ValueError(f"at least 2 classes and 1 layer, got num_classes={num_classes}, num_layers={num_layers}")
        self.query = nn.Parameter(torch.randn(num_classes, dim))
        self.layers = nn.ModuleList(_Layer(dim, num_heads, hidden_dim, dropout, first=i == 0) for i in range(num_layers))
        self.norm, self.presence = nn.LayerNorm(dim), nn.Linear(dim, 1)

    def pool(
        self, x: Float[Tensor, "batch tokens dim"], key_mask: Bool[Tensor, "batch tokens"] | None, call: PoolCall
    ) -> Float[Tensor, "batch classes"]:
        state = torch.zeros_like(self.query).expand(x.shape[0], -1, -1)
        for layer in self.layers:
            state, weights = layer(state, self.query, x, key_mask, call.return_weights)
        found = self.norm(state)
        call.weights, call.aux["found"] = weights, found
        return self.presence(found)[..., 0]
