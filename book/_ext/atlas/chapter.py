"""One page's source: its Markdown, and the notebook in it if it has one."""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml

from atlas.project import Project

_FRONT_MATTER = re.compile(r"\A---\n(.*?)^---\s*$\n?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Chapter:
    project: Project
    doc: str

    @property
    def path(self) -> Path:
        return self.project.root / f"{self.doc}.md"

    @functools.cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @functools.cached_property
    def front_matter(self) -> dict:
        found = _FRONT_MATTER.match(self.text)
        return (yaml.safe_load(found[1]) or {}) if found else {}

    @property
    def runs(self) -> bool:
        """Whether the page holds code to execute."""
        return "kernelspec" in self.front_matter

    @property
    def executed(self) -> Path:
        return self.project.executed / f"{self.doc}.ipynb"

    def notebook(self) -> nbformat.NotebookNode:
        """The page as a notebook, read exactly as the book's own renderer reads it, or cached results would not be found again."""
        from myst_nb.core.read import read_myst_markdown_notebook

        notebook = read_myst_markdown_notebook(self.text, path=self.path)
        for number, cell in enumerate(notebook.cells):
            cell.id = f"cell-{number}"  # random ones would make each reading differ
        return notebook


def pages(project: Project) -> list[Chapter]:
    """Every page of the table of contents whose source is Markdown and exists."""
    return [page for page in (Chapter(project, doc) for doc in project.documents()) if page.path.is_file()]


def chapters(project: Project) -> list[Chapter]:
    """The pages that hold code, in reading order."""
    return [page for page in pages(project) if page.runs]


_FENCE = re.compile(r"^\s*(`{3,}|~{3,})(.*)$")


def prose(text: str) -> Iterator[str]:
    """The lines of a page that are not inside a fenced block."""
    fence = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if not fence and found:
            fence = found[1]
        elif not fence:
            yield line
        elif found and found[1].startswith(fence) and not found[2].strip():
            fence = ""


_TARGET = re.compile(r"^\(([^()\s]+)\)=\s*$")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$")


def headings(text: str) -> Iterator[tuple[list[str], str | None]]:
    """Each heading of a page with the targets, `(label)=`, directly above it. Targets above something else come with None."""
    labels: list[str] = []
    for line in prose(text):
        if target := _TARGET.match(line):
            labels.append(target[1])
        elif heading := _HEADING.match(line):
            yield labels, heading[1]
            labels = []
        elif line.strip() and labels:
            yield labels, None
            labels = []
