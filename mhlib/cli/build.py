"""Building a head from command-line options, and counting it."""

import inspect
import types
import typing

from torch import nn

from mhlib import cost
from mhlib.cli import Failure, find
from mhlib.cli.text import si
from mhlib.registry import Mechanism


def constructor(cls: type) -> dict[str, inspect.Parameter]:
    """The arguments of a class, with those that its bases take through ``**options``; required ones come first."""
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base) or base is nn.Module:
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                found.setdefault(parameter.name, parameter)
        if not any(p.kind == p.VAR_KEYWORD for p in parameters):
            break
    return dict(sorted(found.items(), key=lambda item: item[1].default is not item[1].empty))


def required(cls: type) -> list[str]:
    """What must be given besides dim and num_heads."""
    return [n for n, p in constructor(cls).items() if p.default is p.empty and n not in ("dim", "num_heads")]


def builder(m: Mechanism, dim: int, heads: int, options: dict):
    """A function that builds the head; a Failure says which options it lacks or does not know."""
    if m.kind != "head":
        raise Failure(f"cost counts heads, and {m.name} is a {m.kind.replace('_', ' ')}; `python -m mhlib list --kind head` shows them")
    known = constructor(m.obj)
    for name in options:
        if name not in known:
            taken = ", ".join(n for n in known if n not in ("dim", "num_heads"))
            raise Failure(f"{m.name} has no option {name!r}{find.nearest(name, known) or '.'} It takes {taken}")
        _check_type(m, name, options[name], known[name].annotation)
    missing = [name for name in required(m.obj) if name not in options]
    if missing:
        raise Failure(f"{m.name} needs {', '.join(missing)}: add {' '.join(map(_flag, missing))}")
    return lambda: m.obj(dim, heads, **options)


def _check_type(m: Mechanism, name: str, value, annotation) -> None:
    """A Failure unless the value is of a type that the option is declared with."""
    declared = typing.get_args(annotation) or (annotation,)
    plain = [t for t in declared if t in (bool, int, float, str, types.NoneType)]
    if type(value) in plain or type(value) is int and float in plain or annotation is inspect.Parameter.empty:
        return
    wanted = " or ".join("none" if t is types.NoneType else t.__name__ for t in plain) or "no value that can be typed here"
    raise Failure(f"option {name} of {m.name} takes {wanted}, got {value!r}; for others build it in Python and use mhlib.cost.of")


def _flag(name: str) -> str:
    return "--kv-heads ..." if name == "num_kv_heads" else f"--option {name}=..."


def figures(layer, context: int, batch: int, dtype, device: str | None = None) -> list[tuple[str, str, str]]:
    """Rows of (what, prefill, decoding)."""
    try:
        runs = [cost.prefill(layer, context, batch=batch, dtype=dtype), cost.decode(layer, context, batch=batch, dtype=dtype)]
    except (ValueError, TypeError) as error:
        raise Failure(str(error)) from error
    lines = [
        ("parameters", lambda c: si(c.parameters)),
        ("matrix-product FLOPs", lambda c: si(c.matmul_flops)),
        ("other operations", lambda c: si(c.other_ops)),
        ("bytes moved", lambda c: si(c.bytes, "B")),
        ("FLOPs per byte", lambda c: f"{c.intensity:.0f}" if c.intensity >= 100 else f"{c.intensity:.3g}"),
        ("cache per token", lambda c: si(c.cache_bytes_per_token, "B")),
        ("cache in all", lambda c: si(batch * context * c.cache_bytes_per_token, "B")),
    ]
    if device and dtype.itemsize > 1:  # the roofline knows the peak of 16-bit products, which 8-bit ones may exceed
        machine = cost.roofline(find.choice("device", device, cost.DEVICES))
        lines.append((f"limit on {machine.name}", machine.bound))
        lines.append(("no faster than", lambda c: si(machine.seconds(c), "s")))
    return [(what, *(say(run) for run in runs)) for what, say in lines]
