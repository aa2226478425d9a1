"""What can be tried of the workflows without GitHub: their commands, what waits for what, and the step that pushes the notebooks."""

import os
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
JOBS = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]


def commands(job: str) -> list[str]:
    return [step["run"] for step in JOBS[job]["steps"] if "run" in step]


def test_the_tests_are_make_targets_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"`{command}`" in readme for job in JOBS if job != "publish" for command in commands(job))


def test_only_what_has_passed_is_published():
    assert set(JOBS["publish"]["needs"]) == JOBS.keys() - {"publish"}


def test_only_the_job_that_publishes_may_write():
    assert [job for job in JOBS if "permissions" in JOBS[job]] == ["publish"]


def test_actions_are_pinned():
    used = [step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in used)


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_branch_holds_the_notebooks_and_nothing_else(tmp_path):
    origin, author = tmp_path / "origin", ("-c", "user.name=a", "-c", "user.email=a@b")
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "start")
    (tmp_path / "start/.gitignore").write_text("_build/\n*.ipynb\n")
    (tmp_path / "start/book.md").write_text("a page\n")
    git(tmp_path / "start", "add", "--all")
    git(tmp_path / "start", *author, "commit", "--quiet", "--message", "first")
    git(tmp_path, "clone", "--quiet", "--bare", "start", "origin")
    for published in (["heads/a.ipynb", "pooling/b.ipynb"], ["heads/a.ipynb"]):  # the second time the branch is there
        checkout = tmp_path / f"checkout-{len(published)}"
        git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{origin}", checkout.name)
        for name in published:
            notebook = checkout / "_build/notebooks/book" / name
            notebook.parent.mkdir(parents=True, exist_ok=True)
            notebook.write_text("{}\n")
        for command in commands("publish"):
            shell = ["bash", "-e", "-o", "pipefail", "-c", command]
            subprocess.run(shell, cwd=checkout, check=True, capture_output=True, env=os.environ | {"GITHUB_SHA": "0123abc"})
        assert git(origin, "ls-tree", "-r", "--name-only", "notebooks").split() == [f"book/{name}" for name in published]
        assert git(origin, "log", "--format=%s", "notebooks") == "Notebooks of 0123abc\n"
