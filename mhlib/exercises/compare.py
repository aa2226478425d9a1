"""Comparing an output with the expected one: what differs, where, and what it looks like."""

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhlib.exercises.show import names

TOLERANCE = 1e-8  # for float64: far above rounding, far below any mistake


@dataclass(frozen=True)
class Difference:
    """In one line what differs, and a guess at the reason where one suggests itself."""

    text: str
    hint: str = ""


def difference(expected: Any, given: Any, outcome: Callable[[Any], Any] = lambda output: output) -> Difference | None:
    """How ``given`` differs from ``expected``; None when it does not.

    Kind, shape and dtype are compared first, then the values of the ``outcome`` of both.
    """
    return _form(expected, given) or _values(outcome(expected), outcome(given))


def _form(expected: Any, given: Any, of: str = "") -> Difference | None:
    if isinstance(expected, (tuple, list)):
        if not isinstance(given, (tuple, list)):
            return Difference(f"{of}expected {len(expected)} values ({', '.join(names(expected))}), got {_kind(given)}")
        if len(expected) != len(given):
            return Difference(f"{of}expected {len(expected)} values ({', '.join(names(expected))}), got {len(given)}")
        parts = (_form(e, g, f"{of}{name}: ") for name, e, g in zip(names(expected), expected, given))
        return next((part for part in parts if part), None)
    if not isinstance(expected, Tensor):
        return None if _is_number(given) else Difference(f"{of}expected a number, got {_kind(given)}")
    if _is_number(given) and expected.ndim == 0:
        return None
    if not isinstance(given, Tensor):
        return Difference(f"{of}expected a torch.Tensor, got {_kind(given)}")
    if expected.shape != given.shape:
        return Difference(f"{of}expected shape {tuple(expected.shape)}, got {tuple(given.shape)}", _shape_hint(expected, given))
    if expected.dtype != given.dtype:
        hint = "Keep the dtype of the input: make new tensors with dtype=x.dtype or x.new_zeros(...)."
        return Difference(f"{of}expected {expected.dtype}, got {given.dtype}", hint)
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.ndim == 0
    return isinstance(value, numbers.Number) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None (is a return missing?)" if value is None else f"a {type(value).__name__}"


def _shape_hint(expected: Tensor, given: Tensor) -> str:
    if expected.ndim >= 2 and expected.mT.shape == given.shape:
        return "It looks transposed: the last two axes are swapped."
    if sorted(expected.shape) == sorted(given.shape):
        return "The sizes are right and their order is not: an axis has to move."
    if expected.numel() == given.numel():
        return "As many numbers as there should be, but in another shape."
    return ""


def _values(expected: Any, given: Any, of: str = "") -> Difference | None:
    if isinstance(expected, (tuple, list)):
        parts = (_values(e, g, f"{of}{name}") for name, e, g in zip(names(expected), expected, given))
        return next((part for part in parts if part), None)
    want, got = (torch.as_tensor(x.detach() if isinstance(x, Tensor) else x).double() for x in (expected, given))
    wrong = ~torch.isclose(got, want, rtol=TOLERANCE, atol=TOLERANCE * _size(want), equal_nan=True)
    if not wrong.any():
        return None
    if want.ndim == 0:
        return Difference(f"{of + ': ' if of else ''}expected {_digits(want)}, got {_digits(got)}", _value_hint(want, got))
    at = tuple(wrong.nonzero()[0].tolist())
    place = f"{of}[{', '.join(map(str, at))}]"
    count = f"{int(wrong.sum())} of {wrong.numel()} numbers differ" if wrong.numel() > 1 else "it differs"
    return Difference(f"{count}, first at {place}: expected {_digits(want[at])}, got {_digits(got[at])}", _value_hint(want, got))


def _size(want: Tensor) -> float:
    """Sums that cancel are as exact as what went into them; so the tolerance is relative to the largest number."""
    finite = want[want.isfinite()]
    return min(1.0, finite.abs().max().item()) if finite.numel() else 1.0


def _digits(number: Tensor) -> str:
    return f"{number.item():.6g}"


def _value_hint(want: Tensor, got: Tensor) -> str:
    if got.isnan().any():
        return "There are NaNs: look for inf - inf, 0 / 0, or the softmax of a row without any allowed key."
    if (got.isinf() & ~want.isinf()).any():
        return "Something overflowed: subtract the maximum before you take exp."
    if torch.allclose(got, want, rtol=1e-4, atol=1e-5):
        return "Nearly right, as if float32 or a small epsilon had come in; the inputs are float64."
    if torch.allclose(got, -want, rtol=TOLERANCE):
        return "Only the sign is wrong."
    if torch.allclose(got.flatten().sort().values, want.flatten().sort().values, rtol=TOLERANCE) and want.numel() > 1:
        return "The right numbers in the wrong places: look at the order of axes in reshape, view and transpose."
    big = want.abs() > 1e-12
    if big.any() and (got[~big].abs() < 1e-9).all():
        ratio = got[big] / want[big]
        if torch.allclose(ratio, ratio[0].expand_as(ratio), rtol=1e-7):
            return f"Everything is {ratio[0].item():.4g} times what it should be: a factor is missing or too many."
    return ""
