"""``cost``: what a head costs at any size, for reading a prompt and for one step of decoding."""

import argparse

import torch

from mhlib import cost
from mhlib.cli import Failure, build, find
from mhlib.cli.text import si, table, wrap


def run(options: argparse.Namespace) -> None:
    m = find.mechanism(options.name)
    chosen: dict[str, int | float | str | bool | None] = {}
    kv_heads = [] if options.kv_heads is None else [("num_kv_heads", options.kv_heads)]
    for name, value in (*kv_heads, *map(_option, options.option)):
        if name in chosen:
            hint = " (--kv-heads sets it too)" if kv_heads and name == "num_kv_heads" else ""
            raise Failure(f"{name} is given twice, as {chosen[name]} and as {value}{hint}")
        chosen[name] = value
    for name in ("context", "batch"):
        if getattr(options, name) < 1:
            raise Failure(f"--{name} must be at least 1, got {getattr(options, name)}")
    layer = build.builder(m, options.dim, options.heads, chosen)
    rows = build.figures(layer, options.context, options.batch, getattr(torch, options.dtype), options.device)
    settings = [f"dim {options.dim}", f"{options.heads} heads", *(f"{k} {v}" for k, v in chosen.items())]
    print(wrap(f"{m.name}: one layer of {', '.join(settings)}; batch {options.batch}, {options.dtype}", 2) + "\n")
    head = ("", f"prefill of {options.context}", f"one token at {options.context}")
    print(table([head, *rows], right=(1, 2)))
    print("\n  Lower bounds: each weight, activation and cached number moves once (see mhlib.cost).")
    if options.device:
        device = cost.roofline(find.choice("device", options.device, cost.DEVICES))
        print(wrap(_peak(device, getattr(torch, options.dtype)), 2, "  "))


def _peak(device: cost.Device, dtype: torch.dtype) -> str:
    """Which peak bounded the time, and what that means for the dtype."""
    name, peak = str(dtype).removeprefix("torch."), f"{device.name}'s peak of 16-bit products, {si(device.flops, 'FLOP/s')}"
    if dtype.itemsize < 2:
        return f"No bound on the time: it would rest on {peak}, and products of {name} may be faster."
    return f"Time is bounded by {peak}{'' if dtype.itemsize == 2 else f'; those of {name} are slower'}."


def _option(text: str) -> tuple[str, int | float | str | bool | None]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Failure(f"--option wants NAME=VALUE, such as kv_rank=512, got {text!r}")
    words = {"true": True, "false": False, "none": None}
    for kind in (int, float):
        try:
            return name.replace("-", "_"), kind(value)
        except ValueError:
            pass
    return name.replace("-", "_"), words.get(value.lower(), value)
