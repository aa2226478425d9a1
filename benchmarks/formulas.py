"""Statistics pools and bag pools beside their formulas, written out in torch's operations."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from mhlib import pooling

__all__ = ["formulas"]

Run = Callable[[], Tensor]
STREAMS = "keeps a state, so that a bag may come in pieces, and the instances' verdicts (aux)"


def formulas(x: Tensor, classes: int = 10) -> dict[str, tuple[Run, dict[str, Run], str]]:
    """By name: the pool on ``x``, its formula, and the reason where the pool is slower by design."""
    return _statistics(x) | _bags(x, classes)


def _statistics(x: Tensor) -> dict:
    tokens, dim = x.shape[1:]
    median, top = pooling.MedianPool(dim), pooling.TopSharePool(dim, 0.25)
    plain, attentive = pooling.StatisticsPool(dim), pooling.AttentiveStatisticsPool(dim, hidden=dim // 2)
    largest = tokens // 4  # a share of a quarter, of a number that 4 divides

    def weighted():
        a = attentive.scorer(x).softmax(1)
        mean = (a * x).sum(1)
        variance = (a * (x - mean[:, None]).square()).sum(1)
        return torch.cat([mean, variance.clamp_min(attentive.eps).sqrt()], -1)

    return {
        "median_pool": (lambda: median(x), {"torch": lambda: torch.quantile(x, 0.5, dim=1)}, ""),
        "top_share_pool": (
            lambda: top(x), {"torch": lambda: x.topk(largest, 1).values.mean(1)}, "sorts, because shares may be fractions of a token",
        ),
        "statistics_pool": (
            lambda: plain(x), {"torch": lambda: torch.cat([x.mean(1), x.std(1, correction=0)], -1)}, "two passes, for accuracy",
        ),
        "attentive_statistics_pool": (lambda: attentive(x), {"torch": weighted}, ""),
    }  # fmt: skip


def _bags(x: Tensor, classes: int) -> dict:
    dim = x.shape[-1]
    pools = {
        "mean_instance_pool": pooling.MeanInstancePool(dim, classes),
        "max_instance_pool": pooling.MaxInstancePool(dim, classes),
        "linear_softmax_pool": pooling.LinearSoftmaxPool(dim, classes),
        "exponential_softmax_pool": pooling.ExponentialSoftmaxPool(dim, classes),
        "attention_instance_pool": pooling.AttentionInstancePool(dim, classes),
        "noisy_or_pool": pooling.NoisyOrPool(dim, classes),
    }
    score = {name: (lambda p=pool: F.linear(x, p.score.weight, p.score.bias).sigmoid()) for name, pool in pools.items()}
    attend = pools["attention_instance_pool"].attend

    def by(name: str, formula: Callable[[Tensor], Tensor]) -> Run:
        return lambda: formula(score[name]())

    written = {
        "mean_instance_pool": lambda p: p.mean(1),
        "max_instance_pool": lambda p: p.amax(1),
        "linear_softmax_pool": lambda p: p.square().sum(1) / p.sum(1),
        "exponential_softmax_pool": lambda p: (p.softmax(1) * p).sum(1),
        "attention_instance_pool": lambda p: (attend(x).softmax(1) * p).sum(1),
        "noisy_or_pool": lambda p: 1 - (1 - p).prod(1),
    }
    return {
        name: ((lambda pool=pool: pool(x)), {"torch": by(name, written[name])}, STREAMS) for name, pool in pools.items()
    }
