"""How far each paper works here, computed from what is there: registry, tests, chapters and ledger.

A row works when its mechanism is registered, no test of it is known to fail, it is checked against something independent, is
explained in a chapter, and has a claim in the ledger. Nobody types it in.
"""

import hashlib
import inspect
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mhlib.catalog.papers import papers

__all__ = ["Status", "status"]


@dataclass(frozen=True)
class Status:
    """The state of one row, and what it rests on.

    Attributes:
        state: "works", "in progress" (some of it is there) or "planned".
        mechanisms: names in the registry.
        checks: what they are compared with: reductions by their text, peers by their package.
        anchor: where the chapter explains it, as {doc, anchor, title}; None before.
        claims: its entries in the ledger.
        tests: "passed", "failed", or "not run here" for the present source of its mechanisms.
        missing: what keeps it from working, in words.
    """

    n: int
    state: str
    mechanisms: tuple[str, ...]
    checks: tuple[str, ...]
    anchor: dict[str, Any] | None
    claims: tuple[dict[str, Any], ...]
    tests: str
    missing: tuple[str, ...]


def status(build: str | Path | None = None) -> dict[int, Status]:
    """The state of every row, by number.

    Args:
        build: the folder with the build's records (ledger.json, anchors.json, tests.json). By default ``_build`` of the
            checkout that mhlib runs from; where there is none, chapters and claims count as missing.
    """
    from mhlib import registry

    build = Path(__file__).parents[2] / "_build" if build is None else Path(build)
    claims = defaultdict(list)
    for claim in _read(build / "ledger.json", []):
        claims[claim["paper"]].append(claim)
    anchors = {int(n): anchor for n, anchor in _read(build / "anchors.json", {}).items()}
    outcomes = _read(build / "tests.json", {})
    by_paper = defaultdict(list)
    for mechanism in registry.mechanisms().values():
        for n in mechanism.papers:
            by_paper[n].append(mechanism)
    return {row.n: _row(row.n, by_paper[row.n], anchors.get(row.n), claims[row.n], outcomes) for row in papers()}


def _row(n: int, mechanisms: list, anchor: dict | None, claims: list[dict], outcomes: dict) -> Status:
    checks = tuple(r.text for m in mechanisms for r in m.reductions) + tuple(p for m in mechanisms for p in m.peers)
    tests = _tests(mechanisms, outcomes)
    missing = [
        text
        for absent, text in (
            (not mechanisms, "no registered mechanism"),
            (mechanisms and not checks, "not checked against anything independent"),
            (tests == "failed", "a test of its mechanism fails"),
            (anchor is None, "no chapter explains it"),
            (not claims, "no claim in the ledger"),
        )
        if absent
    ]
    state = "works" if not missing else "in progress" if mechanisms or anchor or claims else "planned"
    return Status(n, state, tuple(m.name for m in mechanisms), checks, anchor, tuple(claims), tests, tuple(missing))


def _tests(mechanisms: list, outcomes: dict) -> str:
    found = [outcomes.get(m.name) for m in mechanisms]
    current = [o for o, m in zip(found, mechanisms) if o and o["source"] == fingerprint(m.obj)]
    if any(o["outcome"] == "failed" for o in current):
        return "failed"
    return "passed" if mechanisms and len(current) == len(mechanisms) else "not run here"


def fingerprint(obj: Any) -> str:
    """Hash of the file that defines a mechanism: a test result counts only for the source that it ran on."""
    return hashlib.sha256(Path(inspect.getfile(inspect.unwrap(obj))).read_bytes()).hexdigest()[:16]


def _read(file: Path, default: Any) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else default
