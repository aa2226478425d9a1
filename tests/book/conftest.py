"""A small book of its own: two chapters and a little mhlib, executed by the real tools."""

import shutil
import textwrap
from pathlib import Path

import pytest
from atlas.project import Project

ROOT = Path(__file__).resolve().parents[2]
FRONT_MATTER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""


class Book:
    """A tiny project below a temporary folder."""

    def __init__(self, root: Path):
        self.root = root
        self.project = Project(root)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return file

    def chapter(self, name: str, *cells: str, text: str = "") -> Path:
        """A chapter of code cells, with Markdown above them."""
        code = "\n\n".join(f"```{{code-cell}}\n{textwrap.dedent(cell).strip()}\n```" for cell in cells)
        return self.write(f"book/{name}.md", f"{FRONT_MATTER}\n# Chapter {name}\n\n{textwrap.dedent(text)}\n\n{code}\n")

    def contents(self, *names: str) -> None:
        chapters = "".join(f"  - file: book/{name}\n" for name in names)
        self.write("_toc.yml", f"format: jb-book\nroot: book/index\nchapters:\n{chapters}")


@pytest.fixture
def book(tmp_path, monkeypatch) -> Book:
    # Kernels find the little mhlib before the installed one, and do not leave compiled files that outlive an edit.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    book = Book(tmp_path)
    book.write("constraints.txt", "torch==2.13.0\n")
    book.write("book/index.md", "# A small book\n")
    shutil.copy(ROOT / "_config.yml", tmp_path)
    (tmp_path / "mhlib").mkdir()
    for name in ("__init__.py", "_lazy.py"):
        shutil.copy(ROOT / "mhlib" / name, tmp_path / "mhlib")
    return book
