"""The wheel goes into an environment that has torch and little else, changes nothing there, and imports quickly."""

import importlib.metadata as metadata
import json
import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def requirements(name: str) -> list[Requirement]:
    return [Requirement(text) for text in metadata.requires(name) or []]


def closure(*names: str) -> set[str]:
    """Distributions that these need, themselves included, without any extra."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in found:
            found.add(name)
            waiting += [r.name for r in requirements(name) if not r.marker or r.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def beside_torch(tmp_path_factory, wheel) -> Path:
    """A new environment that holds torch, numpy, einops, jaxtyping and what they need, and nothing else. Returns its python."""
    folder = tmp_path_factory.mktemp("beside") / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    site = Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True).stdout.strip())
    for name in closure("torch", "numpy", "einops", "jaxtyping"):
        distribution = metadata.distribution(name)
        for part in {file.parts[0] for file in distribution.files} - {"..", "__pycache__", "bin"}:
            if not (site / part).exists():
                (site / part).symlink_to(distribution.locate_file(part))
    return python


def freeze(python: Path) -> set[str]:
    done = subprocess.run([*PIP, "--python", python, "list", "--format=json"], check=True, capture_output=True, text=True)
    return {f"{item['name']} {item['version']}" for item in json.loads(done.stdout)}


def run(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True, cwd="/").stdout.strip()


def test_the_wheel_installs_beside_torch_and_changes_nothing_else(wheel, beside_torch):
    before = freeze(beside_torch)
    assert any(item.startswith("torch ") for item in before)
    assert not any(item.startswith(("matplotlib ", "transformers ", "pytest ")) for item in before)
    plan = subprocess.run(
        [*PIP, "--python", beside_torch, "install", "-qq", "--no-index", "--dry-run", "--report", "-", wheel], check=True, capture_output=True, text=True
    ).stdout
    assert [item["metadata"]["name"] for item in json.loads(plan)["install"]] == ["mhlib"]

    subprocess.run([*PIP, "--python", beside_torch, "install", "-qq", "--no-index", wheel], check=True)
    added = freeze(beside_torch) - before
    assert before - freeze(beside_torch) == set()
    assert [item.split()[0] for item in added] == ["mhlib"]

    shape = run(beside_torch, """
        import torch, mhlib
        q = torch.randn(1, 4, 3, 8)
        print(tuple(mhlib.attention(q, q, q, causal=True).shape), len(mhlib.catalog.papers()), mhlib.__file__)
    """)
    assert shape.startswith("(1, 4, 3, 8) 285 ") and str(ROOT) not in shape


def test_import_pulls_in_no_extra():
    extras = {r.name.lower().replace("-", "_") for r in requirements("mhlib") if r.marker and "extra" in str(r.marker)}
    modules = extras | {"sklearn", "yaml", "IPython", "playwright", "torch.distributed.tensor", "triton"}
    loaded = run(Path(sys.executable), f"""
        import sys, torch
        before = set(sys.modules)
        import mhlib
        new = set(sys.modules) - before
        print(sorted(new & {modules!r} | {{name for name in new if name.startswith("mhlib.")}}))
    """)
    assert loaded == "['mhlib._lazy']"


def test_import_costs_little_beyond_torch():
    code = """
        import time, torch
        start = time.process_time()
        import mhlib
        mhlib.attention, mhlib.heads.MultiHeadAttention
        print(time.process_time() - start)
    """
    assert min(float(run(Path(sys.executable), code)) for _ in range(3)) < 0.3  # the best of three: the machine may be busy


def test_the_wheel_carries_recorded_results_and_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "mhlib/catalog/papers.json" in names
    recorded = {f"mhlib/book/results/{file.name}" for file in (ROOT / "benchmarks/results").glob("*.json")}
    assert recorded <= names
    assert not any(name.startswith(("tests/", "book/")) for name in names)
