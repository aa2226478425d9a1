"""MIDAM: train a bag classifier for the area under the ROC curve from a few instances of a few bags a step.

Differs from training on whole bags in memory: a step holds the sampled instances, and a number or two per bag remain.
"""

import copy

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mhlib.pooling.bags.auc import AUCMinMax, MIDAM
from mhlib.pooling.bags.running_means import RunningMeans
from mhlib.pooling.bags.score_pools import AttentionScorePool, ScorePool, SmoothedMaxPool
from mhlib.registry import Example, Reduction, register

__all__ = ["midam"]


def _problem(pool: ScorePool | None = None) -> dict:
    generator = torch.Generator().manual_seed(torch.initial_seed() % 2**31)
    x, labels = torch.randn(6, 8, 4, generator=generator), torch.tensor([1.0, 0, 0, 1, 0, 1])
    return {"pool": pool or AttentionScorePool(4), "bags": x, "labels": labels, "steps": 4, "instances": 3, "per_class": 2}


def _whole_bags(make):
    """Every instance of every bag, nothing remembered: plain gradient descent on the loss of whole bags."""

    def build():
        problem = _problem(make().double()) | {"instances": 8, "per_class": 3, "gamma": 1.0, "momentum": 0.0, "lr": 0.05}
        problem["bags"] = problem["bags"].double()
        plain, a, b, alpha = copy.deepcopy(problem["pool"]), *torch.zeros(3, dtype=torch.float64, requires_grad=True).unbind()
        values = [*plain.parameters(), a, b]
        for _ in range(problem["steps"]):
            h, y = plain(problem["bags"])[:, 0], problem["labels"].bool()
            up, down = h[y], h[~y]
            gap = 1.0 + down.mean() - up.mean()
            loss = (up - a).square().mean() + (down - b).square().mean() + 2 * alpha * gap - alpha**2
            slopes = torch.autograd.grad(loss, values)
            rise = (gap - alpha).detach()
            with torch.no_grad():
                moved = [v - 0.05 * g for v, g in zip(values, slopes)]
                for p, value in zip(plain.parameters(), moved):
                    p.copy_(value)
            a, b = (value.detach().requires_grad_() for value in moved[-2:])
            values = [*plain.parameters(), a, b]
            alpha = (alpha.detach() + 0.05 * rise).clamp_min(0)
        return midam(**problem), plain

    return build


@register(
    "midam",
    kind="training",
    family="pool-mil",
    papers=(22,),
    gradient="none",
    example=lambda: Example(midam, _problem()),
    reductions=(
        Reduction("all instances, gamma 1: descent on whole bags, attention", _whole_bags(lambda: AttentionScorePool(4))),
        Reduction("all instances, gamma 1: descent on whole bags, smoothed maximum", _whole_bags(lambda: SmoothedMaxPool(4))),
    ),
)
def midam(
    pool: ScorePool,
    bags: Float[Tensor, "bags tokens dim"],
    labels: Float[Tensor, " bags"],
    *,
    steps: int,
    instances: int,
    per_class: int = 8,
    gamma: float = 0.9,
    margin: float = 1.0,
    lr: float = 0.1,
    momentum: float = 0.1,
    key_mask: Bool[Tensor, "bags tokens"] | None = None,
    seed: int = 0,
) -> ScorePool:
    r"""Multi-instance deep AUC maximisation with stochastic pooling; returns a new pool.

    A step draws ``per_class`` positive and as many negative bags, ``instances`` instances of each, renews the running means
    of those bags (:class:`RunningMeans`) and takes a step of :class:`MIDAM` on :class:`AUCMinMax`. Afterwards the pool is
    used on whole bags, in pieces if they are large.

    Args:
        pool: what to start from; it stays as it is.
        labels: 1 for positive bags, 0 for negative ones.
        instances: how many of each bag are drawn, without replacement; smaller bags give all they have.
        gamma: renewal of the running means; 1 pools each sample by itself, which is biased.
        margin, lr, momentum: of the loss and the optimiser.

    Raises:
        ValueError: no positive or no negative bags, fewer than one instance, or a loss that is not finite.

    Source: Zhu et al., arXiv 2305.08040 (row 22).
    """
    if instances < 1 or per_class < 1 or steps < 1:
        raise ValueError(f"steps, instances and per_class must be at least 1, got {steps}, {instances} and {per_class}")
    classes = [(labels > 0.5).nonzero().flatten(), (labels <= 0.5).nonzero().flatten()]
    if not all(map(len, classes)):
        given = f"{len(classes[0])} positive and {len(classes[1])} negative ones"
        raise ValueError(f"MIDAM compares positive with negative bags, got {given}")
    pool, loss = copy.deepcopy(pool), AUCMinMax(margin).to(bags)
    means = RunningMeans(len(bags), gamma).to(bags.device)
    optimizer = MIDAM([*pool.parameters(), loss.a, loss.b], loss, lr, momentum=momentum)
    random = torch.Generator().manual_seed(seed)
    was_training = pool.training
    pool.train()
    for step in range(steps):
        index = torch.cat([c[torch.randperm(len(c), generator=random)[:per_class].to(c.device)] for c in classes])
        x, keep = sample(bags[index], None if key_mask is None else key_mask[index], instances, random)
        value = loss(means(pool, x, index, keep), labels[index])
        if not value.isfinite():
            raise ValueError(f"the loss is {value.item()} at step {step + 1}: try a smaller lr than {lr}")
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return pool.train(was_training)


def sample(
    x: Float[Tensor, "batch tokens dim"], key_mask: Tensor | None, size: int, random: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Some of the instances of each bag, without replacement, and which of them are real."""
    order = torch.rand(x.shape[:2], generator=random).to(x.device)
    if key_mask is not None:
        order = torch.where(key_mask, order, 2.0)  # padding comes last
    chosen = order.argsort(1)[:, :size]
    return x.gather(1, chosen[..., None].expand(-1, -1, x.shape[2])), None if key_mask is None else key_mask.gather(1, chosen)
