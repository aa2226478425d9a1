"""Every configuration of every launch table compiles for its device and fits it."""

import functools
from pathlib import Path

import pytest
import triton

from mhlib.kernels.aot import compile_case, kernel_modules
from mhlib.kernels.targets import TARGETS

ROOT = Path(__file__).parents[3]
CASES = [pytest.param(case, id=f"{module.__name__.rpartition('.')[2]}-{case}") for module in kernel_modules() for case in module.cases()]


@functools.cache
def locked() -> bool:
    """Whether this is the Triton of the lock file: others spill elsewhere, so only here spills are an error."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return f"triton=={triton.__version__.partition('+')[0]}" in lines


@pytest.mark.parametrize("case", CASES)
def test_compiles_and_fits(case, record_property):
    taken = compile_case(case)
    record_property("resources", taken.row(case))
    limit = TARGETS[case.target].shared
    assert taken.shared <= limit, f"needs {taken.shared} bytes of shared memory, {case.target} allows {limit}"
    if case.spill_free and locked():
        assert taken.spills == 0, f"spills {taken.spills} (bytes of stack, or vector registers on AMD)"


def test_names_are_unique():
    names = [param.id for param in CASES]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
