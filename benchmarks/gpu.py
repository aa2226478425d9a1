"""All kernels on this GPU: ``python -m benchmarks.gpu``. First whether they are right here, then how fast, beside their peers.

Times are medians of runs that take turns. Each row says what part of the measured bandwidth of a copy and of the measured rate
of a matrix product the kernel reaches, counting what it cannot do without. Writes results/<device>-<date>.json and prints a table.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.contest import compare
from benchmarks.kernels import Grid, grids
from benchmarks.rates import Rates, measure
from benchmarks.record import RESULTS, keep

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "triton", "flash-attn", "fla-core", "liger-kernel")


def main(arguments: Sequence[str] | None = None) -> dict[str, list[dict]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="a kernel; may be given several times")
    parser.add_argument("--repeats", type=int, default=9, help="rounds of turns (default: 9)")
    parser.add_argument("--no-tests", action="store_true", help="leave out the tests on the device")
    parser.add_argument("--tiny", action="store_true", help="sizes that show only that it runs, in the interpreter if need be")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.tiny:
        parser.error("there is no CUDA device here; with TRITON_INTERPRET=1 and --tiny it shows that it runs")
    if not options.no_tests and device == "cuda":
        subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/kernels/numeric"], cwd=ROOT, check=True)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rates = measure(device, dtype, numbers=10_000 if options.tiny else 500_000_000, side=64 if options.tiny else 8192)
    print(f"{name(device)}: copies {rates.copy / 1e9:,.0f} GB/s, multiplies {rates.matmul / 1e12:,.0f} TFLOP/s in {dtype}")
    available = grids(Grid(device, dtype, options.tiny))
    if unknown := set(options.only or ()) - set(available):
        parser.error(f"no kernel is called {', '.join(sorted(unknown))}; there are {', '.join(available)}")
    found: dict[str, list[dict]] = {}
    for kernel, contests in available.items():
        if not options.only or kernel in options.only:
            print(f"\n{kernel}", flush=True)
            found[kernel] = list(_rows(contests, rates, options))
    if device == "cuda" and not options.tiny and not options.only:
        print(f"\nkept in {write(found, rates)}")
    return found


def _rows(contests, rates: Rates, options: argparse.Namespace) -> Iterator[dict]:
    for measured in contests:
        row = None
        for result in compare([measured.contest], repeats=options.repeats, least=0.0 if options.tiny else 0.01):
            if row is None:
                bandwidth, rate = rates.shares(measured.counts, result.ours_ms / 1e3)
                row = {
                    "shape": result.size,
                    "ms": round(result.ours_ms, 4),
                    "% of copy bandwidth": round(bandwidth, 1),
                    "% of matrix rate": round(rate, 1),
                }
            if result.peer != "none":
                row[f"{result.peer}, times ours"] = round(result.ratio, 3)
        print("  " + ", ".join(f"{value}" if key == "shape" else f"{key} {value}" for key, value in row.items()), flush=True)
        yield row


def name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "Triton's interpreter"


def write(found: dict[str, list[dict]], rates: Rates, folder: Path = RESULTS, device: str = "cuda") -> Path:
    """Keep the results; every row of a benchmark has the same keys."""
    keys = {kernel: list(dict.fromkeys(key for row in rows for key in row)) for kernel, rows in found.items()}
    benchmarks = {
        "rates": [{"copy, GB/s": round(rates.copy / 1e9), "matrix product, TFLOP/s": round(rates.matmul / 1e12, 1)}],
        **{kernel: [{key: row.get(key, "") for key in keys[kernel]} for row in rows] for kernel, rows in found.items()},
    }
    return keep(benchmarks, name=name(device), device=name(device), packages=PACKAGES, folder=folder)


if __name__ == "__main__":
    main()
