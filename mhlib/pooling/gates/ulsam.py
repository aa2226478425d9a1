"""ULSAM: each group of channels makes one softmax map over the places and adds itself, weighted by it.

Differs from attention pooling in that nothing is summed: the weights of a pool multiply the map, beside a residual.
"""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.registry import Example, Reduction, register

__all__ = ["ULSAM"]


def _example() -> Example:
    gate = ULSAM(6, 3).double().eval()
    x = torch.randn(2, 6, 5, 4, dtype=torch.float64)
    return Example(lambda x: copy.deepcopy(gate).to(x.dtype)(x), {"x": x})


def _no_map():
    gate, x = ULSAM(6, 3).double().eval(), torch.randn(2, 6, 5, 4, dtype=torch.float64)
    with torch.no_grad():
        gate.point.weight.zero_()
    return lambda: gate(x), lambda: x * (1 + 1 / 20)


def _one_subspace_each():
    """g groups are g gates of one group, each on its own channels."""
    gate, x = ULSAM(6, 3).double().eval(), torch.randn(2, 6, 5, 4, dtype=torch.float64)
    alone = [ULSAM(2, 1).double().eval() for _ in range(3)]
    for i, one in enumerate(alone):
        for (name, whole), part in zip(gate.state_dict().items(), one.state_dict().values()):
            if part.ndim:
                part.copy_(whole.unflatten(0, (3, -1))[i])
    return lambda: gate(x), lambda: torch.cat([one(part) for one, part in zip(alone, x.chunk(3, 1))], 1)


@register(
    "ulsam",
    kind="function",
    family="pool-attentive",
    papers=(133,),
    example=_example,
    reductions=(
        Reduction("a pointwise convolution of zeros: the map is 1 / HW everywhere", _no_map),
        Reduction("g groups: g gates of one group side by side", _one_subspace_each),
    ),
)
class ULSAM(nn.Module):
    r"""The ultra-lightweight subspace attention module. For each of g groups :math:`F_n` of channels,

    .. math::
        A_n = \mathrm{softmax}_{HW}\big(\mathrm{PW}_{1 \times 1}(\mathrm{maxpool}_{3 \times 3}(
        \mathrm{DW}_{1 \times 1}(F_n)))\big), \qquad \hat F_n = A_n \odot F_n + F_n

    with a depthwise (DW) and a pointwise (PW) convolution, the latter to one channel. A map sums to one over the places, so
    its mean is 1 / HW.

    Args:
        channels: channels of the map.
        groups: number g of groups; divides the channels.
        norm: batch normalisation and ReLU after each convolution, as in the released code; the paper's formula has none.
        momentum: of the batch statistics, 0.9 in the released code: they follow the last batches closely.

    Input and output (batch, channels, height, width). With ``return_map=True`` also the maps (batch, groups, height,
    width). Source: Saini et al., arXiv 2006.15102 (row 133).
    """

    def __init__(self, channels: int, groups: int = 4, *, norm: bool = True, momentum: float = 0.9):
        super().__init__()
        if groups < 1 or channels % groups:
            raise ValueError(f"groups must divide channels, got channels={channels}, groups={groups}")
        self.channels, self.groups = channels, groups
        # All groups at once: a depthwise convolution does not mix channels, a grouped one not groups.
        self.depth = nn.Conv2d(channels, channels, 1, groups=channels)
        self.point = nn.Conv2d(channels, groups, 1, groups=groups)
        self.depth_norm = nn.BatchNorm2d(channels, momentum=momentum) if norm else None
        self.point_norm = nn.BatchNorm2d(groups, momentum=momentum) if norm else None

    def logits(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch groups height width"]:
        a = self.depth(x)
        a = a if self.depth_norm is None else self.depth_norm(a).relu()
        a = self.point(F.max_pool2d(a, 3, stride=1, padding=1))
        return a if self.point_norm is None else self.point_norm(a).relu()

    def forward(
        self, x: Float[Tensor, "batch channels height width"], *, return_map: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ValueError(f"ULSAM wants (batch, {self.channels}, height, width), got {tuple(x.shape)}")
        maps = self.logits(x)
        maps = maps.flatten(2).softmax(-1).view_as(maps)
        grouped = x.unflatten(1, (self.groups, -1))
        y = (grouped + grouped * maps[:, :, None]).flatten(1, 2)
        return (y, maps) if return_map else y
