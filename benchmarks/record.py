"""Keep what was measured, as results/README.md says."""

import datetime
import json
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["RESULTS", "keep"]

RESULTS = Path(__file__).parent / "results"


def keep(
    benchmarks: Mapping[str, list[dict]], *, name: str, device: str, packages: Iterable[str], folder: Path = RESULTS
) -> Path:
    """Write one run to ``<name>-<date>.json``, with the versions of those packages that are installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    today = datetime.date.today().isoformat()
    file = folder / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}-{today}.json"
    run = {"device": device, "date": today, "versions": versions, "benchmarks": dict(benchmarks)}
    file.write_text(json.dumps(run, indent=1) + "\n")
    return file
