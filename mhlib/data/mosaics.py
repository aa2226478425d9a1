"""Mosaics: several images in a square, of which one, drawn at random, gives the whole its label."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Mosaics", "mosaics"]


class Mosaics(NamedTuple):
    """Pictures of several objects with one label each, as in photo collections.

    Attributes:
        x: pictures (number, channels, side * height, side * width).
        labels: the label of one of the tiles (number,).
        tiles: the labels of all (number, side, side): for evaluation, not for training.
    """

    x: Float[Tensor, "number channels height width"]
    labels: Int[Tensor, " number"]
    tiles: Int[Tensor, "number side side"]


def mosaics(
    images: Float[Tensor, "images channels height width"],
    labels: Int[Tensor, " images"],
    number: int,
    *,
    side: int = 2,
    seed: int = 0,
) -> Mosaics:
    """``number`` mosaics of side by side tiles with different labels, each labelled by one of its tiles.

    Raises:
        ValueError: there are fewer labels than tiles.
    """
    places, kinds = side * side, labels.unique()
    if len(kinds) < places:
        raise ValueError(f"{places} tiles with different labels need as many labels, got {len(kinds)}")
    random = torch.Generator().manual_seed(seed)
    order = torch.argsort(labels, stable=True)
    count = torch.bincount(torch.searchsorted(kinds, labels))
    start = count.cumsum(0) - count
    which = torch.rand(number, len(kinds), generator=random).argsort(1)[:, :places]
    member = (torch.rand(number, places, generator=random) * count[which]).long()
    chosen = order[start[which] + member]
    tiles = images[chosen].unflatten(1, (side, side))
    x = tiles.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    told = torch.randint(places, (number, 1), generator=random)
    return Mosaics(x, labels[chosen].gather(1, told)[:, 0], labels[chosen].view(number, side, side))

