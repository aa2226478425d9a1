"""Search better launches on this GPU: ``python -m benchmarks.tune power_pool [...]``.

For every shape of the kernel's grid, each of its tables in turn: one number of the launch at a time is doubled or halved, as long
as that is faster. What it prints are lines for the kernel's table, with what they gained; take those that hold on several shapes.
"""

import argparse
import importlib
from collections.abc import Iterator, Sequence

import torch

from benchmarks.gpu import name
from benchmarks.kernels import Grid, Measured, grids
from mhlib import kernels
from mhlib.experiments import in_turn
from mhlib.kernels.launch import Launch, Table

LEAST = 16  # tl.dot takes no smaller side
MOST_WARPS, MOST_STAGES = 16, 5
GAIN = 1.02  # less is noise


def main(arguments: Sequence[str] | None = None) -> list[tuple[str, str, Launch, float]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="+", metavar="kernel")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--tiny", action="store_true", help="sizes and a single step that show only that it runs")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.tiny:
        parser.error("there is no CUDA device here to tune for")
    available = grids(Grid(device, torch.bfloat16 if device == "cuda" else torch.float32, options.tiny))
    if unknown := set(options.kernels) - set(available):
        parser.error(f"no kernel is called {', '.join(sorted(unknown))}; there are {', '.join(available)}")
    found = []
    for kernel in options.kernels:
        tables = [v for v in vars(importlib.import_module(f"{kernels.__name__}.{kernel}")).values() if isinstance(v, Table)]
        print(f"{kernel} on {name(device)}")
        for measured in available[kernel]:
            for table in tables:
                for better in search(measured, table, options.repeats, 1 if options.tiny else None):
                    found.append((table.name, measured.contest.size, *better))
                    print(f"  {table.name}, {measured.contest.size}: {better[0]}, {better[1]:.2f} times as fast", flush=True)
    return found


def search(measured: Measured, table: Table, repeats: int, steps: int | None = None) -> Iterator[tuple[Launch, float]]:
    """The best launch found and its gain; nothing if the table's own is the best or is not used by this contest."""
    used: list[Launch] = []
    with _watched(table, used):
        _run(measured)
    if not used:
        return
    best, gain, tried = used[0], 1.0, {_key(used[0])}
    while steps is None or steps > 0:
        steps = None if steps is None else steps - 1
        raced = [(race(measured, table, best, other, repeats), other) for other in neighbours(best) if _key(other) not in tried]
        tried.update(_key(other) for _, other in raced)
        ratio, winner = max(raced, key=lambda pair: pair[0], default=(0.0, best))
        if ratio < GAIN:
            break
        best, gain = winner, gain * ratio
    if gain > 1:
        yield best, gain


def neighbours(launch: Launch) -> Iterator[Launch]:
    """One number changed by one step."""
    for block, size in launch.blocks.items():
        for other in (size // 2, size * 2):
            if other >= min(LEAST, size):
                yield launch._replace(blocks={**launch.blocks, block: other})
    for warps in (launch.warps // 2, launch.warps * 2):
        if 1 <= warps <= MOST_WARPS:
            yield launch._replace(warps=warps)
    for stages in (launch.stages - 1, launch.stages + 1):
        if 1 <= stages <= MOST_STAGES:
            yield launch._replace(stages=stages)


def race(measured: Measured, table: Table, now: Launch, other: Launch, repeats: int) -> float:
    """How many times faster the other launch is; 0 if the device does not take it."""

    def forced(launch: Launch):
        def run():
            with table.force(launch):
                _run(measured)

        return run

    try:
        times = in_turn(forced(now), forced(other), repeats=repeats, least=0.005)
    except Exception as error:  # noqa: BLE001 - too much shared memory, a failed compilation: each version of Triton has its own
        print(f"    {other}: {type(error).__name__}")
        return 0.0
    return (times[:, 0] / times[:, 1]).median().item()


def _run(measured: Measured) -> None:
    with torch.no_grad():
        measured.contest.ours()


def _key(launch: Launch) -> tuple:
    return tuple(launch.blocks.items()), launch.warps, launch.stages


class _watched:
    """Notes what a table hands out."""

    def __init__(self, table: Table, used: list[Launch]):
        self.table, self.used = table, used

    def __enter__(self):
        pick = self.table.pick

        def noting(*request):
            chosen = pick(*request)
            self.used.append(chosen)
            return chosen

        self.table.pick = noting

    def __exit__(self, *_):
        del self.table.pick


if __name__ == "__main__":
    main()
