"""Dual-resolution attentive statistics pooling (DRASP): the whole at one glance, and short segments weighed against each other.

Differs from attentive statistics pooling in what is weighed, segments instead of frames, and in the plain statistics beside it.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.functional.normalizers import softmax
from mhlib.functional.pooling import masked_mean, masked_std
from mhlib.functional.weighted_statistics import weighted_statistics
from mhlib.pooling.base import Pool, PoolCall
from mhlib.pooling.statistics.attentive_statistics import AttentiveStatisticsPool, frame_scorer
from mhlib.pooling.statistics.statistics import StatisticsPool
from mhlib.registry import Reduction, register

__all__ = ["DualResolutionStatisticsPool"]


def _only(coarse: float, fine: float, **options) -> "DualResolutionStatisticsPool":
    pool = DualResolutionStatisticsPool(5, hidden=3, **options)
    with torch.no_grad():
        pool.shares.copy_(torch.tensor([coarse, fine]))
    return pool


def _single_frames():
    pool, attentive = _only(0.0, 1.0, segment=1), AttentiveStatisticsPool(5, hidden=3)
    attentive.scorer.load_state_dict(pool.scorer.state_dict())
    return pool, attentive


def _one_segment():
    pool = _only(0.0, 1.0, segment=6)
    return pool, lambda x: torch.cat([x.mean(1), torch.full_like(x[:, 0], pool.eps**0.5)], -1)


def _equal_segments():
    pool = _only(0.25, 0.75, segment=2, within=True)
    with torch.no_grad():
        pool.scorer[-1].weight.zero_()
    return pool, StatisticsPool(5, eps=pool.eps)


@register(
    "dual_resolution_statistics_pool",
    kind="pool",
    family="pool-statistics",
    papers=(38,),
    properties=("compiles",),
    example=lambda: DualResolutionStatisticsPool(5, segment=2, hidden=4),
    reductions=(
        Reduction("shares (1, 0): statistics pooling", lambda: (_only(1.0, 0.0), StatisticsPool(5, eps=1e-5))),
        Reduction("shares (0, 1) and segments of one frame: attentive statistics pooling", _single_frames),
        Reduction("shares (0, 1) and one segment: the mean, and no deviation", _one_segment),
        Reduction("equal weights on equal segments, spread within counted: statistics pooling, whatever the shares", _equal_segments),
    ),
)
class DualResolutionStatisticsPool(Pool):
    r"""Dual-resolution attentive statistics pooling. With the means :math:`s_i` of consecutive segments of L frames,

    .. math::
        a = \mathrm{softmax}_i(v \cdot \tanh(W s_i + b)), \qquad \mu_a = \sum_i a_i s_i, \qquad
        \sigma_a^2 = \sum_i a_i (s_i - \mu_a)^2, \qquad y = \alpha\, [\mu, \sigma] + \beta\, [\mu_a, \sigma_a]

    where mu and sigma are those of all frames. Variances below ``eps`` count as ``eps``.

    Args:
        dim: width D of the frames; the output is (batch, 2 D).
        segment: frames L of a segment; the last one of a sequence may be shorter.
        hidden: units of the scorer.
        fuse: "sum" with learned shares alpha and beta (both start at 0.5), or "concat", output (batch, 4 D).
        within: add :math:`\sum_i a_i \sigma_i^2`, the spread inside the segments, to the fine variance: then it is the
            weighted variance of the frames.

    Segments are cut by position, so order counts. Weights are (batch, 1, tokens), a segment's weight shared out among its
    frames; ``return_aux`` gives "segments" (batch, segments).
    Source: Yang et al., "DRASP", arXiv 2508.21407 (row 38); segment length and fusion rule are our reading.
    """

    def __init__(
        self, dim: int, *, segment: int = 10, hidden: int = 128, fuse: str = "sum", within: bool = False, eps: float = 1e-5
    ):
        super().__init__(dim)
        if segment < 1:
            raise ValueError(f"segment must be at least 1 frame, got {segment}")
        if fuse not in ("sum", "concat"):
            raise ValueError(f"fuse must be 'sum' or 'concat', got {fuse!r}")
        if eps < 0:
            raise ValueError(f"eps must not be negative, got {eps}")
        self.segment, self.fuse, self.within, self.eps = segment, fuse, within, eps
        self.scorer = frame_scorer(dim, hidden)
        self.shares = nn.Parameter(torch.full((2,), 0.5)) if fuse == "sum" else None

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        coarse = torch.cat([masked_mean(x, key_mask), masked_std(x, key_mask, eps=self.eps)], -1)
        frames, real = self.cut(x, key_mask)
        fine = self.fine(frames, real, x.shape[1], call)
        if self.shares is None:
            return torch.cat([coarse, fine], -1)
        return self.shares[0] * coarse + self.shares[1] * fine

    def cut(
        self, x: Float[Tensor, "batch tokens dim"], key_mask: Bool[Tensor, "batch tokens"] | None
    ) -> tuple[Float[Tensor, "batch segments length dim"], Bool[Tensor, "batch segments length"]]:
        """Frames by segments, and which of them are real."""
        missing = -x.shape[1] % self.segment
        real = x.new_ones(x.shape[:2], dtype=torch.bool) if key_mask is None else key_mask
        x = torch.where(real[..., None], x, 0.0)
        frames, real = F.pad(x, (0, 0, 0, missing)), F.pad(real, (0, missing))
        return frames.unflatten(1, (-1, self.segment)), real.unflatten(1, (-1, self.segment))

    def fine(self, frames: Tensor, real: Tensor, tokens: int, call: PoolCall) -> Float[Tensor, "batch two_dim"]:
        """Mean and deviation of the segments under their weights."""
        count = real.sum(2, keepdim=True).clamp_min(1).to(frames.dtype)
        means = frames.sum(2) / count
        a = softmax(self.scorer(means)[..., 0], real.any(2))
        call.aux["segments"] = a
        weights = ((a[..., None] / count) * real).flatten(1)
        call.weights = weights[:, None, :tokens]
        x, w = (frames.flatten(1, 2), weights) if self.within else (means, a)
        return torch.cat(weighted_statistics(x, w[..., None], eps=self.eps), -1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, segment={self.segment}, fuse={self.fuse!r}, within={self.within}"
