"""KNN-centroid: which of many vectors matter is known, and so how much of a set is noise. Made, not recorded."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["knn_centroid"]


def knn_centroid(
    samples: int, neighbours: Sequence[int], *, vectors: int = 128, dim: int = 16, seed: int = 0
) -> tuple[Float[Tensor, "samples vectors dim"], Float[Tensor, "sizes samples dim"]]:
    """Sets of vectors, and for each number k of neighbours the mean of the k vectors nearest to the first one.

    A third of the features is normal, a third uniform and a third exponential; their places, bounds and scales are drawn
    anew for each set and feature, then all is divided by the root of ``dim``. The k neighbours are the signal, the other
    vectors the noise. The first vector itself belongs to neither, so at most ``vectors - 1`` neighbours exist.

    Args:
        samples: number of sets.
        neighbours: the numbers k, each 1 to ``vectors - 1``.

    Source: Brothers, "Robust noise attenuation via adaptive pooling of transformer outputs", arXiv 2506.09215, whose
    release asks for 128 neighbours of 128 vectors and gets 127.
    """
    if vectors < 2 or not all(1 <= k < vectors for k in neighbours):
        raise ValueError(f"each number of neighbours must be 1 to {vectors - 1} for {vectors} vectors, got {list(neighbours)}")
    random = torch.Generator().manual_seed(seed)
    each = dim // 3 + 1

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(samples, 1, each, generator=random)

    shape = (samples, vectors, each)
    normal = between(-3, 3) + between(1, 3) * torch.randn(shape, generator=random)
    uniform = between(-3, 3) + between(0.2, 3) * torch.rand(shape, generator=random)
    sign = torch.randint(2, (samples, 1, each), generator=random) * 2.0 - 1
    exponential = -torch.rand(shape, generator=random).clamp_min(1e-12).log() * between(0.1, 2)
    features = torch.cat([normal, uniform, sign * (exponential - between(0, 3))], -1) / dim**0.5
    order = torch.rand(samples, 1, 3 * each, generator=random).argsort(-1)[..., :dim]
    x = features.gather(-1, order.expand(-1, vectors, -1))
    nearest = (x - x[:, :1]).square().sum(-1).argsort(-1)[:, 1 : max(neighbours) + 1]
    ordered = x.gather(1, nearest[..., None].expand(-1, -1, dim))
    return x, torch.stack([ordered[:, :k].mean(1) for k in neighbours])
