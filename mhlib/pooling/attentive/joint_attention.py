"""A group pooled by one more member: people as tokens, and a joint token among them that everybody talks to (row 179).

"Joint attention" is the social kind here: where a group of people looks. Differs from attention pooling in that the query is
a token of the set and goes through all layers with it.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mhlib.heads.base import MultiHeadAttention
from mhlib.pooling.attentive.coordinate_decoder import CoordinateDecoder
from mhlib.pooling.base import Pool, PoolCall
from mhlib.registry import Reduction, register

__all__ = ["JointAttentionEstimator", "JointTokenPool", "MapFusion"]


def _starts_as_mean():
    pool = JointTokenPool(8, 2, num_layers=1)
    with torch.no_grad():
        for p in pool.mlps[0][2].parameters():
            p.zero_()

    def mean(x: Tensor) -> Tensor:  # the joint token is one more value, of zeros
        attention = pool.attentions[0]
        return pool.norm(attention.o_proj(attention.v_proj(x).sum(1) / (x.shape[1] + 1)))

    return pool, mean


@register(
    "joint_token_pool",
    kind="pool",
    family="pool-attentive",
    papers=(179,),
    properties=("invariant", "compiles"),
    example=lambda: JointTokenPool(8, 2),
    reductions=(Reduction("at its start, one layer without MLP: the sum of the values over P + 1, normed", _starts_as_mean),),
    peers=("torch",),
)
class JointTokenPool(Pool):
    r"""Joint-token pooling: a learned token joins the set, and what it is after L encoder layers is the pooled vector (row 179).

    .. math:: u = t + \mathrm{attention}(t), \qquad t \leftarrow \mathrm{norm}(u + \mathrm{relu}(u W_1 + b_1) W_2 + b_2)

    over the tokens :math:`t` of the people and the joint one, with one and the same norm in all layers.

    Args:
        dim: width of the tokens.
        num_heads: number of heads.
        num_layers: number L of layers.

    The joint token and all attention biases start at zero, so it asks nothing at first and sees the mean. Keys have no bias: it
    would add the same to all logits of a query. Weights are (batch, layers, heads, people), those of the joint token;
    ``return_aux`` gives the people's own vectors as "people" (batch, people, dim).
    Source: Nakatani et al., "Interaction-aware joint attention estimation using people attributes", arXiv 2308.05382 (row 179).
    """

    def __init__(self, dim: int, num_heads: int = 2, *, num_layers: int = 2):
        super().__init__(dim)
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, or the joint token meets nobody; got {num_layers}")
        self.joint = nn.Parameter(torch.zeros(dim))
        self.attentions = nn.ModuleList(MultiHeadAttention(dim, num_heads, bias=True) for _ in range(num_layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)
        for attention in self.attentions:
            attention.k_proj = nn.Linear(dim, dim, bias=False)
            for proj in (attention.q_proj, attention.v_proj, attention.o_proj):
                nn.init.zeros_(proj.bias)

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Float[Tensor, "batch dim"]:
        tokens = torch.cat([x, self.joint.expand(x.shape[0], 1, -1)], 1)
        present = None if key_mask is None else nn.functional.pad(key_mask, (0, 1), value=True)
        seen = []
        for attention, mlp in zip(self.attentions, self.mlps):
            y = attention(tokens, key_mask=present, return_weights=call.return_weights)
            if call.return_weights:
                y, weights = y
                seen.append(weights[:, :, -1, :-1])
            y = tokens + y
            tokens = self.norm(y + mlp(y))
        if call.return_weights:
            call.weights = torch.stack(seen, 1)
        call.aux["people"] = tokens[:, :-1]
        return tokens[:, -1]


class MapFusion(nn.Module):
    """Maps of confidence fused with learned shares, a softmax over one number per map (row 179).

    Shares start equal; in the released code they start at a random draw.
    """

    def __init__(self, num_maps: int = 2):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(num_maps))

    def forward(self, *maps: Float[Tensor, "batch height width"]) -> Float[Tensor, "batch height width"]:
        if len(maps) != len(self.logits):
            raise ValueError(f"this fuses {len(self.logits)} maps, got {len(maps)}")
        return sum(share * one for share, one in zip(self.logits.softmax(0), maps))


class JointAttentionEstimator(nn.Module):
    """Where a group looks: people's attributes to a map of confidence (row 179).

    Args:
        num_attributes: numbers per person: place, gaze, action.
        dim: width of a person's token.
        num_heads, num_layers: of the encoder.
        pool: pools (batch, people, dim) to (batch, dim); by default :class:`mhlib.pooling.JointTokenPool`.
        decoder: ``decoder(vector, grid) -> map``; by default :class:`mhlib.pooling.CoordinateDecoder`.

    Source: Nakatani et al., "Interaction-aware joint attention estimation using people attributes", arXiv 2308.05382 (row 179).
    """

    def __init__(
        self,
        num_attributes: int = 13,
        dim: int = 16,
        *,
        num_heads: int = 2,
        num_layers: int = 2,
        pool: nn.Module | None = None,
        decoder: nn.Module | None = None,
    ):
        super().__init__()
        self.embed = nn.Sequential(
            nn.Linear(num_attributes, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)
        )
        self.pool = JointTokenPool(dim, num_heads, num_layers=num_layers) if pool is None else pool
        self.decoder = CoordinateDecoder(dim) if decoder is None else decoder

    def forward(
        self,
        people: Float[Tensor, "batch people attributes"],
        key_mask: Bool[Tensor, "batch people"] | None = None,
        *,
        grid: tuple[int, int],
    ) -> Float[Tensor, "batch height width"]:
        """The map of the group; ``key_mask`` is True for people who are there."""
        return self.decoder(self.pool(self.embed(people), key_mask), grid)
