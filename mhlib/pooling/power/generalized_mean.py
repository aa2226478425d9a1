"""Generalized mean pooling (GeM): log-sum-exp pooling of the logarithms, which is a mean of powers.

Differs from log-sum-exp pooling in the logarithm before and the exponential after; the exponent p is the sharpness.
"""

import math

import torch
from torch import Tensor, nn

from mhlib.functional.kernel_backend import takes_kernel
from mhlib.functional.pooling import masked_min
from mhlib.pooling.base import PoolCall
from mhlib.pooling.plain.mean import MeanPool
from mhlib.pooling.power.log_sum_exp import LogSumExpPool
from mhlib.registry import Reduction, register

__all__ = ["GeneralizedMeanPool"]

_LEAST_P = 1e-3  # at p = 0 the formula is 0 / 0; its limit is the geometric mean


def _is_mean():
    mean = MeanPool(5)
    return GeneralizedMeanPool(5, 1.0, eps=1e-9), lambda x: mean(x.clamp_min(1e-9))


def _is_mean_of_any_sign():
    return GeneralizedMeanPool(5, 1.0, negative="shift"), MeanPool(5)


def _is_log_sum_exp_of_logarithms():
    pool = LogSumExpPool(5, 1 / 2.5)
    return GeneralizedMeanPool(5, 2.5), lambda x: pool(x.clamp_min(1e-6).log()).exp()


def _is_root_mean_square():
    return GeneralizedMeanPool(5, 2.0), lambda x: x.clamp_min(1e-6).square().mean(1).sqrt()


@register(
    "generalized_mean_pool",
    kind="pool",
    family="pool-global",
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: GeneralizedMeanPool(5),
    reductions=(
        Reduction("p = 1: mean pooling of what the clamp leaves", _is_mean),
        Reduction("p = 1 and negative='shift': mean pooling", _is_mean_of_any_sign),
        Reduction("p = 2: the root of the mean square", _is_root_mean_square),
        Reduction("log-sum-exp pooling of log x at temperature 1/p, then exp", _is_log_sum_exp_of_logarithms),
    ),
    peers=("torch_geometric", "torch"),
)
class GeneralizedMeanPool(LogSumExpPool):
    r"""Generalized mean pooling: :math:`y_c = \left(\frac1N \sum_n \max(x_{nc}, \epsilon)^p\right)^{1/p}`.

    It is the mean at p = 1, the root of the mean square at 2, the maximum as p grows, and the minimum as p falls below
    zero; it grows with p. It is computed in logarithms, so a large p neither overflows nor vanishes.

    Args:
        p: the exponent at the start.
        learned: learn the exponent. It keeps the sign that it started with: below 0.001 in size it is held there, and has
            no gradient.
        eps: the least value that a feature counts as.
        negative: what becomes of values below ``eps``. "clamp" sets them to it, as is customary; "shift" adds the same
            number to all tokens, feature by feature, so that the least becomes ``eps``, and takes it off again at the end:
            features of both signs then keep all that they say, but the set cannot be streamed.

    Source: Radenović et al., "Fine-tuning CNN image retrieval with no human annotation", arXiv 1711.02512.
    """

    def __init__(
        self, dim: int, p: float = 3.0, *, learned: bool = True, eps: float = 1e-6, negative: str = "clamp"
    ):
        if p == 0 or not math.isfinite(p):
            raise ValueError(f"p must be finite and not 0, got {p}; for the maximum use MaxPool")
        if eps <= 0:
            raise ValueError(f"eps must be positive: the logarithm of 0 is not finite; got {eps}")
        if negative not in ("clamp", "shift"):
            raise ValueError(f"negative must be 'clamp' or 'shift', got {negative!r}")
        super().__init__(dim, 1 / p)
        self.eps, self.negative = eps, negative
        self.p = nn.Parameter(torch.full((self.exponents(),), float(p)), requires_grad=learned)

    def exponents(self) -> int:
        """How many exponents there are: here one for all features."""
        return 1

    def sharpness(self) -> Tensor:
        """The exponents, one or per feature, held away from zero on the side where they started."""
        return self.p.clamp_min(_LEAST_P) if self.fixed > 0 else self.p.clamp_max(-_LEAST_P)

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        if self.negative == "clamp":
            return self.powers(x, key_mask, call)
        offset = masked_min(x, key_mask) - self.eps
        return self.powers(x - offset[:, None], key_mask, call) + offset

    def powers(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        """The generalized mean of clamped tokens: on CUDA in one pass, by :func:`mhlib.kernels.power_pool`."""
        if takes_kernel("auto", x):
            from mhlib.kernels import power_pool

            return power_pool(x, self.sharpness(), key_mask=key_mask, eps=self.eps)
        return super().pool(x, key_mask, call)

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        if self.negative == "shift":
            raise ValueError("negative='shift' needs the least value of the whole set, so its tokens cannot come in pieces")
        return super().start(batch, like)

    def update(self, state: tuple[Tensor, ...], x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        return super().update(state, x.clamp_min(self.eps).log(), key_mask)

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        return torch.where(state[-1] > 0, super().finish(state).exp(), 0.0)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, exponents={len(self.p)}, eps={self.eps}, negative={self.negative!r}"
