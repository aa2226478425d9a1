"""Execute one chapter through papermill, and ask its kernel afterwards what it imported."""

import copy
import textwrap
import time
from dataclasses import dataclass

import nbformat

from atlas import inputs
from atlas.chapter import Chapter


CELL_SECONDS = 300  # far beyond what a chapter may take: such a cell hangs


class ChapterFailed(Exception):
    """A cell raised an error. The message is meant to be read as it is."""


@dataclass
class Result:
    chapter: Chapter
    notebook: nbformat.NotebookNode
    modules: list[str]
    seconds: float


def execute(chapter: Chapter, kernel_name: str = "python3") -> Result:
    """Run all cells in a fresh kernel; raise ChapterFailed when one fails."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    source = chapter.notebook()
    to_run = copy.deepcopy(source)
    to_run.cells.append(nbformat.v4.new_code_cell(inputs.QUESTION, id="imports"))
    start = time.perf_counter()
    try:
        done = papermill.execute_notebook(
            to_run, None, kernel_name=kernel_name, progress_bar=False, execution_timeout=CELL_SECONDS, config=_kernels()
        )
    except PapermillExecutionError as error:
        raise ChapterFailed(_explain(chapter, source, error)) from None
    except CellTimeoutError:
        raise ChapterFailed(f"Chapter {chapter.doc}.md: a cell ran longer than {CELL_SECONDS} seconds") from None
    except DeadKernelError:
        raise ChapterFailed(f"Chapter {chapter.doc}.md: its kernel died, perhaps for want of memory") from None
    answer = "".join(output.get("text", "") for output in done.cells.pop().outputs)
    return Result(chapter, _as_source(done, source), inputs.modules(chapter.project.root, answer), time.perf_counter() - start)


def _kernels():
    """Kernels talk over an encrypted channel where they can, or each would print a warning that it does not; interrupted at the end they would print that."""
    import zmq
    from traitlets.config import Config

    return Config({
        "KernelManager": {"transport_encryption": "auto" if zmq.has("curve") else "disabled"},
        "NotebookClient": {"shutdown_kernel": "immediate"},
    })


def _as_source(done: nbformat.NotebookNode, source: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Take papermill's traces out again: the cache finds a notebook by its cells and their metadata.

    What the kernel says about its language stays, or every code cell would be rendered without highlighting.
    """
    language = done.metadata.get("language_info")
    done.metadata = copy.deepcopy(source.metadata)
    if language:
        done.metadata["language_info"] = language
    for cell, original in zip(done.cells, source.cells, strict=True):
        cell.metadata = copy.deepcopy(original.metadata)
        cell.id = original.id
    return done


def _explain(chapter: Chapter, source: nbformat.NotebookNode, error) -> str:
    from papermill.exceptions import strip_color

    code = [index for index, cell in enumerate(source.cells) if cell.cell_type == "code"]
    number = code.index(error.cell_index) + 1 if error.cell_index in code else 0
    return "\n".join([
        f"Chapter {chapter.doc}.md failed in code cell {number} of {len(code)}:",
        "",
        textwrap.indent(error.source.strip(), "    "),
        "",
        textwrap.indent(strip_color("\n".join(error.traceback)).strip() or f"{error.ename}: {error.evalue}", "  "),
    ])
