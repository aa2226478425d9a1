"""Top-share pooling: of each feature the mean over the largest values, as many as a given share of the tokens."""

import torch
from torch import Tensor

from mhlib.functional.pooling import masked_count
from mhlib.pooling.base import Pool, PoolCall
from mhlib.registry import Reduction, register

__all__ = ["TopSharePool"]


def _all_of_them():
    return TopSharePool(5, 1.0), lambda x: x.mean(1)


def _the_largest():
    return TopSharePool(5, 1e-3), lambda x: x.amax(1)


def _half():
    return TopSharePool(5, 0.5), lambda x: x.topk(3, 1).values.mean(1)


@register(
    "top_share_pool",
    kind="pool",
    family="pool-mil",
    papers=(12,),
    properties=("invariant", "duplicable", "compiles"),
    example=lambda: TopSharePool(5, 0.4),
    reductions=(
        Reduction("share 1: mean pooling", _all_of_them),
        Reduction("a share of less than one token: max pooling", _the_largest),
        Reduction("half of six tokens: the mean of the top 3", _half),
    ),
)
class TopSharePool(Pool):
    r"""The mean of the largest share q of the values of each feature. With :math:`x_{(1)} \ge x_{(2)} \ge \dots`,

    .. math:: y = \frac{\sum_i c_i x_{(i)}}{\sum_i c_i}, \qquad c_i = \mathrm{clamp}(q N - i + 1,\ 0,\ 1)

    The last value that belongs to the share counts in part, so nothing jumps as q moves and a set with every token twice
    pools to the same. Down to one token it is the maximum.

    Args:
        dim: width of the tokens.
        share: q, above 0 and at most 1.

    One of the readings of a prediction grid (row 12); known in finance as expected shortfall.
    """

    def __init__(self, dim: int, share: float):
        super().__init__(dim)
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {share}")
        self.share = share

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        keep = None if key_mask is None else key_mask[..., None]
        values, order = (x if keep is None else torch.where(keep, x, float("-inf"))).sort(1, descending=True)
        place = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)[None, :, None]
        count = masked_count(x, key_mask)[:, None]
        counts = ((self.share * count).clamp_min(1) - place).clamp(0, 1) * (place < count)
        shares = counts / counts.sum(1, keepdim=True).clamp_min(1)
        if call.return_weights:
            call.weights = torch.zeros_like(x).scatter(1, order, shares.expand_as(x)).mT
        return (torch.where(shares > 0, values, 0.0) * shares).sum(1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, share={self.share}"
