"""All pools of sets in one small network, on the same task with the same budget, several seeds at once."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mhlib import pooling as P
from mhlib.experiments.set_tasks import SetTask
from mhlib.experiments.tiny_encoder import TinyEncoder
from mhlib.experiments.together import Together

__all__ = ["RACING_POOLS", "RacingPool", "SetNet", "race"]

D, H = 32, 4  # width and heads of all


class RacingPool(NamedTuple):
    """A pool that takes part.

    Attributes:
        make: ``make(classes) -> pool``.
        family: the chapter that it belongs to.
        gives: "vectors" (one or a few per set), "logits" or "probabilities" (one per class), "score" (the log-odds of the
            second of two classes) or "probability" (of the second of two).
    """

    make: Callable[[int], nn.Module]
    family: str
    gives: str = "vectors"

    def takes(self, task: SetTask) -> bool:
        """Whether it can solve the task: some know two classes only."""
        return task.classes == 2 or self.gives not in ("score", "probability")


RACING_POOLS = {
    "first": RacingPool(lambda c: P.FirstPool(D), "plain"),
    "last": RacingPool(lambda c: P.LastPool(D), "plain"),
    "mean": RacingPool(lambda c: P.MeanPool(D), "plain"),
    "sum": RacingPool(lambda c: P.SumPool(D), "plain"),
    "max": RacingPool(lambda c: P.MaxPool(D), "plain"),
    "min": RacingPool(lambda c: P.MinPool(D), "plain"),
    "median": RacingPool(lambda c: P.MedianPool(D), "plain"),
    "quantile 0.9": RacingPool(lambda c: P.QuantilePool(D, 0.9), "plain"),
    "top quarter": RacingPool(lambda c: P.TopSharePool(D, 0.25), "plain"),
    "log-sum-exp": RacingPool(lambda c: P.LogSumExpPool(D, learned=True), "powers"),
    "GeM": RacingPool(lambda c: P.GeneralizedMeanPool(D), "powers"),
    "GGeM": RacingPool(lambda c: P.GroupGeneralizedMeanPool(D, H), "powers"),
    "deviation": RacingPool(lambda c: P.StdPool(D), "statistics"),
    "mean and deviation": RacingPool(lambda c: P.StatisticsPool(D), "statistics"),
    "multi-head statistics": RacingPool(lambda c: P.MultiHeadStatisticsPool(D, H), "statistics"),
    "attentive statistics": RacingPool(lambda c: P.AttentiveStatisticsPool(D, hidden=D), "statistics"),
    "dual resolution": RacingPool(lambda c: P.DualResolutionStatisticsPool(D, segment=4, hidden=D), "statistics"),
    "learned query": RacingPool(lambda c: P.AttentionPool(D, H), "attention"),
    "AdaPool": RacingPool(lambda c: P.AdaPool(D, H), "attention"),
    "SimPool": RacingPool(lambda c: P.SimPool(D), "attention"),
    "attentive average": RacingPool(lambda c: P.AttentiveAveragePool(D, H), "attention"),
    "QKV": RacingPool(lambda c: P.QKVPool(D, H), "attention"),
    "AttSets": RacingPool(lambda c: P.AttSets(D), "attention"),
    "low-rank context": RacingPool(lambda c: P.LowRankContextPool(D, H), "attention"),
    "class token": RacingPool(lambda c: P.ClassTokenPool(D, TinyEncoder(D, H, num_layers=1)), "attention"),
    "joint token": RacingPool(lambda c: P.JointTokenPool(D, H, num_layers=1), "attention"),
    "STAMP": RacingPool(lambda c: P.StampPool(D, H), "many queries"),
    "inducing points": RacingPool(lambda c: P.InducedPool(D, H, num_queries=4), "many queries"),
    "register predictor": RacingPool(lambda c: P.RegisterPredictor(D, H, num_queries=4), "many queries"),
    "slots": RacingPool(lambda c: P.slot_parts(D, 4), "many queries"),
    "class queries": RacingPool(lambda c: P.ClassQueryPool(D, c, H), "many queries", "logits"),
    "class decoder": RacingPool(
        lambda c: P.ClassQueryDecoder(D, c, H, num_layers=1, hidden_dim=2 * D), "many queries", "logits"
    ),
    "mean of instances": RacingPool(lambda c: P.MeanInstancePool(D, c), "bags", "probabilities"),
    "max of instances": RacingPool(lambda c: P.MaxInstancePool(D, c), "bags", "probabilities"),
    "linear softmax": RacingPool(lambda c: P.LinearSoftmaxPool(D, c), "bags", "probabilities"),
    "exponential softmax": RacingPool(lambda c: P.ExponentialSoftmaxPool(D, c), "bags", "probabilities"),
    "instance attention": RacingPool(lambda c: P.AttentionInstancePool(D, c), "bags", "probabilities"),
    "noisy-or": RacingPool(lambda c: P.NoisyOrPool(D, c), "bags", "probabilities"),
    "smoothed max": RacingPool(lambda c: P.SmoothedMaxPool(D), "bags", "probability"),
    "attention of scores": RacingPool(lambda c: P.AttentionScorePool(D), "bags", "probability"),
    "FocusMIL": RacingPool(lambda c: P.FocusMIL(D, hidden=D, code=D // 2), "bags", "score"),
}


class SetNet(nn.Module):
    """A linear map and a ReLU for each token, a pool, and a norm and a classifier where the pool is none itself."""

    def __init__(self, task: SetTask, racing: RacingPool):
        super().__init__()
        self.embed = nn.Linear(task.train.x.shape[-1], D)
        self.place = nn.Parameter(0.2 * torch.randn(task.places, D)) if task.places else None
        self.pool, self.gives = racing.make(task.classes), racing.gives
        if self.gives == "vectors":
            with torch.no_grad():
                width = self.pool(torch.randn(2, 5, D)).flatten(1).shape[1]
            self.read = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, task.classes))

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Float[Tensor, "batch classes"]:
        """Logits."""
        x = self.embed(x)
        y = self.pool((x if self.place is None else x + self.place).relu(), key_mask)
        if self.gives == "vectors":
            return self.read(y.flatten(1))
        if self.gives in ("probabilities", "probability"):
            y = y.clamp(1e-6, 1 - 1e-6).logit()
        return torch.cat([torch.zeros_like(y), y], 1) if self.gives in ("score", "probability") else y


def race(
    task: SetTask, racing: RacingPool, steps: int, *, seeds: int = 5, batch: int = 24, lr: float = 3e-2, seed: int = 0
) -> Float[Tensor, " seeds"]:
    """Accuracy on the test sets, in percent, of a network for each seed. Each draws its own weights and batches.

    Args:
        seed: the first of the seeds.

    Raises:
        ValueError: the pool cannot solve the task.
    """
    if not racing.takes(task):
        raise ValueError(f"a pool that gives a {racing.gives} knows 2 classes, the task has {task.classes}")
    nets = []
    with torch.random.fork_rng():
        for s in range(seed, seed + seeds):
            torch.manual_seed(s)
            nets.append(SetNet(task, racing))
        together = Together(nets)
        together.train(_batches(task.train, seeds, batch, seed), steps, _losses, lr=lr)
    x, key_mask, labels = task.test
    each = [None if t is None else t.expand(seeds, *t.shape) for t in (x, key_mask)]
    with torch.no_grad():
        return 100 * (together(*each).argmax(-1) == labels).float().mean(1)


def _batches(part, seeds: int, batch: int, seed: int):
    random = torch.Generator().manual_seed(seed)
    while True:
        i = torch.randint(len(part.x), (seeds, batch), generator=random)
        yield part.x[i], None if part.key_mask is None else part.key_mask[i], part.labels[i]


def _losses(together: Together, batch) -> Float[Tensor, " models"]:
    x, key_mask, y = batch
    logits = together(x, key_mask).flatten(0, 1)
    return F.cross_entropy(logits, y.flatten(), reduction="none").view(y.shape).mean(1)
