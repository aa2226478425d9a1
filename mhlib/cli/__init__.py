"""The command ``python -m mhlib``: list, show, cost and doctor. Each command is a file; it is imported when it is asked for."""

import argparse
import importlib
import os
import sys
import textwrap
from collections.abc import Sequence

from mhlib.registry import KINDS

STATES = ("works", "in progress", "planned")
DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "int8")


class Failure(Exception):
    """What was asked for cannot be done; the text says why and what would do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status: 0, 1 when a check failed, 2 when something wrong was asked for."""
    options = _parser().parse_args(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Greek letters shows question marks
    command = importlib.import_module(f"mhlib.cli.{options.command}_command")
    try:
        return command.run(options) or 0
    except Failure as failure:
        print(textwrap.fill(f"mhlib {options.command}: {failure}", 100, subsequent_indent="  "), file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m mhlib", description="An executable atlas of multi-head attention and pooling.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    listed = commands.add_parser("list", help="the mechanisms of the library, or all papers of the catalogue")
    listed.add_argument("--family", help="of the catalogue, such as kv-sharing")
    listed.add_argument("--kind", choices=tuple(KINDS), help="what a mechanism is")
    listed.add_argument("--state", choices=STATES, help="how far a paper works here")
    listed.add_argument("--papers", action="store_true", help="all rows of the catalogue, those without a mechanism too")

    shown = commands.add_parser("show", help="one mechanism: formula, papers, properties, cost, chapter")
    shown.add_argument("name", help="of a mechanism or its class, or the number of a paper's row")

    cost = commands.add_parser("cost", help="what a head costs: parameters, FLOPs, bytes, cache, and the roofline's bound")
    cost.add_argument("name", help="of a mechanism that is a head")
    cost.add_argument("--dim", type=int, default=4096, help="width of the tokens (%(default)s)")
    cost.add_argument("--heads", type=int, default=32, help="number of heads (%(default)s)")
    cost.add_argument("--kv-heads", type=int, help="number of key and value heads")
    cost.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="any other argument of the class, as kv_rank=512"
    )
    cost.add_argument("--context", type=int, default=4096, help="tokens of a sequence (%(default)s)")
    cost.add_argument("--batch", type=int, default=1, help="sequences (%(default)s)")
    cost.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of weights, activations and cache (%(default)s)")
    cost.add_argument("--device", help="bound it by the roofline of this device, such as H100")

    doctor = commands.add_parser("doctor", help="what is installed, which backends work here, and a numerical self-check")
    doctor.add_argument("--no-compile", action="store_true", help="leave out the backend that compiles (it may take 30 s)")
    return parser
