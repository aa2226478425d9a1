"""What the numeric tests of the kernels share: the device, the dtypes it can show, tolerances, pairs of options."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from mhlib.kernels.targets import interpreting

ON_GPU = torch.cuda.is_available() and not interpreting()
DEVICE = "cuda" if ON_GPU else "cpu"
#: The interpreter's bfloat16 is silently wrong, a GPU's float64 is left to PyTorch.
DTYPES = [torch.float16, torch.float32, torch.bfloat16 if ON_GPU else torch.float64]
#: Relative to the largest number of the expected result.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def close(got: torch.Tensor, want: torch.Tensor, what: str, dtype: torch.dtype, factor: float = 1.0) -> None:
    """Equal up to the rounding of ``dtype``, infinities in the same places; ``want`` is float64."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    scale = torch.where(want.isfinite(), want, 0.0).abs().max().clamp_min(1e-3).item() if want.numel() else 1.0
    atol = factor * TOLERANCE[dtype] * scale
    torch.testing.assert_close(got.double().cpu(), want.cpu(), atol=atol, rtol=0, msg=lambda text: f"{what}: {text}")


def pairwise(options: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Few combinations that hold every pair of values of every two options (greedy covering array)."""
    names, rng = list(options), random.Random(seed)
    left = set(_pairs(names, options))
    rows = []
    while left:
        # Each row starts from a pair that is still missing; the best of some random completions is kept.
        (a, i), (b, j) = min(left)
        tries = [{n: rng.randrange(len(options[n])) for n in names} | {a: i, b: j} for _ in range(50)]
        best = max(tries, key=lambda row: len(left & set(_held(row))))
        left -= set(_held(best))
        rows.append({name: options[name][index] for name, index in best.items()})
    return rows


def _pairs(names: list[str], options: Mapping[str, Sequence[Any]]) -> Iterator[tuple]:
    for a, b in itertools.combinations(sorted(names), 2):
        for i, j in itertools.product(range(len(options[a])), range(len(options[b]))):
            yield (a, i), (b, j)


def _held(row: Mapping[str, int]) -> Iterator[tuple]:
    return itertools.combinations(sorted(row.items()), 2)
