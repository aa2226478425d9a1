"""Every pool and the attention layers beside their peers on this CPU: ``python -m benchmarks.cpu [--only pools] [--write]``.

Times are medians of runs that take turns; a ratio above 1 says that ours is the faster one. Before anything is timed the
outputs, and gradients where a backward pass is part of the run, are compared.
"""

import argparse
import itertools
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import attention, pools
from benchmarks.contest import Contest, Result, compare, table
from benchmarks.record import RESULTS, keep


def groups(tiny: bool) -> dict[str, Iterable[Contest]]:
    """What is compared, by the name that --only takes. Tiny sizes show that it runs; they say nothing about speed."""
    sizes = {"batch": 2, "tokens": 8, "dim": 16} if tiny else {}
    heads = {"lengths": (16,), "dim": 32, "heads": 4, "flex": False} if tiny else {}
    both = itertools.chain.from_iterable(pools.contests(**sizes, backward=backward) for backward in (False, True))
    return {"pools": both, "attention": attention.contests(**heads)}


def main(arguments: Sequence[str] | None = None) -> dict[str, list[Result]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("pools", "attention"), help="one of the groups")
    parser.add_argument("--repeats", type=int, default=9, help="rounds of turns (default: 9)")
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice by default")
    parser.add_argument("--tiny", action="store_true", help="sizes that show only that it runs")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULTS.name}/")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    print(f"{machine()}, threads: {torch.get_num_threads()}, torch {torch.__version__}")
    found: dict[str, list[Result]] = {}
    for name, contests in groups(options.tiny).items():
        if options.only in (None, name):
            print(f"\n{name}")
            found[name] = []
            results = compare(contests, repeats=options.repeats, least=0.0 if options.tiny else 0.02, memory=not options.tiny)
            for line in table(_kept(results, found[name])):
                print(line, flush=True)
    if options.write:
        print(f"\nkept in {write(found)}")
    return found


def _kept(results: Iterable[Result], found: list[Result]) -> Iterable[Result]:
    for result in results:
        found.append(result)
        yield result


def machine() -> str:
    """The CPU's own name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def write(found: dict[str, list[Result]], folder: Path = RESULTS) -> Path:
    """Keep the results."""
    rows = {
        f"cpu-{name}": [{k: v for k, v in asdict(r).items() if v == v} for r in results] for name, results in found.items()
    }
    device = f"{machine()}, threads: {torch.get_num_threads()}"
    return keep(rows, name="cpu", device=device, packages=("torch", "torch-geometric", "transformers"), folder=folder)


if __name__ == "__main__":
    main()
