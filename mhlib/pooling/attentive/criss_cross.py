"""The criss-cross gated MLP: tokens on a grid of times and channels gate each other along both axes (row 1).

It reduces nothing: a grid goes in and a grid comes out. STAMP puts eight of them before its pool.
"""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.registry import Example, Reduction, register

__all__ = ["CrissCrossGatedMLP"]

COMBINATIONS = ("concat", "add", "weighted_add")


def _example() -> Example:
    layer = CrissCrossGatedMLP(4, 6, times=3, channels=2).double()
    with torch.no_grad():
        for p in layer.parameters():
            p += 0.1 * torch.randn_like(p)
    return Example(lambda x: copy.deepcopy(layer).to(x.dtype)(x), {"x": torch.randn(2, 3, 2, 4, dtype=torch.float64)})


def _starts_without_mixing():
    layer = CrissCrossGatedMLP(4, 6, times=3, channels=2).double()
    with torch.no_grad():
        for mix in (layer.mix_times, layer.mix_channels):
            mix.weight.zero_()
    x = torch.randn(2, 3, 2, 4, dtype=torch.float64)

    def no_gate() -> Tensor:
        half = nn.functional.gelu(layer.up(layer.norm(x)))[..., :3]
        return x + layer.down(torch.cat([half, half], -1))

    return lambda: layer(x), no_gate


@register(
    "criss_cross_gated_mlp",
    kind="function",
    family="pool-attentive",
    papers=(1,),
    example=_example,
    reductions=(Reduction("mixing weights of zero: an MLP for each token, its hidden half twice", _starts_without_mixing),),
)
class CrissCrossGatedMLP(nn.Module):
    r"""Criss-cross gated MLP: half of the hidden features gate the other half, mixed along times and along channels (row 1).

    .. math:: [u, v] = \mathrm{gelu}(\mathrm{norm}(x) W_1), \quad
        g = u \odot (\mathrm{norm}(v) M_T + 1), \quad s = u \odot (\mathrm{norm}(v) M_S + 1), \quad y = x + [g, s] W_2

    where :math:`M_T` mixes the times of one channel and :math:`M_S` the channels of one time. Both gates read the same u and
    v. Mixing weights start near 0 and their biases at 1, so that the layer starts as an MLP without mixing.

    Args:
        dim: width of the tokens.
        hidden_dim: width of u and v together; even.
        times, channels: sizes T and S of the grid.
        combine: "concat" as above; "add" for :math:`(g + s) W_2`; "weighted_add" with a learned number before each.
        dropout: of the branch, in training.

    Mixing costs :math:`T^2 + S^2` weights instead of the :math:`(T S)^2` of a gate over all tokens.
    Source: Shook et al., "STAMP: Spatial-temporal adapter with multi-head pooling", arXiv 2511.10848 (row 1).
    """

    def __init__(
        self, dim: int, hidden_dim: int, *, times: int, channels: int, combine: str = "concat", dropout: float = 0.0
    ):
        super().__init__()
        if combine not in COMBINATIONS:
            raise ValueError(f"combine must be one of {', '.join(COMBINATIONS)}, got {combine!r}")
        if hidden_dim < 2 or hidden_dim % 2:
            raise ValueError(f"hidden_dim must be even, because half of it gates the other half, got {hidden_dim}")
        self.dim, self.times, self.channels, self.combine = dim, times, channels, combine
        half = hidden_dim // 2
        self.norm, self.up = nn.LayerNorm(dim), nn.Linear(dim, hidden_dim)
        self.norm_times, self.mix_times = nn.LayerNorm(half), nn.Linear(times, times)
        self.norm_channels, self.mix_channels = nn.LayerNorm(half), nn.Linear(channels, channels)
        self.down = nn.Linear(hidden_dim if combine == "concat" else half, dim)
        self.balance = nn.Parameter(torch.ones(2)) if combine == "weighted_add" else None
        self.dropout = nn.Dropout(dropout)
        for mix in (self.mix_times, self.mix_channels):
            nn.init.normal_(mix.weight, std=1e-6)
            nn.init.ones_(mix.bias)

    def forward(self, x: Float[Tensor, "batch times channels dim"]) -> Float[Tensor, "batch times channels dim"]:
        """The grid after mixing."""
        if x.shape[1:] != (self.times, self.channels, self.dim):
            raise ValueError(f"x must be (batch, {self.times}, {self.channels}, {self.dim}), got {tuple(x.shape)}")
        u, v = nn.functional.gelu(self.up(self.norm(x))).chunk(2, -1)
        by_time = u * self.mix_times(self.norm_times(v).transpose(1, 3)).transpose(1, 3)
        by_channel = u * self.mix_channels(self.norm_channels(v).transpose(2, 3)).transpose(2, 3)
        if self.combine == "concat":
            gated = torch.cat([by_time, by_channel], -1)
        elif self.combine == "add":
            gated = by_time + by_channel
        else:
            gated = self.balance[0] * by_time + self.balance[1] * by_channel
        return x + self.dropout(self.down(gated))
