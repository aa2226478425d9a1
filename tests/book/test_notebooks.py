"""The notebooks for Colab: they install mhlib only where it is missing, and show no MyST."""

import re
import sys
import types

import nbformat
import pytest
from atlas import notebooks
from atlas.chapter import chapters
from atlas.project import Project

MYST = re.compile(r"\{[\w:+-]+\}`|^\s*(`{3,}|:{3,})\{|^\([^()]*\)=$", re.MULTILINE)
SOLUTION = """\
```{exercise} Double it
:label: ex-double
Write `double`.
```

```{solution-start} ex-double
:class: dropdown
```
"""


@pytest.fixture
def written(book):
    path = book.chapter("a", "x = 1", text="(row-33)=\n## Heading\n\nSee {eq}`eq-a` and {doc}`index`.\n\n$$\na\n$$ (eq-a)\n\n" + SOLUTION)
    path.write_text(path.read_text() + "\n```{solution-end}\n```\n\n```{code-cell}\ny = 2\n```\n")
    book.contents("a")
    (file,) = notebooks.write(book.project)
    return nbformat.read(file, 4)


def test_cells(written, book):
    kinds = [(cell.cell_type, cell.source.partition("\n")[0]) for cell in written.cells]
    assert kinds[0] == ("markdown", f"*This notebook is the chapter [Chapter a]({book.project.repository.page('book/a')}) of Heads and Pools.*")
    assert kinds[1][0] == "code" and "installs it beside the torch" in kinds[1][1]
    assert kinds[2] == ("markdown", "# Chapter a")
    assert kinds[3:] == [("code", "# @title Solution"), ("code", "y = 2")]
    assert written.cells[3].metadata["cellView"] == "form"
    nbformat.validate(written)


def test_no_myst_is_left(written, book):
    text = "\n".join(cell.source for cell in written.cells if cell.cell_type == "markdown")
    assert not MYST.search(text)
    assert f"See (1) and [A small book]({book.project.repository.page('book/index')})." in text


def run_first_cell(written, monkeypatch, importable: bool) -> list[str]:
    """Execute the install cell with its magic replaced by a record of what it would have run."""
    code = next(cell.source for cell in written.cells if cell.cell_type == "code")
    code = re.sub(r"^(\s*)%pip (.*)$", r"\1calls.append('''\2''')", code, flags=re.MULTILINE)
    finder = types.SimpleNamespace(find_spec=lambda name: object() if importable else None)
    monkeypatch.setitem(sys.modules, "importlib.util", finder)
    monkeypatch.setattr("importlib.util", finder)
    calls: list[str] = []
    exec(code, {"calls": calls})
    return calls


def test_installs_only_where_mhlib_is_missing_and_never_names_torch(written, book, monkeypatch):
    assert run_first_cell(written, monkeypatch, importable=True) == []
    calls = run_first_cell(written, monkeypatch, importable=False)
    assert calls == [f'install -q "mhlib @ git+{book.project.repository.url}"']


def test_extras_of_the_front_matter_are_installed(book, monkeypatch):
    path = book.chapter("a", "x = 1")
    path.write_text(path.read_text().replace("---\njupytext", "---\nextras: [models]\njupytext"))
    book.write("requirements-models.txt", "# why\nsome-model==1.0\n")
    book.contents("a")
    (file,) = notebooks.write(book.project)
    calls = run_first_cell(nbformat.read(file, 4), monkeypatch, importable=False)
    assert calls == [
        f'install -q "mhlib[models] @ git+{book.project.repository.url}"',
        "install -q --no-deps some-model==1.0",
    ]


def test_a_notebook_goes_when_its_chapter_goes(book):
    book.chapter("a", "x = 1")
    book.chapter("b", "x = 2")
    book.contents("a", "b")
    notebooks.write(book.project)
    book.contents("b")
    assert notebooks.write(book.project) == [book.root / "_build/notebooks/book/b.ipynb"]
    assert not (book.root / "_build/notebooks/book/a.ipynb").exists()


def test_every_chapter_of_the_atlas_is_free_of_myst():
    project = Project.here()
    references = notebooks.References.of(project)
    for chapter in chapters(project):
        for cell in notebooks.for_colab(chapter, references).cells:
            if cell.cell_type == "markdown":
                outside_code = re.sub(r"^```.*?^```|``.*?``", "", cell.source, flags=re.DOTALL | re.MULTILINE)
                assert not MYST.search(outside_code), (chapter.doc, cell.source)
