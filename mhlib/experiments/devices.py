"""Devices that are entries of a list: one query meets keys that are spread over them, in a ring or in a tree (row 184).

Nothing is timed; what is counted are rounds, in which all devices may send at the same time, and the numbers they send.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mhlib.functional.partial import attend_partial, merge_partials

__all__ = ["ring_decode", "three_step_decode", "tree_decode"]

Shards = Sequence[tuple[Tensor, Tensor]]


class Decoded(NamedTuple):
    """The output on every device, the rounds that it took, and how many numbers each device sent."""

    outs: list[Tensor]
    rounds: int
    sent: list[int]


def ring_decode(q: Tensor, shards: Shards) -> Decoded:
    """Each round every device passes the keys and values that it holds to its neighbour and attends to those that arrive."""
    p, here = len(shards), list(shards)
    parts, sent = [attend_partial(q, *shard) for shard in here], [0] * p
    for _ in range(p - 1):
        sent = [s + _count(*shard) for s, shard in zip(sent, here)]
        here = [here[r - 1] for r in range(p)]
        parts = [merge_partials(part, attend_partial(q, *shard)) for part, shard in zip(parts, here)]
    return Decoded([part.out for part in parts], p - 1, sent)


def tree_decode(q: Tensor, shards: Shards) -> Decoded:
    """Every device attends to its own keys; then the partial results are merged pairwise."""
    parts, rounds, sent = all_reduce([attend_partial(q, *shard) for shard in shards], merge_partials)
    return Decoded([part.out for part in parts], rounds, sent)


def three_step_decode(q: Tensor, shards: Shards) -> Decoded:
    """The same by standard operations, as in the paper: a maximum of log-sum-exps, then a sum of outputs and one of weights."""
    parts = [attend_partial(q, *shard) for shard in shards]
    tops, *first = all_reduce([(part.lse,) for part in parts], lambda a, b: (torch.maximum(a[0], b[0]),))
    weights = [(part.lse - top).exp()[..., None] for part, (top,) in zip(parts, tops)]
    totals, *second = all_reduce([(w * part.out,) for w, part in zip(weights, parts)], _add)
    sums, *third = all_reduce([(w,) for w in weights], _add)
    rounds, sent = zip(first, second, third)
    return Decoded([total / s for (total,), (s,) in zip(totals, sums)], sum(rounds), [sum(each) for each in zip(*sent)])


def all_reduce(
    values: Sequence[tuple[Tensor, ...]], combine: Callable[[tuple, tuple], tuple]
) -> tuple[list[tuple], int, list[int]]:
    """Combine tuples of tensors, one a device, up a binary tree to device 0, and send the result back down to all."""
    values, p = list(values), len(values)
    rounds, sent, step = 0, [0] * p, 1
    while step < p:
        for r in range(0, p - step, 2 * step):
            sent[r + step] += _count(*values[r + step])
            values[r] = combine(values[r], values[r + step])
        step, rounds = 2 * step, rounds + 1
    while step > 1:
        step, rounds = step // 2, rounds + 1
        for r in range(0, p - step, 2 * step):
            sent[r] += _count(*values[r])
            values[r + step] = values[r]
    return values, rounds, sent


def _add(a: tuple[Tensor], b: tuple[Tensor]) -> tuple[Tensor]:
    return (a[0] + b[0],)


def _count(*tensors: Tensor) -> int:
    return sum(tensor.numel() for tensor in tensors)
