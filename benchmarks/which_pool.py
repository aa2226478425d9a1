"""All pools on three tasks, trained for long: ``python -m benchmarks.which_pool`` writes what the chapter *Which pool when* shows.

The chapter runs the same race with fewer steps. This takes some minutes on one core.
"""

import argparse
import datetime
import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.cpu import RESULTS, machine
from mhlib.experiments import RACING_POOLS, race, set_tasks

STEPS = {"voices": 150, "digits": 300, "bags": 300}


def main(arguments: Sequence[str] | None = None, folder: Path = RESULTS) -> Path:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.which_pool", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help=f"steps on every task (default: {STEPS})")
    parser.add_argument("--pools", nargs="*", default=list(RACING_POOLS), help="which pools; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", message="There is a performance drop")
    tasks, rows = set_tasks(), []
    for name in options.pools:
        row = {"pool": name, "family": RACING_POOLS[name].family}
        for where, task in tasks.items():
            found = None
            if RACING_POOLS[name].takes(task):
                found = race(task, RACING_POOLS[name], options.steps or STEPS[where], seeds=options.seeds)
            row[f"{where}, %"] = None if found is None else round(found.mean().item(), 2)
            row[f"{where}, deviation"] = None if found is None else round(found.std().item(), 2)
        rows.append(row)
        print(row, flush=True)
    today = datetime.date.today().isoformat()
    run = {
        "device": f"{machine()}, {torch.get_num_threads()} threads", "date": today,
        "versions": {"torch": torch.__version__}, "benchmarks": {"which-pool-when": rows},
    }  # fmt: skip
    file = folder / f"which-pool-{today}.json"
    file.write_text(json.dumps(run, indent=1) + "\n")
    return file


if __name__ == "__main__":
    print(main())
