"""Five ways from probabilities of instances to that of a bag: average, exponential and linear softmax, maximum, attention.

Each differs from the others in ``log_weights`` alone.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib.functional.precision import accumulator
from mhlib.pooling.bags.instance_pool import InstancePool
from mhlib.registry import Reduction, register

__all__ = ["AttentionInstancePool", "ExponentialSoftmaxPool", "LinearSoftmaxPool", "MaxInstancePool", "MeanInstancePool"]

_PROMISES = ("invariant", "duplicable", "streams", "compiles")


def _literally(make, pooled):
    """The pool, and its formula applied to the probabilities as the paper writes it."""

    def build():
        pool = make()
        return pool, lambda x: pooled(pool.score(x).sigmoid())

    return build


def _attention_without_scores():
    attention, average = AttentionInstancePool(5, 2), MeanInstancePool(5, 2)
    average.score = attention.score
    with torch.no_grad():
        attention.attend.weight.zero_()
    return attention, average


def _power(power, other):
    def build():
        pool, reduced = LinearSoftmaxPool(5, 2, power=power), other(5, 2)
        with torch.no_grad():
            pool.score.weight.mul_(20)  # probabilities far apart, so that the largest stands alone
        reduced.load_state_dict(pool.state_dict())
        return pool, reduced

    return build


def _attention_of_probabilities():
    """One class, one head: the map is the query, instances are the keys, their probabilities the values."""
    from mhlib.functional.attention import attention

    pool = AttentionInstancePool(5)

    def by_heads(x):
        q = pool.attend.weight.to(x)[None, None].expand(len(x), -1, -1, -1)
        return attention(q, x[:, None], pool.score(x).sigmoid()[:, None], scale=1.0, backend="reference")[:, 0, 0]

    return pool, by_heads


@register(
    "mean_instance_pool",
    kind="pool",
    family="pool-mil",
    papers=(93,),
    properties=_PROMISES,
    example=lambda: MeanInstancePool(5, 2),
    reductions=(
        Reduction("the mean of the probabilities, literally", _literally(lambda: MeanInstancePool(5, 2), lambda p: p.mean(1))),
    ),
    peers=("torch_geometric",),
)
class MeanInstancePool(InstancePool):
    r"""Average pooling of probabilities: :math:`y = \frac1N \sum_n p_n`, so that :math:`\partial y / \partial p_n = 1 / N`.

    Source: Wang, Li and Metze, arXiv 1810.09050 (row 93).
    """

    def log_weights(self, z, x):
        return torch.zeros_like(z)


@register(
    "linear_softmax_pool",
    kind="pool",
    family="pool-mil",
    papers=(93,),
    properties=_PROMISES,
    example=lambda: LinearSoftmaxPool(5, 2),
    reductions=(
        Reduction(
            "the sum of squares over the sum, literally",
            _literally(lambda: LinearSoftmaxPool(5, 2), lambda p: p.square().sum(1) / p.sum(1)),
        ),
        Reduction("power 0: average pooling", _power(0.0, lambda *a: MeanInstancePool(*a))),
        Reduction("a large power: max pooling", _power(1e6, lambda *a: MaxInstancePool(*a))),
    ),
)
class LinearSoftmaxPool(InstancePool):
    r"""Linear softmax pooling: each probability is its own weight,

    .. math:: y = \frac{\sum_n p_n^2}{\sum_n p_n}, \qquad \frac{\partial y}{\partial p_n} = \frac{2 p_n - y}{\sum_m p_m}

    A softmax with log-weights :math:`\log p_n`, taken from the logits, so that small probabilities keep their gradient.

    Args:
        dim, num_classes: as in :class:`InstancePool`.
        power: weights :math:`p_n^r` instead, r >= 0: from the average (0) to the maximum (infinity).

    Source: Wang, Li and Metze, arXiv 1810.09050 (row 93), where r = 1.
    """

    def __init__(self, dim: int, num_classes: int = 1, *, power: float = 1.0):
        super().__init__(dim, num_classes)
        if power < 0:
            raise ValueError(f"power must not be negative, got {power}: low probabilities would count most")
        self.power = power

    def log_weights(self, z, x):
        return self.power * F.logsigmoid(z)


@register(
    "exponential_softmax_pool",
    kind="pool",
    family="pool-mil",
    papers=(93,),
    properties=_PROMISES,
    example=lambda: ExponentialSoftmaxPool(5, 2),
    reductions=(
        Reduction(
            "weights e^p, literally",
            _literally(lambda: ExponentialSoftmaxPool(5, 2), lambda p: (p * p.exp()).sum(1) / p.exp().sum(1)),
        ),
    ),
)
class ExponentialSoftmaxPool(InstancePool):
    r"""Exponential softmax pooling, log-weights :math:`p_n`:

    .. math:: y = \frac{\sum_n p_n e^{p_n}}{\sum_n e^{p_n}}, \qquad
              \frac{\partial y}{\partial p_n} = (1 - y + p_n) \frac{e^{p_n}}{\sum_m e^{p_m}}

    Weights differ at most by the factor e, so it stays near the average. Source: Wang, Li and Metze, arXiv 1810.09050 (row 93).
    """

    def log_weights(self, z, x):
        return z.sigmoid()


@register(
    "attention_instance_pool",
    kind="pool",
    family="pool-mil",
    papers=(93,),
    properties=_PROMISES,
    example=lambda: AttentionInstancePool(5, 2),
    reductions=(
        Reduction("attention maps of zeros: average pooling", _attention_without_scores),
        Reduction("one class: attention with the map as query and probabilities as values", _attention_of_probabilities),
    ),
    peers=("torch_geometric",),
)
class AttentionInstancePool(InstancePool):
    r"""Attention pooling of probabilities: log-weights :math:`u \cdot x_n` from a linear map of their own, per class.

    With :math:`w_n = e^{u \cdot x_n}`: :math:`\partial y / \partial p_n = a_n` and
    :math:`\partial y / \partial w_n = (p_n - y) / \sum_m w_m`. The released code gives the map a bias; it cancels in the
    softmax over the instances and is left out. Source: Wang, Li and Metze, arXiv 1810.09050 (row 93).
    """

    def __init__(self, dim: int, num_classes: int = 1):
        super().__init__(dim, num_classes)
        self.attend = nn.Linear(dim, num_classes, bias=False)

    def log_weights(self, z, x):
        return self.attend(x)


@register(
    "max_instance_pool",
    kind="pool",
    family="pool-mil",
    papers=(93,),
    properties=_PROMISES,
    example=lambda: MaxInstancePool(5, 2),
    reductions=(
        Reduction("the largest probability, literally", _literally(lambda: MaxInstancePool(5, 2), lambda p: p.amax(1))),
    ),
    peers=("torch_geometric",),
)
class MaxInstancePool(InstancePool):
    r"""Max pooling of probabilities: :math:`y = \max_n p_n`; one instance of each bag and class gets the whole gradient.

    Instances that tie share it. Source: Wang, Li and Metze, arXiv 1810.09050 (row 93).
    """

    def log_weights(self, z, x):
        return z

    def shares(self, z, log_w, keep):
        top = z if keep is None else torch.where(keep, z, float("-inf"))
        ties = (z == top.amax(1, keepdim=True)).to(z.dtype)
        ties = ties if keep is None else ties * keep
        return ties / ties.sum(1, keepdim=True).clamp_min(1)

    def start(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        return (like.new_full((batch, self.num_classes), float("-inf"), dtype=accumulator(like.dtype)),)

    def fold(self, state, z, log_w, keep):
        z = z if keep is None else torch.where(keep, z, float("-inf"))
        here = z.amax(1)
        return (torch.where(here > state[0], here, state[0]),)

    def finish(self, state):
        return state[0].sigmoid()
