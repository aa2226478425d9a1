"""Triplet attention: three gates, each of which pools another axis of the map away and looks at the other two.

Differs from a spatial gate in its two further branches, which see channels beside rows and channels beside columns.
"""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.registry import Example, Reduction, register

__all__ = ["AxisGate", "TripletAttention"]


class AxisGate(nn.Module):
    r"""A gate in 0..1 from the maximum and the mean over one axis: :math:`\sigma(\mathrm{BN}(\mathrm{conv}_{k \times k}(
    [\max, \mathrm{mean}])))`. With the channels as that axis it is the spatial gate of CBAM.

    Args:
        kernel_size: width k of the convolution, odd.
    """

    def __init__(self, kernel_size: int = 7):
        super().__init__()
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, so that the gate has the size of the map, got {kernel_size}")
        self.conv = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = nn.BatchNorm2d(1, momentum=0.01)

    def forward(self, x: Float[Tensor, "batch axis rows columns"]) -> Float[Tensor, "batch 1 rows columns"]:
        pooled = torch.stack([x.amax(1), x.mean(1)], 1)
        return self.norm(self.conv(pooled)).sigmoid()


def _example() -> Example:
    gate = TripletAttention(3).double().eval()
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    return Example(lambda x: copy.deepcopy(gate).to(x.dtype)(x), {"x": x})


def _half():
    gate, x = TripletAttention(3).double().eval(), torch.randn(2, 4, 5, 6, dtype=torch.float64)
    with torch.no_grad():
        for branch in gate.branches():
            branch.conv.weight.zero_()
    return lambda: gate(x), lambda: x / 2


def _mean_of_branches():
    gate, x = TripletAttention(3).double().eval(), torch.randn(2, 4, 5, 6, dtype=torch.float64)

    def rotated():
        """As drawn in the paper: rotate, gate, rotate back."""
        channels_columns = (t := x.transpose(1, 2)) * gate.over_rows(t)
        channels_rows = (t := x.transpose(1, 3)) * gate.over_columns(t)
        return (channels_columns.transpose(1, 2) + channels_rows.transpose(1, 3) + x * gate.over_channels(x)) / 3

    return lambda: gate(x), rotated


@register(
    "triplet_attention",
    kind="function",
    family="pool-attentive",
    papers=(149,),
    example=_example,
    reductions=(
        Reduction("convolutions of zeros: half of the map", _half),
        Reduction("one gate that is the mean of three: the mean of three gated, rotated maps", _mean_of_branches),
    ),
)
class TripletAttention(nn.Module):
    r"""Triplet attention, the mean of three gates:

    .. math::
        y = x \odot \tfrac13 \big(g_{CW} + g_{CH} + g_{HW}\big), \qquad
        g = \sigma(\mathrm{BN}(\mathrm{conv}_{k \times k}([\max, \mathrm{mean}])))

    where max and mean of :math:`g_{CW}` run over the height, of :math:`g_{CH}` over the width, of :math:`g_{HW}` over the
    channels, and each gate is broadcast along the axis that it pooled. The three share nothing: 6 k^2 weights and 6 numbers
    of the batch normalisations, however many channels there are.

    Args:
        kernel_size: width k of the convolutions, 7 in the paper.
        spatial: whether there is the branch :math:`g_{HW}`; without it the other two are averaged.

    Input and output (batch, channels, height, width). The convolution of the first two branches slides along the channels:
    their order matters. Source: Misra et al., arXiv 2010.03045 (row 149).
    """

    def __init__(self, kernel_size: int = 7, *, spatial: bool = True):
        super().__init__()
        self.over_rows, self.over_columns = AxisGate(kernel_size), AxisGate(kernel_size)
        self.over_channels = AxisGate(kernel_size) if spatial else None

    def branches(self) -> list[AxisGate]:
        return [gate for gate in (self.over_rows, self.over_columns, self.over_channels) if gate is not None]

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        if x.ndim != 4:
            raise ValueError(f"TripletAttention wants (batch, channels, height, width), got {tuple(x.shape)}")
        gates = [
            self.over_rows(x.transpose(1, 2)).transpose(1, 2),  # (batch, channels, 1, width)
            self.over_columns(x.transpose(1, 3)).transpose(1, 3),  # (batch, channels, height, 1)
        ]
        if self.over_channels is not None:
            gates.append(self.over_channels(x))  # (batch, 1, height, width)
        return x * (sum(gates) / len(gates))
