"""How an exercise is declared: a reference, random cases, and the typical wrong answers with a hint for each.

One decorator over the reference solution is all::

    @exercise(
        "sum_of_squares",
        cases=_vectors,
        mistakes=(("You squared the sum: square each number first.", lambda x: x.sum() ** 2),),
    )
    def sum_of_squares(x):
        "The sum of the squares of a vector (n,)."
        return x.square().sum()

Wrong answers are code, so the tests can prove that each is rejected and gets its own hint.
"""

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Random:
    """What cases are made from: float64 tensors and integers of one seeded generator."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def weights(self, *shape: int) -> Tensor:
        """Positive numbers that sum to one along the last axis."""
        return self.normal(*shape).softmax(-1)

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), dtype=torch.float64, generator=self.generator))

    def mask(self, *shape: int) -> Tensor:
        """A boolean table with both values in each row and in each column (at least 2 by 2)."""
        while True:
            mask = torch.rand(*shape, generator=self.generator) < 0.6
            if all(part.any(axis).all() for part in (mask, ~mask) for axis in (-1, -2)):
                return mask


class Stream(list):
    """An argument that the reader's function receives as an iterator: it can be gone through once."""


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes:
        name: what ``check`` calls it; also the name of the reference.
        reference: a right solution.
        cases: ``cases(random)`` yields tuples of arguments, the smallest first, because it is shown.
        mistakes: pairs of a hint and the wrong solution that it fits.
        outcome: what of an output is compared, for solutions that are not unique. Shapes are always compared.
        largest: ``largest(*arguments)`` is how many numbers a tensor made on the way may have; None = no limit.
        wasteful: the hint for a right output with a larger tensor on the way.
    """

    name: str
    reference: Callable[..., Any]
    cases: Callable[[Random], Iterator[tuple]]
    mistakes: tuple[tuple[str, Callable[..., Any]], ...]
    outcome: Callable[[Any], Any]
    largest: Callable[..., int] | None
    wasteful: str

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.reference).parameters)


_DECLARED: dict[str, Exercise] = {}


def exercise(
    name: str,
    *,
    cases: Callable[[Random], Iterator[tuple]],
    mistakes: tuple[tuple[str, Callable[..., Any]], ...],
    outcome: Callable[[Any], Any] = lambda output: output,
    largest: Callable[..., int] | None = None,
    wasteful: str = "",
) -> Callable[[Callable], Callable]:
    """Decorator of the reference solution; see :class:`Exercise`. The name must stand first and be literal."""

    def enter(reference: Callable) -> Callable:
        _DECLARED[name] = Exercise(name, reference, cases, mistakes, outcome, largest, wasteful)
        return reference

    return enter


def find(name: str) -> Exercise:
    """The exercise of that name; imports only the file that declares it. A ValueError names the nearest ones."""
    import difflib

    files = declared()
    if name not in files:
        near = difflib.get_close_matches(name, files, n=3) or sorted(files)
        raise ValueError(f"no exercise is called {name!r}; did you mean {' or '.join(near)}?")
    importlib.import_module(files[name])
    return _DECLARED[name]


@functools.cache
def declared() -> dict[str, str]:
    """Which module declares which exercise, found without importing: a chapter so depends on its own exercises alone."""
    found = re.compile(r'^@exercise\(\s*"(\w+)"', re.MULTILINE)
    files = sorted(Path(__file__).parent.glob("*.py"))
    return {name: f"{__package__}.{file.stem}" for file in files for name in found.findall(file.read_text(encoding="utf-8"))}
