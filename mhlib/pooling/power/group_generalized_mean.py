"""Group generalized mean pooling (GGeM): each group of features has an exponent of its own.

Differs from generalized mean pooling in the number of exponents.
"""

import torch
from torch import Tensor

from mhlib.pooling.power.generalized_mean import GeneralizedMeanPool
from mhlib.registry import Reduction, register

__all__ = ["GroupGeneralizedMeanPool"]


def _one_group():
    return GroupGeneralizedMeanPool(8, 1, 2.5), GeneralizedMeanPool(8, 2.5)


def _equal_exponents():
    return GroupGeneralizedMeanPool(8, 4, 2.5), GeneralizedMeanPool(8, 2.5)


def _group_by_group():
    pool = GroupGeneralizedMeanPool(8, 4)
    exponents = (0.5, 1.0, 3.0, 7.0)
    with torch.no_grad():
        pool.p.copy_(torch.tensor(exponents))
    parts = [GeneralizedMeanPool(2, p) for p in exponents]
    return pool, lambda x: torch.cat([part(group) for part, group in zip(parts, x.chunk(4, -1))], -1)


@register(
    "group_generalized_mean_pool",
    kind="pool",
    family="pool-global",
    papers=(7,),
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: GroupGeneralizedMeanPool(8, 4),
    reductions=(
        Reduction("one group: generalized mean pooling", _one_group),
        Reduction("all exponents equal: generalized mean pooling, whatever the groups", _equal_exponents),
        Reduction("a generalized mean pool per group, side by side", _group_by_group),
    ),
    peers=("torch_geometric",),
)
class GroupGeneralizedMeanPool(GeneralizedMeanPool):
    r"""Group generalized mean pooling: :math:`y_c = \left(\frac1N \sum_n \max(x_{nc}, \epsilon)^{p_g}\right)^{1/p_g}`,
    where :math:`g = \lfloor c\,G / d \rfloor` is the group of feature c.

    The paper takes as many groups as the backbone has heads; a group is nevertheless written by all heads, because the
    output projection mixes them. One group is GeM, as many groups as features an exponent per feature.

    Args:
        groups: number G of groups of neighbouring features; it divides ``dim``.

    All else as in :class:`GeneralizedMeanPool`.
    Source: Ko et al., "Group generalized mean pooling for vision transformer", arXiv 2212.04114 (row 7).
    """

    def __init__(self, dim: int, groups: int, p: float = 3.0, **options):
        if groups < 1 or dim % groups:
            raise ValueError(f"groups must divide dim, got groups={groups} for dim={dim}")
        self.groups = groups
        super().__init__(dim, p, **options)

    def exponents(self) -> int:
        return self.groups

    def sharpness(self) -> Tensor:
        return super().sharpness().repeat_interleave(self.dim // self.groups)
