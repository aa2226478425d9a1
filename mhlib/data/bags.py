"""Bags: sets of instances of which only the set has a label. Made of digits, or drawn with a stain that misleads."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Bags", "digit_bags", "stained_bags"]


class Bags(NamedTuple):
    """Bags, padded to one size.

    Attributes:
        x: the instances (bags, size, ...); zeros where there is none.
        key_mask: True for instances (bags, size).
        labels: 1.0 for positive bags (bags,).
        positive: which instances make a bag positive (bags, size): for evaluation, not for training.
    """

    x: Float[Tensor, "bags size ..."]
    key_mask: Bool[Tensor, "bags size"]
    labels: Float[Tensor, " bags"]
    positive: Bool[Tensor, "bags size"]


def digit_bags(
    images: Float[Tensor, "images ..."],
    labels: Int[Tensor, " images"],
    bags: int,
    *,
    target: int = 9,
    size: float = 10.0,
    spread: float = 2.0,
    seed: int = 0,
) -> Bags:
    """Bags of images, positive if at least one of them shows the ``target``; half of the bags are.

    Sizes are normal with mean ``size`` and deviation ``spread``, rounded, at least 1. A negative bag holds no target at all;
    a positive one is drawn at random until it holds one, so that it may hold several.

    Raises:
        ValueError: no image shows the target, or all do.

    Source: Ilse, Tomczak and Welling, "Attention-based deep multiple instance learning", arXiv 1802.04712, section 4.2.
    """
    hits, others = (labels == target).nonzero().flatten(), (labels != target).nonzero().flatten()
    if not len(hits) or not len(others):
        given = f"{len(hits)} images of {target} and {len(others)} others"
        raise ValueError(f"both the target and other labels are needed, got {given}")
    random = torch.Generator().manual_seed(seed)
    sizes = (size + spread * torch.randn(bags, generator=random)).round().clamp_min(1).long()
    key_mask = torch.arange(int(sizes.max())) < sizes[:, None]
    truth = torch.arange(bags) % 2 == 0
    chosen = others[torch.randint(len(others), key_mask.shape, generator=random)]
    lacking = truth.clone()  # positive bags that still lack a target
    while lacking.any():
        drawn = torch.randint(len(labels), key_mask.shape, generator=random)
        good = lacking & ((labels[drawn] == target) & key_mask).any(1)
        chosen[good] = drawn[good]
        lacking &= ~good
    x = images[chosen] * key_mask.view(*key_mask.shape, *[1] * (images.ndim - 1))
    return Bags(x, key_mask, truth.float(), (labels[chosen] == target) & key_mask)


def stained_bags(
    bags: int,
    *,
    agreement: float,
    size: int = 50,
    dim: int = 20,
    witnesses: tuple[int, int] = (1, 5),
    signal: float = 2.5,
    stain: float = 2.5,
    seed: int = 0,
) -> Bags:
    """Bags whose label is caused by a few instances, and which wear a stain that agrees with the label as often as you say.

    Instances are standard normal. In positive bags 1 to 5 of them are shifted by ``signal`` along features 0 and 1: the cause.
    In stained bags *all* instances are shifted by ``stain`` along features 2 and 3: how the laboratory dyes its slides. A bag
    is stained if it is positive, with probability ``agreement``; if it is negative, with probability 1 - ``agreement``.

    Args:
        agreement: 0.5 = the stain says nothing, 1 = it says all; from 0 to 1.
        witnesses: fewest and most shifted instances of a positive bag.
    """
    if not 0 <= agreement <= 1:
        raise ValueError(f"agreement is a probability, from 0 to 1, got {agreement}")
    fewest, most = witnesses
    if not 1 <= fewest <= most <= size or dim < 4:
        raise ValueError(f"witnesses must be 1 to the size {size} and dim at least 4, got {witnesses} and {dim}")
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(bags, size, dim, generator=random)
    truth = torch.arange(bags) % 2 == 0
    count = torch.randint(fewest, most + 1, (bags, 1), generator=random)
    positive = (torch.rand(bags, size, generator=random).argsort(1).argsort(1) < count) & truth[:, None]
    dyed = (torch.rand(bags, generator=random) < agreement) == truth
    x[..., :2] += signal * positive[..., None]
    x[..., 2:4] += stain * dyed[:, None, None]
    return Bags(x, torch.ones(bags, size, dtype=torch.bool), truth.float(), positive)
