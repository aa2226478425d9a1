"""Where kernel tests run: `numeric` in Triton's interpreter or on a GPU, `compiled` in a process without the interpreter.

`make test` starts both; by hand: `TRITON_INTERPRET=1 pytest tests/kernels/numeric`, and `pytest tests/kernels` for the rest.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

from mhlib.kernels.aot import HEADER
from mhlib.kernels.targets import interpreting

HERE = Path(__file__).parent
if importlib.util.find_spec("triton") is None:
    collect_ignore = ["numeric", "compiled"]


def pytest_collection_modifyitems(items):
    """A test that this process cannot run says so."""
    on_gpu = torch.cuda.is_available() and not interpreting()
    for item in items:
        if item.path.is_relative_to(HERE / "numeric") and not interpreting() and not on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs TRITON_INTERPRET=1 or a GPU; make test runs it in a process of its own"))
        if item.path.is_relative_to(HERE / "compiled") and interpreting():
            item.add_marker(pytest.mark.skip(reason="the interpreter cannot compile; run it without TRITON_INTERPRET"))


def pytest_terminal_summary(terminalreporter):
    """What the compiled kernels take of each device, as one table."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    rows = [row for report in reports if report.when == "call" for key, row in report.user_properties if key == "resources"]
    if rows:
        terminalreporter.write_sep("-", "kernels compiled ahead of time")
        for row in [HEADER, *sorted(rows)]:
            terminalreporter.write_line(row)
