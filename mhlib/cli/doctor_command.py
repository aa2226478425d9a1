"""``doctor``: what is installed, what works here, and whether the numbers come out right."""

import argparse
import os
import platform
import shutil
from importlib import metadata

import torch

import mhlib
from mhlib.cli import checks, extras
from mhlib.cli.text import table, wrap

CORE = ("torch", "numpy", "einops", "jaxtyping", "triton")


def run(options: argparse.Namespace) -> int:
    print(f"mhlib {mhlib.__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}, {platform.machine()}")
    print(", ".join(f"{name} {_version(name) or 'missing'}" for name in CORE))
    print(f"{os.cpu_count()} processors, PyTorch uses {torch.get_num_threads()} threads")
    _devices()
    print("\nExtras")
    print(table([(name, *found) for name, found in extras.report().items()]))
    print("\nBackends of mhlib.attention, each tried on a small problem")
    for name, device, works, text in checks.backends(compiling=not options.no_compile):
        print(wrap(f"{text}", 24, f"  {name:<10} {device:<5} {'works' if works else '-':<6}"), flush=True)
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    print(f"  C++ compiler, for the flex backend on CPU: {compiler or 'none found (apt install g++, or set CXX)'}")
    print("\nSelf-check: every mechanism against what it must become", flush=True)
    count, wrong = checks.reductions()
    for name, text, why in wrong:
        print(wrap(f"{name}: {text}: {why}", 4, "  ✗ "))
    print(f"  {count - len(wrong)} of {count} reductions hold" + ("" if not wrong else "; something is broken on this machine"))
    return 1 if wrong else 0


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> None:
    if not torch.cuda.is_available():
        print("no CUDA device: everything runs on the CPU")
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        print(f"cuda:{i}: {p.name}, {p.total_memory / 1e9:.0f} GB, compute capability {p.major}.{p.minor}")
