"""The stages of `make test`: one that passed is not run again until its inputs change, one that fails is."""

import subprocess
import sys

import pytest
from atlas.suite import Suite


@pytest.fixture
def suite(book):
    book.write("code/a.py", "1")
    book.write("code/site/b.py", "2")
    return Suite(book.project)


def stage(suite, code: int = 0) -> tuple[int, bool]:
    """Run one stage; returns its status and whether its command was started."""
    mark = suite.project.root / "started"
    mark.unlink(missing_ok=True)
    command = [sys.executable, "-c", f"open('started', 'w'); raise SystemExit({code})"]
    return suite._stage("some tests", ["code", "constraints.txt"], command, without=("code/site",)), mark.exists()


def test_runs_again_only_when_an_input_changes(suite, book):
    assert stage(suite) == (0, True)
    assert stage(suite) == (0, False)
    book.write("code/a.py", "one")
    assert stage(suite) == (0, True)
    book.write("code/new.py", "3")
    assert stage(suite) == (0, True)
    (book.root / "code/new.py").unlink()
    assert stage(suite) == (0, True)


def test_what_does_not_belong_to_a_stage_does_not_start_it(suite, book):
    stage(suite)
    book.write("code/site/b.py", "two")
    book.write("code/__pycache__/a.pyc", "compiled")
    assert stage(suite) == (0, False)


def test_a_failure_is_not_remembered(suite):
    assert stage(suite, code=3) == (3, True)
    assert stage(suite) == (0, True)


def test_the_first_failing_stage_ends_the_suite(suite, monkeypatch):
    ran = []
    for name, code in [("library", 0), ("kernels", 0), ("chapters", 5), ("notebooks", 0), ("site", 0), ("browser", 0), ("visits", 0)]:
        monkeypatch.setattr(suite, name, lambda name=name, code=code: ran.append(name) or code)
    assert suite.run() == 5
    assert ran == ["library", "kernels", "chapters"]


def test_notebooks_are_compared_again_only_when_they_were_executed_anew(suite, book, monkeypatch):
    started: list[list[str]] = []
    monkeypatch.setattr(suite, "_always", lambda name, command: started.append([part for part in command if part.endswith(".ipynb")]) or 0)
    book.write("_build/executed/book/a.ipynb", "{}")
    book.write("_build/executed/book/b.ipynb", "{}")
    suite.notebooks()
    suite.notebooks()
    book.write("_build/executed/book/b.ipynb", '{"cells": []}')
    suite.notebooks()
    assert [[path.rpartition("/")[2] for path in paths] for paths in started] == [["a.ipynb", "b.ipynb"], ["b.ipynb"]]


def test_kernels_are_interpreted_in_one_process_and_compiled_in_another(suite, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    seen = []
    monkeypatch.setattr(
        "atlas.suite.subprocess.run",
        lambda command, env, **_: seen.append((env.get("TRITON_INTERPRET"), "tests/kernels/numeric" in command))
        or subprocess.CompletedProcess(command, 0),
    )
    assert suite.kernels() == 0
    assert seen == [("1", True), (None, False)]
    assert suite.kernels() == 0 and len(seen) == 2, "both are remembered"
