"""The prediction grid: what a classifier with global average pooling says at each place, before the average hides it.

Differs from a class activation map in that it shows all classes at once, with the bias, so that its mean is the logits.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.registry import Example, Reduction, register

__all__ = ["PredictionGrid", "prediction_grid"]


@dataclass(frozen=True)
class PredictionGrid:
    """Logits of every cell, (batch, classes, height, width), and the part of them that no cell contributes, (batch, classes)."""

    logits: Float[Tensor, "batch classes height width"]
    offset: Float[Tensor, "batch classes"]

    @property
    def cells(self) -> Float[Tensor, "batch cells classes"]:
        """The cells as tokens, for the pools of this library to read them in another way."""
        return self.logits.flatten(2).mT

    @property
    def labels(self) -> Int[Tensor, "batch height width"]:
        """The class that each cell votes for."""
        return self.logits.argmax(1)

    @property
    def contributions(self) -> Float[Tensor, "batch classes height width"]:
        """How much each cell adds to each logit of the image; they sum to the logits without the offset."""
        cells = self.logits.shape[2] * self.logits.shape[3]
        return (self.logits - self.offset[..., None, None]) / cells


def _problem(size: int = 3) -> dict:
    generator = torch.Generator().manual_seed(torch.initial_seed())
    features = torch.randn(2, 5, size, size + 1 if size > 1 else 1, generator=generator, dtype=torch.float64)
    norm = nn.LayerNorm(5, dtype=torch.float64)
    with torch.no_grad():
        for p in norm.parameters():
            p.add_(0.3 * torch.randn(5, generator=generator, dtype=torch.float64))
    return {"features": features, "head": nn.Linear(5, 4, dtype=torch.float64), "norm": norm}


def _mean_of_cells(**options):
    def build():
        problem = _problem() | options
        norm = problem["norm"] or nn.Identity()
        return (
            lambda: prediction_grid(**problem).logits.mean((2, 3)),
            lambda: problem["head"](norm(problem["features"].mean((2, 3)))),
        )

    return build


def _one_cell():
    problem = _problem(1)
    flat = lambda: problem["head"](problem["norm"](problem["features"].flatten(1)))[..., None, None]  # noqa: E731
    return lambda: prediction_grid(**problem).logits, flat


def _class_activation_map():
    problem = _problem() | {"norm": None}
    maps = lambda: torch.einsum("kc, bchw -> bkhw", problem["head"].weight, problem["features"])  # noqa: E731
    return lambda: 12 * prediction_grid(**problem).contributions, maps


@register(
    "prediction_grid",
    kind="analysis",
    family="pool-mil",
    papers=(12,),
    gradient="none",
    example=lambda: Example(prediction_grid, _problem()),
    reductions=(
        Reduction("the mean over the cells: global average pooling and the head", _mean_of_cells(norm=None)),
        Reduction("the same with a norm between pool and head, frozen at the image's statistics", _mean_of_cells()),
        Reduction("one cell: the logits of the image", _one_cell),
        Reduction("contributions times the number of cells, without a norm: class activation maps", _class_activation_map),
    ),
)
def prediction_grid(
    features: Float[Tensor, "batch channels height width"],
    head: nn.Linear,
    norm: nn.LayerNorm | None = None,
    *,
    exact: bool = True,
) -> PredictionGrid:
    r"""The logits that the head gives at each place of a feature map F, instead of at the mean of all places:

    .. math:: G_{ij} = W F_{ij} + b, \qquad \frac{1}{hw} \sum_{ij} G_{ij} = W \Big(\frac{1}{hw} \sum_{ij} F_{ij}\Big) + b = z

    because a mean and a linear map commute. A layer norm between them does not commute, but with its mean and deviation
    frozen at those of the pooled vector it is linear too.

    Args:
        features: the map before global average pooling.
        head: the linear head, (channels to classes).
        norm: the layer norm over channels between pool and head, if there is one.
        exact: with a norm, freeze its statistics, so that the mean of the grid is the logits; False normalises every cell
            by its own statistics, which does not add up but compares directions only.

    Raises:
        ValueError: the channels of the map are not those of the head.

    Source: Karjauv, arXiv 2606.14555 (row 12); without a norm, G - b is the class activation map of Zhou et al., 1512.04150.
    """
    if features.ndim != 4 or features.shape[1] != head.in_features:
        wanted = f"(batch, {head.in_features}, height, width)"
        raise ValueError(f"features must be {wanted} for this head, got {tuple(features.shape)}")
    cells = features.permute(0, 2, 3, 1)
    nothing = torch.zeros_like(cells[:, :1, :1])
    if norm is None:
        offset = nothing
    elif exact:
        pooled = cells.mean((1, 2), keepdim=True)
        deviation = (pooled.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
        frozen = lambda t: _affine((t - pooled.mean(-1, keepdim=True)) / deviation, norm)  # noqa: E731
        cells, offset = frozen(cells), frozen(nothing)
    else:
        cells, offset = norm(cells), _affine(nothing, norm)
    logits = F.linear(cells, head.weight, head.bias).permute(0, 3, 1, 2)
    return PredictionGrid(logits, F.linear(offset, head.weight, head.bias)[:, 0, 0])


def _affine(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    x = x if norm.weight is None else x * norm.weight
    return x if norm.bias is None else x + norm.bias
