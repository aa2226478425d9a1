"""A vector unfolded to a map by asking an MLP at every pixel: the pooled vector and where the pixel is (row 179)."""

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mhlib.registry import Example, Reduction, register

__all__ = ["CoordinateDecoder"]


def _example() -> Example:
    decoder = CoordinateDecoder(4, hidden_dim=5).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    return Example(lambda x, grid: copy.deepcopy(decoder)(x, grid), {"x": x, "grid": (3, 2)})


def _is_an_mlp_of_both() -> tuple[Any, Any]:
    decoder = CoordinateDecoder(4, hidden_dim=5, num_hidden=2).double()
    x, grid = torch.randn(3, 4, dtype=torch.float64), (3, 2)

    def one_by_one() -> Tensor:
        places = [((i + 0.5) / 2, (j + 0.5) / 3) for j in range(3) for i in range(2)]
        values = []
        for place in places:
            h = torch.cat([x, torch.tensor(place, dtype=torch.float64).expand(3, 2)], -1)
            for layer in decoder.layers:
                h = layer(h).relu()
            values.append(decoder.last(h)[:, 0])
        return torch.stack(values, 1).view(3, 3, 2)

    return lambda: decoder(x, grid), one_by_one


@register(
    "coordinate_decoder",
    kind="output_head",
    family="pool-attentive",
    papers=(179,),
    example=_example,
    reductions=(Reduction("pixel by pixel: an MLP of the vector and the two coordinates", _is_an_mlp_of_both),),
)
class CoordinateDecoder(nn.Module):
    r"""Coordinate decoder: the value at (a, b) is an MLP of the vector and (a, b), the same MLP everywhere (row 179).

    .. math:: m(a, b) = \mathrm{MLP}([g, a, b]), \qquad 0 < a, b < 1

    Its size does not depend on that of the map, and any map can be asked for. In the first layer the vector's part is the same
    at each pixel, so it is computed once.

    Args:
        dim: width of the vector.
        hidden_dim: width inside, dim by default.
        num_hidden: hidden layers with ReLU; 3 in the source.

    Source: Nakatani et al., "Interaction-aware joint attention estimation using people attributes", arXiv 2308.05382 (row 179).
    """

    def __init__(self, dim: int, *, hidden_dim: int | None = None, num_hidden: int = 3):
        super().__init__()
        if num_hidden < 1:
            raise ValueError(f"num_hidden must be at least 1, got {num_hidden}")
        hidden_dim = dim if hidden_dim is None else hidden_dim
        self.dim = dim
        widths = [dim + 2, *[hidden_dim] * num_hidden]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in zip(widths, widths[1:]))
        self.last = nn.Linear(hidden_dim, 1)

    def forward(self, x: Float[Tensor, "*batch dim"], grid: tuple[int, int]) -> Float[Tensor, "*batch height width"]:
        """The map of ``grid`` = (height, width) pixels."""
        if x.shape[-1] != self.dim:
            raise ValueError(f"x must be (..., {self.dim}), got {tuple(x.shape)}")
        first, *others = self.layers
        down, across = ((torch.arange(n, dtype=x.dtype, device=x.device) + 0.5) / n for n in grid)
        of_place = across[None, :, None] * first.weight[:, -2] + down[:, None, None] * first.weight[:, -1]
        of_vector = nn.functional.linear(x, first.weight[:, :-2], first.bias)
        h = (of_vector[..., None, None, :] + of_place).relu()
        for layer in others:
            h = layer(h).relu()
        return self.last(h)[..., 0]
