"""FASet: train a set model in two stages, encoder and decoder on single elements, then the attention on sets.

Differs from joint training in who learns when: the two never pull on the same parameters.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from mhlib.experiments import train
from mhlib.pooling.attentive.att_sets import AttSets
from mhlib.registry import Example, Reduction, register

__all__ = ["SetModel", "faset"]


class SetModel(nn.Module):
    """A model of sets: every element through the encoder, all of them through the pool, the result through the decoder.

    Args:
        encoder: (batch, elements, dim) to (batch, elements, width).
        pool: a pool of that width.
        decoder: what comes out of the pool to the output.
    """

    def __init__(self, dim: int, encoder: nn.Module, pool: nn.Module, decoder: nn.Module):
        super().__init__()
        self.dim, self.encoder, self.pool, self.decoder = dim, encoder, pool, decoder

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        return self.decoder(self.pool(self.encoder(x), key_mask))


def _example_model() -> SetModel:
    return SetModel(4, nn.Linear(4, 3), AttSets(3), nn.Linear(3, 2))


def _batches(views: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(3, views, 4), torch.randn(3, 2)) for _ in range(4)]


def _example() -> Example:
    inputs = {"model": _example_model(), "batches": _batches(3), "steps": (2, 2), "loss": nn.functional.mse_loss}
    return Example(faset, inputs)


def _sets_of_one():
    """Without a second element the attention has nothing to weigh: the second stage changes nothing."""
    model, batches = _example_model(), _batches(1)
    both = faset(model, batches, steps=(3, 3), loss=nn.functional.mse_loss)
    base = copy.deepcopy(model)
    _stage(base, base_parameters(base), batches, 3, nn.functional.mse_loss, 1e-3, 0)
    return both, base


@register(
    "faset",
    kind="training",
    family="pool-attentive",
    papers=(59,),
    gradient="none",
    example=_example,
    reductions=(Reduction("sets of one element: training of encoder and decoder alone", _sets_of_one),),
)
def faset(
    model: SetModel,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    steps: tuple[int, int],
    loss: Callable[[Tensor, Tensor], Tensor],
    lr: float = 1e-3,
    seed: int = 0,
) -> SetModel:
    r"""Feature-attention separate training; returns a new model.

    Stage 1 takes every element of a set for a set of one, where AttSets is the identity, and trains encoder and decoder.
    Stage 2 freezes them and trains the pool on whole sets, with the same loss.

    Args:
        model: what to start from; it stays as it is.
        batches: pairs of sets (batch, elements, dim) and targets (batch, ...): a list, gone through again and again, or an
            iterator with enough of them.
        steps: optimiser steps of stage 1 and of stage 2.
        loss: ``loss(output, target)``, the scalar to minimise.
        lr: peak learning rate of both stages.

    Source: Yang et al., arXiv 1808.00758, algorithm 1 (row 59).
    """
    model = copy.deepcopy(model)
    stream = batches if isinstance(batches, Iterator) else itertools.cycle(batches)
    singles = ((x.flatten(0, 1)[:, None], y.repeat_interleave(x.shape[1], 0)) for x, y in stream)
    _stage(model, base_parameters(model), singles, steps[0], loss, lr, seed)
    _stage(model, list(model.pool.parameters()), stream, steps[1], loss, lr, seed + 1)
    return model


def base_parameters(model: SetModel) -> list[nn.Parameter]:
    """All but those of the pool."""
    pool = {id(p) for p in model.pool.parameters()}
    return [p for p in model.parameters() if id(p) not in pool]


def _stage(model, parameters, batches, steps, loss, lr, seed) -> None:
    """Train some of the parameters; the rest stand still."""
    before = [p.requires_grad for p in model.parameters()]
    wanted = {id(p) for p in parameters if p.requires_grad}
    if not steps or not wanted:
        return
    for p in model.parameters():
        p.requires_grad_(id(p) in wanted)
    step = lambda batch: loss(model(batch[0]), batch[1])  # noqa: E731
    train(model, batches, steps, lr=lr, loss=step, weight_decay=0.0, seed=seed)
    for p, flag in zip(model.parameters(), before):
        p.requires_grad_(flag)
        p.grad = None
