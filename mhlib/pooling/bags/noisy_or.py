"""Noisy-or pooling: a bag is positive unless every instance, independently of the others, fails to make it so."""

import torch
from torch import Tensor
from torch.nn import functional as F

from mhlib.functional.precision import accumulator
from mhlib.pooling.bags.instance_pool import InstancePool
from mhlib.registry import Reduction, register

__all__ = ["NoisyOrPool"]


def _noisy_or():
    pool = NoisyOrPool(5, 2)
    return pool, lambda x: 1 - (1 - pool.score(x).sigmoid()).prod(1)


@register(
    "noisy_or_pool",
    kind="pool",
    family="pool-mil",
    papers=(12,),
    properties=("invariant", "streams", "compiles"),
    example=lambda: NoisyOrPool(5, 2),
    reductions=(Reduction("one minus the product of the complements, literally", _noisy_or),),
)
class NoisyOrPool(InstancePool):
    r"""Noisy-or pooling: :math:`y = 1 - \prod_n (1 - p_n)`, computed as :math:`-\mathrm{expm1} \sum_n \log \sigma(-z_n)`.

    It counts: many small probabilities make a large one, and a bag that holds every instance twice is surer. It has no
    weights. One of the readings of a prediction grid (row 12).
    """

    def log_weights(self, z, x):
        return z

    def shares(self, z, log_w, keep):
        raise ValueError("NoisyOrPool has no weights to return: it does not average its tokens")

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        return (like.new_zeros(batch, self.num_classes, dtype=accumulator(like.dtype)),)

    def fold(self, state, z, log_w, keep):
        log_q = F.logsigmoid(-z)
        return (state[0] + (log_q if keep is None else torch.where(keep, log_q, 0.0)).sum(1),)

    def finish(self, state):
        return -torch.expm1(state[0])
