"""Counting: one StageCost per stage, summed to a Cost.

Conventions. A multiply-add is 2 FLOPs. Matrix products are counted apart from all other arithmetic (one operation per
addition, comparison or exponential), because only the former reach a machine's peak. Causal attention is counted in full:
half of the table is masked, not skipped. Bytes are the least that must move: every weight, input, output and cached number
crosses the memory bus once, and logits never leave the chip, as in a fused kernel.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["Cost", "StageCost", "cache_bytes_per_token", "decode", "of", "prefill"]


@dataclass(frozen=True)
class StageCost:
    """The cost of one stage in one forward pass, in numbers (not bytes)."""

    parameters: int = 0
    matmul_flops: int = 0
    other_ops: int = 0
    moved: int = 0  # numbers read and written, weights apart

    def __add__(self, other: "StageCost") -> "StageCost":
        return StageCost(
            self.parameters + other.parameters,
            self.matmul_flops + other.matmul_flops,
            self.other_ops + other.other_ops,
            self.moved + other.moved,
        )


@dataclass(frozen=True)
class Cost:
    """The cost of one forward pass, by stage and in total."""

    stages: Mapping[str, StageCost]
    bytes_per_number: int = 2
    cache_numbers_per_token: int = 0

    @property
    def total(self) -> StageCost:
        return sum(self.stages.values(), StageCost())

    @property
    def parameters(self) -> int:
        return self.total.parameters

    @property
    def matmul_flops(self) -> int:
        return self.total.matmul_flops

    @property
    def other_ops(self) -> int:
        return self.total.other_ops

    @property
    def bytes(self) -> int:
        """Bytes that cross the memory bus: weights once, activations and cache once."""
        return (self.total.parameters + self.total.moved) * self.bytes_per_number

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: matrix-product FLOPs per byte moved."""
        return self.matmul_flops / self.bytes

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes that one token of one sequence adds to the cache of this layer."""
        return self.cache_numbers_per_token * self.bytes_per_number

    @property
    def core(self) -> "Cost":
        """Score, normalize and aggregate alone: the part that grows with the context."""
        core = {name: cost for name, cost in self.stages.items() if name in ("expand", "score", "normalize", "aggregate")}
        return Cost(core, self.bytes_per_number, self.cache_numbers_per_token)


def of(
    layer: nn.Module | Callable[[], nn.Module],
    *,
    queries: int,
    keys: int | None = None,
    batch: int = 1,
    cached: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> Cost:
    """The cost of one forward pass of a layer.

    Args:
        layer: an attention layer of ``mhlib.heads``, or a function that builds it, which is then called on the meta
            device: no memory is allocated, so the largest models can be counted.
        queries: tokens that attend.
        keys: tokens that are attended to (as many as queries by default), those in the cache included.
        cached: all keys but the last ``queries`` come out of a cache and are not projected again.
        dtype: of weights, activations and cache; only its size counts.
    """
    if not isinstance(layer, nn.Module):
        with torch.device("meta"):
            layer = layer()
    if not hasattr(layer, "stage_costs"):
        raise ValueError(f"{type(layer).__name__} has no stage_costs(); cost.of counts the layers of mhlib.heads")
    keys = queries if keys is None else keys
    if min(queries, keys, batch) < 1:
        raise ValueError(f"queries, keys and batch must be at least 1, got queries={queries}, keys={keys}, batch={batch}")
    if cached and keys < queries:
        raise ValueError(f"with a cache there are at least as many keys as queries, got queries={queries}, keys={keys}")
    stages = layer.stage_costs(batch, queries, keys, queries if cached else keys)
    return Cost(stages, dtype.itemsize, sum(heads * width for heads, width in layer.cache_shapes()))


def prefill(layer: nn.Module | Callable[[], nn.Module], tokens: int, *, batch: int = 1, dtype=torch.bfloat16) -> Cost:
    """The cost of reading a prompt of ``tokens`` tokens in one pass."""
    return of(layer, queries=tokens, batch=batch, dtype=dtype)


def decode(layer: nn.Module | Callable[[], nn.Module], context: int, *, batch: int = 1, dtype=torch.bfloat16) -> Cost:
    """The cost of one decoding step: one new token per sequence against ``context`` tokens, itself included."""
    return of(layer, queries=1, keys=context, batch=batch, cached=True, dtype=dtype)


def cache_bytes_per_token(layer: nn.Module | Callable[[], nn.Module], *, dtype=torch.bfloat16) -> int:
    """Bytes that one token adds to the cache of one layer."""
    return of(layer, queries=1, dtype=dtype).cache_bytes_per_token
