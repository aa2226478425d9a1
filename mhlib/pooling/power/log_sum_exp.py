"""Log-sum-exp pooling: a temperature that goes from the mean to the maximum, for features of any sign."""

import math

import torch
from torch import Tensor, nn

from mhlib.functional.pooling import masked_count
from mhlib.functional.precision import widened
from mhlib.pooling.base import PoolCall, StreamingPool
from mhlib.registry import Reduction, register

__all__ = ["LogSumExpPool"]


def _log_sum_exp():
    return LogSumExpPool(5, average=False), lambda x: x.logsumexp(1)


def _log_mean_exp():
    return LogSumExpPool(5, 0.5), lambda x: 0.5 * (2 * x).exp().mean(1).log()


@register(
    "log_sum_exp_pool",
    kind="pool",
    family="pool-global",
    properties=("invariant", "duplicable", "streams", "compiles"),
    example=lambda: LogSumExpPool(5, 0.5, learned=True),
    reductions=(
        Reduction("temperature 1, not averaged: torch.logsumexp over the tokens", _log_sum_exp),
        Reduction("the logarithm of the mean of exponentials, taken literally", _log_mean_exp),
    ),
    peers=("torch",),
)
class LogSumExpPool(StreamingPool):
    r"""Log-sum-exp pooling: :math:`y_c = \tau \log \frac1N \sum_n e^{x_{nc} / \tau}`.

    A small temperature gives the maximum, a large one the mean, a small negative one the minimum. The division by N keeps
    the result between mean and maximum and the same when every token comes twice; without it, y is larger by
    :math:`\tau \log N`. Nothing overflows, whatever the temperature.

    Args:
        temperature: the temperature, finite and not zero.
        learned: learn the temperature, one number; it must be positive then and stays so.
        average: divide by the number of tokens.
    """

    def __init__(self, dim: int, temperature: float = 1.0, *, learned: bool = False, average: bool = True):
        super().__init__(dim)
        if not math.isfinite(temperature):
            raise ValueError(f"temperature must be finite, got {temperature}; for the mean use MeanPool")
        if temperature == 0 or (learned and temperature < 0):
            raise ValueError(f"temperature must be {'positive to be learned' if learned else 'other than 0'}, got {temperature}")
        self.average, self.fixed = average, 1 / temperature
        self.log_sharpness = nn.Parameter(torch.tensor(self.fixed).log()) if learned else None

    def sharpness(self) -> Tensor | float:
        """The factor of the features in the exponent, one or per feature: here 1 / temperature."""
        return self.fixed if self.log_sharpness is None else self.log_sharpness.exp()

    def pool(self, x: Tensor, key_mask: Tensor | None, call: PoolCall) -> Tensor:
        precise = widened(x)
        state = LogSumExpPool.start(self, len(x), precise)
        return self.finish(self.update(state, precise, key_mask)).to(x.dtype)

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        return like.new_full((batch, self.dim), torch.finfo(like.dtype).min), like.new_zeros(batch, 1)

    def update(self, state: tuple[Tensor, ...], x: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        total, count = state
        z = self.sharpness() * x
        if key_mask is not None:  # the lowest finite number, not -inf: a piece without tokens stays finite
            z = torch.where(key_mask[..., None], z, torch.finfo(z.dtype).min)
        return torch.logaddexp(total, z.logsumexp(1)), count + masked_count(x, key_mask)

    def finish(self, state: tuple[Tensor, ...]) -> Tensor:
        total, count = state
        some = count > 0
        total = torch.where(some, total, 0.0)
        return (total - count.clamp_min(1).log() if self.average else total) / self.sharpness()

    def extra_repr(self) -> str:
        return f"dim={self.dim}, average={self.average}"
