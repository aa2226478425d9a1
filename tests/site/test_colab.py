"""Published notebooks run where Colab's packages are and nothing of ours, and every import of the others is covered."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from atlas.chapter import chapters
from atlas.project import Project

from colab import Colab

PROJECT = Project.here()
#: A core chapter, one about kernels, one with a real checkpoint.
VISITED = ("book/foundations/linear-memory", "book/kernels/how-a-gpu-sees-attention", "book/heads/sharing")
#: What Colab has; einops and jaxtyping come with mhlib.
STANDARD = {"torch", "numpy", "matplotlib", "IPython", "einops", "jaxtyping", "mhlib"}
MODULES = {"scikit-learn": "sklearn", "pillow": "PIL", "torch-geometric": "torch_geometric", "x-transformers": "x_transformers"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, PROJECT.root], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.mark.timeout(900)  # the machine may be busy
@pytest.mark.parametrize("doc", VISITED)
def test_a_visitor_runs_it(tmp_path, wheel, doc):
    colab = Colab(tmp_path / "colab")
    before = colab.torch()
    published = (PROJECT.notebooks / f"{doc}.ipynb").read_text(encoding="utf-8")
    address = f"git+{PROJECT.repository.url}"
    assert published.count(address) == 1
    notebook = tmp_path / "visit/chapter.ipynb"
    notebook.parent.mkdir()
    notebook.write_text(published.replace(address, wheel.as_uri()), encoding="utf-8")
    done = colab.execute(notebook)
    assert done.returncode == 0, done.stderr[-3000:]
    assert colab.torch() == before, "the first cell must leave the torch that is there alone"


def imports(code: str) -> set[str]:
    """Modules that a cell imports; those whose absence it is ready for do not count."""
    tree = ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", code, flags=re.MULTILINE))
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(isinstance(h.type, ast.Name) and h.type.id in ("ImportError", "ModuleNotFoundError") for h in node.handlers):
            node.body = []
    named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in named}


def covered(chapter) -> set[str]:
    """Modules that the standard set or the extras of the first cell bring."""
    extras = tomllib.loads((PROJECT.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = [re.split(r"[<>=;\[ ]", requirement)[0] for extra in chapter.front_matter.get("extras", []) for requirement in extras[extra]]
    return STANDARD | set(sys.stdlib_module_names) | {MODULES.get(name, name) for name in names}


@pytest.mark.parametrize("chapter", chapters(PROJECT), ids=lambda chapter: chapter.doc)
def test_every_import_is_covered(chapter):
    notebook = nbformat.read(PROJECT.notebooks / f"{chapter.doc}.ipynb", as_version=4)
    found = set().union(*(imports(cell.source) for cell in notebook.cells if cell.cell_type == "code"))
    assert found - covered(chapter) == set()
    assert "mhlib" in found


def test_notebooks_hold_no_outputs_and_open_with_the_install_cell():
    for chapter in chapters(PROJECT):
        notebook = json.loads((PROJECT.notebooks / f"{chapter.doc}.ipynb").read_text(encoding="utf-8"))
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert PROJECT.repository.pip in "".join(code[0]["source"])
        assert not any(cell["outputs"] for cell in code)
