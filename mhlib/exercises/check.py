"""Running a reader's solution on fresh random cases, up to the first that fails."""

import contextlib
import dataclasses
import inspect
import linecache
import random
import traceback
from collections.abc import Callable
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from mhlib.exercises.allocation import Largest
from mhlib.exercises.compare import difference
from mhlib.exercises.declare import Exercise, Random, Stream, declared, find
from mhlib.exercises.report import Result
from mhlib.exercises.show import show

__all__ = ["check", "names"]


def names() -> list[str]:
    """The names of all exercises."""
    return sorted(declared())


def check(name: str, function: Callable[..., Any] | EllipsisType | None, *, seed: int | None = None) -> Result:
    """Run ``function`` on random cases (float64) and compare it with a reference. Make it the last value of a cell.

    Args:
        name: of the exercise, as its chapter gives it.
        function: your solution, the function itself. While it returns None or ``...`` the result is neutral.
        seed: of the cases; without it they are new each time.

    Returns:
        A :class:`Result`: true when all cases agree. Otherwise it shows the first case that does not, with the input, the
        expected and the given output, and a hint where the mistake is a known one; ``result.inputs`` holds the arguments.

    Raises:
        ValueError: there is no exercise of that name.
        TypeError: ``function`` is not a function.
    """
    exercise = find(name)
    if function is None or function is ...:
        return _open(exercise)
    if not callable(function):
        raise TypeError(f"check wants the function itself, check({name!r}, my_function), not what it returns; got {show(function)}")
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    passed, wasteful = [], None
    for arguments in exercise.cases(Random(seed)):
        result = _case(exercise, function, arguments, passed)
        if result is not None and not result.wasteful:
            return result
        wasteful = result if wasteful is None else wasteful  # told only when all outputs are right
        passed.append(arguments)
    return wasteful if wasteful is not None else Result(name, "passed", f"all {len(passed)} random cases agree with the reference.")


def _open(exercise: Exercise) -> Result:
    return Result(exercise.name, "open", f"your function of ({', '.join(exercise.arguments)}) is still to be written.")


def _case(exercise: Exercise, function: Callable, arguments: tuple, passed: list[tuple]) -> Result | None:
    """The result if this case decides it, None if all is well; ``passed`` are the cases before it."""
    expected = exercise.reference(*_fresh(arguments))
    mine, seen = _fresh(arguments), Largest()
    inputs = dict(zip(exercise.arguments, arguments))
    shown = ("Input", "\n".join(f"{key} = {show(value)}" for key, value in inputs.items()))

    def failed(message: str, *rows: tuple[str, str], hint: str = "") -> Result:
        return Result(exercise.name, "failed", message, (shown, *rows), hint, inputs)

    if complaint := _signature(function, mine, exercise.arguments):
        return failed(complaint)
    try:
        with seen if exercise.largest else contextlib.nullcontext():
            given = function(*mine)
    except NotImplementedError:
        return _open(exercise)
    except Exception as error:  # noqa: BLE001 - whatever the reader's code raises is what the report is about
        return failed("your code raised an error.", ("Error", _error(error, function)))
    if _nothing(given):
        return failed("your function returned nothing here; is a return missing in one branch?") if passed else _open(exercise)
    found = difference(expected, given, exercise.outcome)
    if found:
        hint = _known_mistake(exercise, arguments, given, passed) or found.hint
        return failed(f"{found.text}.", ("Expected", show(expected)), ("Yours", show(_named(given, expected))), hint=hint)
    if changed := _changed(arguments, mine, exercise.arguments):
        return failed(f"the output is right, but your function changed its input {changed}.", hint="Work on a copy: x.clone().")
    limit = exercise.largest and exercise.largest(*arguments)
    if limit and seen.numbers > limit:
        text = f"the output is right, but on the way a tensor of {seen.numbers} numbers was made."
        rows = ("Its shape", str(seen.shape)), ("Allowed", f"{limit} numbers")
        return dataclasses.replace(failed(text, *rows, hint=exercise.wasteful), wasteful=True)
    return None


def _fresh(arguments: tuple) -> list:
    """A copy for each function that is run, so that none can disturb the others."""
    return [iter(_copy(argument)) if isinstance(argument, Stream) else _copy(argument) for argument in arguments]


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return type(value)(map(_copy, value)) if isinstance(value, (list, tuple)) else value


def _nothing(given: Any) -> bool:
    parts = given if isinstance(given, (tuple, list)) and given else [given]
    return all(part is None or part is ... for part in parts)


def _signature(function: Callable, arguments: list, expected: tuple[str, ...]) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return ""
    try:
        signature.bind(*arguments)
    except TypeError:
        return f"your function takes {signature}, the exercise calls it with ({', '.join(expected)})."
    return ""


def _error(error: Exception, function: Callable) -> str:
    """The last line of the reader's own code that was running, and the error."""
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)
    own = [frame for frame in frames if frame.filename == file]
    text = f"{type(error).__name__}: {str(error).strip()}"
    if not own:
        return text
    line = linecache.getline(own[-1].filename, own[-1].lineno).strip() or own[-1].line
    return f"line {own[-1].lineno}: {line}\n{text}" if line else text


def _known_mistake(exercise: Exercise, arguments: tuple, given: Any, passed: list[tuple]) -> str:
    """The hint of the typical mistake that gives just this output, and is right where the reader was right."""
    for hint, mistake in exercise.mistakes:
        if _agree(exercise, mistake, given, arguments) and not _agree(exercise, mistake, exercise.reference, arguments):
            if all(_agree(exercise, mistake, exercise.reference, case) for case in passed):
                return hint
    return ""


def _agree(exercise: Exercise, function: Callable, other: Any, arguments: tuple) -> bool:
    """Whether a function gives the output ``other``, or what the function ``other`` gives."""
    output = other(*_fresh(arguments)) if callable(other) else other
    return difference(function(*_fresh(arguments)), output, exercise.outcome) is None


def _named(given: Any, expected: Any) -> Any:
    """The parts of an output under the names that they should have."""
    fields = getattr(expected, "_fields", ())
    return type(expected)(*given) if isinstance(given, (tuple, list)) and len(given) == len(fields) else given


def _changed(arguments: tuple, mine: list, argument_names: tuple[str, ...]) -> str:
    pairs = zip(argument_names, arguments, mine)
    return next((name for name, a, b in pairs if isinstance(a, Tensor) and not torch.equal(a, b)), "")
