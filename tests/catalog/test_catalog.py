"""The catalogue: 285 sound rows, read fast; and a state that follows from what is there."""

import json
import re
import subprocess
import sys

import pytest

from mhlib import catalog, registry

FAMILIES = {
    "core", "kv-sharing", "latent", "projection", "head-mixing", "head-routing", "head-regularisation", "score",
    "local-multiscale", "sparse", "linear", "hybrid", "token-reduction", "pool-global", "pool-local", "pool-pyramid",
    "pool-attentive", "pool-statistics", "pool-mil", "pool-embedding", "pool-mixer", "pool-structure", "multi-output",
    "moe", "head-analysis", "theory", "systems", "applications",
}  # fmt: skip
KINDS = {"operator", "training", "system", "analysis", "theory", "application", "survey", "homonym"}


def test_rows_are_sound():
    rows = catalog.papers()
    assert [row.n for row in rows] == list(range(1, 286))
    assert len({row.key for row in rows}) == 285
    for row in rows:
        assert row.family in FAMILIES and set(row.also) <= FAMILIES and row.kind in KINDS, row.n
        assert row.confidence in {"high", "medium", "low"} and 2000 < row.year < 2030, row.n
        assert row.arxiv is None or re.fullmatch(r"\d{4}\.\d{4,5}|[a-z-]+/\d{7}", row.arxiv), row.n
        assert all(text.strip() == text and len(text) > 8 for text in (row.title, row.mechanism, row.does)), row.n
        assert row.url is None or row.url.endswith(row.arxiv)


def test_reading_takes_under_50_ms():
    code = "import mhlib.catalog as c, time; t = time.process_time(); c.papers(); print(time.process_time() - t)"
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    assert min(times) < 0.05


def test_rows_are_found_by_number():
    assert catalog.paper(194).key == "ainslie2023gqa"
    with pytest.raises(ValueError, match="row number of the catalogue, 1 to 285, got 0"):
        catalog.paper(0)


def test_registered_papers_exist():
    for mechanism in registry.mechanisms().values():
        assert mechanism.family in FAMILIES, mechanism.name
        for n in mechanism.papers:
            catalog.paper(n)


def write(folder, **records):
    for name, record in records.items():
        (folder / f"{name}.json").write_text(json.dumps(record))
    return folder


ANCHORS = {"194": {"doc": "book/heads/sharing", "anchor": "row-194", "title": "Grouped queries"}}
LEDGER = [{"paper": 194, "text": "t", "expected": "e", "measured": "m", "holds": True, "reason": None, "doc": "d", "cell": 1}]


def test_a_row_works_only_with_everything_in_place(tmp_path):
    assert catalog.status(tmp_path)[194].state == "in progress"
    assert catalog.status(tmp_path)[194].missing == ("no chapter explains it", "no claim in the ledger")
    assert catalog.status(write(tmp_path, anchors=ANCHORS))[194].missing == ("no claim in the ledger",)
    row = catalog.status(write(tmp_path, anchors=ANCHORS, ledger=LEDGER))[194]
    assert row.state == "works" and row.mechanisms == ("grouped_query_attention",) and row.tests == "not run here"
    assert row.claims[0]["text"] == "t" and row.anchor["anchor"] == "row-194" and row.checks


def test_test_results_count_for_the_present_source_only(tmp_path):
    from mhlib.catalog.status import fingerprint

    source = fingerprint(registry.find("grouped_query_attention").obj)
    result = lambda outcome, source: {"grouped_query_attention": {"outcome": outcome, "source": source}}  # noqa: E731
    write(tmp_path, anchors=ANCHORS, ledger=LEDGER, tests=result("failed", source))
    row = catalog.status(tmp_path)[194]
    assert row.tests == "failed" and row.state == "in progress" and "a test of its mechanism fails" in row.missing
    write(tmp_path, tests=result("passed", source))
    assert catalog.status(tmp_path)[194].tests == "passed"
    write(tmp_path, tests=result("failed", "another"))
    assert catalog.status(tmp_path)[194].tests == "not run here"


def test_most_rows_are_still_planned(tmp_path):
    states = [row.state for row in catalog.status(tmp_path).values()]
    assert len(states) == 285 and states.count("works") == 0 and states.count("planned") > 0
    nothing = next(row for row in catalog.status(tmp_path).values() if row.state == "planned")
    assert nothing.missing[0] == "no registered mechanism"
