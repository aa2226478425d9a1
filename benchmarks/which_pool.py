"""All pools on three tasks, trained for long: ``python -m benchmarks.which_pool`` writes what the chapter *Which pool when* shows.

The chapter runs the same race with fewer steps. This takes some minutes on one core. It writes after each pool, and a second
run on the same day goes on where the first one stopped.
"""

import argparse
import datetime
import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.cpu import machine
from benchmarks.record import RESULTS
from mhlib.experiments import RACING_POOLS, SetTask, race, set_tasks

STEPS = {"voices": 150, "digits": 300, "bags": 300}


def main(arguments: Sequence[str] | None = None, folder: Path = RESULTS) -> Path:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.which_pool", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help=f"steps on every task (default: {STEPS})")
    parser.add_argument("--pools", nargs="*", default=list(RACING_POOLS), help="which pools; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", message="There is a performance drop")
    today = datetime.date.today().isoformat()
    file = folder / f"which-pool-{today}.json"
    run = {
        "device": f"{machine()}, threads: {torch.get_num_threads()}", "date": today,
        "versions": {"torch": torch.__version__}, "benchmarks": {"which-pool-when": []},
    }  # fmt: skip
    if file.is_file():
        run["benchmarks"] = json.loads(file.read_text())["benchmarks"]
    rows, tasks = run["benchmarks"]["which-pool-when"], set_tasks()
    for name in options.pools:
        if name not in {row["pool"] for row in rows}:
            rows.append(measured(name, tasks, options.steps, options.seeds))
            print(rows[-1], flush=True)
            file.write_text(json.dumps(run, indent=1) + "\n")
    return file


def measured(name: str, tasks: dict[str, SetTask], steps: int | None, seeds: int) -> dict[str, str | float | None]:
    """Mean and deviation over the seeds of one pool on each task; None where it cannot solve it."""
    racing = RACING_POOLS[name]
    row: dict[str, str | float | None] = {"pool": name, "family": racing.family}
    for where, task in tasks.items():
        found = race(task, racing, steps or STEPS[where], seeds=seeds) if racing.takes(task) else None
        row[f"{where}, %"] = None if found is None else round(found.mean().item(), 2)
        row[f"{where}, deviation"] = None if found is None else round(found.std().item(), 2)
    return row


if __name__ == "__main__":
    print(main())
