"""For all tests: shapes in signatures are checked at run time, and results are kept per mechanism for the catalogue."""

import json
from collections import defaultdict
from pathlib import Path

import jaxtyping
import pytest

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "_build" / "tests.json"

# FlexAttention and torch.compile trace these; a checked function cannot be traced, nor can Triton read one.
TRACED = {"mhlib.masks", "mhlib.functional.backends.flex", "mhlib.functional.request"}
MODULES = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in (ROOT / "mhlib").rglob("[!_]*.py")}
CHECKED = sorted(name for name in MODULES - TRACED if not name.startswith("mhlib.kernels."))
jaxtyping.install_import_hook(CHECKED, "typecheck.check")

_outcomes: dict[str, set[str]] = defaultdict(set)


@pytest.fixture
def as_a_user():
    """Without those shape checks, so that the library's own errors are seen."""
    from contract.common import as_a_user

    with as_a_user():
        yield


def pytest_runtest_logreport(report):
    """Called in the main process for each test, also when workers ran it."""
    if report.when == "call" or report.outcome == "failed":
        for key, value in report.user_properties:
            if key == "mechanism":
                _outcomes[value].add(report.outcome)


def pytest_sessionfinish(session):
    if not _outcomes or hasattr(session.config, "workerinput"):
        return
    from mhlib.catalog.status import fingerprint
    from mhlib.registry import mechanisms

    record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    known = mechanisms()
    for name, outcomes in _outcomes.items():
        outcome = "failed" if "failed" in outcomes else "passed"
        record[name] = {"outcome": outcome, "source": fingerprint(known[name].obj)}
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1))
