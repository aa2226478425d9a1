"""Which chapters are executed again, and what happens when one fails or is interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from atlas.execute import ChapterFailed
from atlas.run import run

TOOLS = Path(__file__).resolve().parents[2] / "book/_ext"


@pytest.fixture
def two_chapters(book):
    book.write("mhlib/left.py", "VALUE = 1\n")
    book.write("mhlib/right/__init__.py", "from pathlib import Path\nVALUE = (Path(__file__).parent / 'data.txt').read_text()\n")
    book.write("mhlib/right/data.txt", "two")
    book.chapter("a", "import mhlib.left\nprint(mhlib.left.VALUE)", "open('stray.txt', 'w').write('x')")
    book.chapter("b", "import mhlib.right\nprint(mhlib.right.VALUE)")
    book.contents("a", "b")
    return book


def output(book, name: str) -> str:
    return nbformat.read(book.root / f"_build/executed/book/{name}.ipynb", 4).cells[1].outputs[0].text.strip()


def test_only_what_changed_is_executed_again(two_chapters, capsys):
    book = two_chapters
    assert run(book.project) == ["book/a", "book/b"]
    assert "chapter book/a … " in capsys.readouterr().out
    assert run(book.project) == []

    book.chapter("a", "import mhlib.left\nprint(mhlib.left.VALUE)", "open('stray.txt', 'w').write('x')", text="More words.")
    assert run(book.project) == [], "words are not code"

    book.write("mhlib/left.py", "VALUE = 10\n")
    assert run(book.project) == ["book/a"]
    assert output(book, "a") == "10"

    book.write("mhlib/right/data.txt", "twenty")
    assert run(book.project) == ["book/b"]
    assert output(book, "b") == "twenty"

    book.chapter("b", "import mhlib.right\nprint(mhlib.right.VALUE, 'now')")
    assert run(book.project) == ["book/b"]
    assert output(book, "b") == "twenty now"

    book.write("mhlib/other.py", "VALUE = 3\n")
    assert run(book.project) == [], "nobody imports the new file"

    book.write("constraints.txt", "torch==2.14.0\n")
    assert run(book.project) == ["book/a", "book/b"]


def test_nothing_is_left_beside_the_sources_or_in_the_notebook(two_chapters):
    book = two_chapters
    sources = {"book/index.md", "book/a.md", "book/b.md"}
    run(book.project)
    assert {path.relative_to(book.root).as_posix() for path in (book.root / "book").rglob("*")} == sources
    assert not list(Path.cwd().glob("stray.txt"))
    executed = (book.root / "_build/executed/book/a.ipynb").read_text(encoding="utf-8")
    assert "__file__" not in executed and "papermill" not in executed
    assert [cell.cell_type for cell in nbformat.reads(executed, 4).cells] == ["markdown", "code", "code"]


def test_a_chapter_that_leaves_the_contents_leaves_the_results(two_chapters):
    book = two_chapters
    run(book.project)
    book.contents("b")
    assert run(book.project) == []
    assert not (book.root / "_build/executed/book/a.ipynb").exists()


def test_a_failing_cell_names_chapter_cell_and_error_and_keeps_what_was_finished(book):
    book.chapter("good", "print('fine')")
    book.chapter("bad", "x = 1", "import time\ntime.sleep(3)\ny = 1 / (x - 1)", "print('never')")
    book.contents("good", "bad")
    with pytest.raises(ChapterFailed) as failure:
        run(book.project)
    message = str(failure.value)
    assert "Chapter book/bad.md failed in code cell 2 of 3" in message
    assert "    y = 1 / (x - 1)" in message
    assert "ZeroDivisionError: division by zero" in message
    assert "\x1b" not in message

    book.chapter("bad", "x = 2", "y = 1 / (x - 1)")
    assert run(book.project) == ["book/bad"], "the good chapter was kept"


def test_a_kernel_that_dies_is_named(book):
    book.chapter("bad", "import os\nos._exit(1)")
    book.contents("bad")
    with pytest.raises(ChapterFailed, match=r"Chapter book/bad\.md: its kernel died"):
        run(book.project)


def test_a_cell_that_hangs_is_an_error(book, monkeypatch):
    monkeypatch.setattr("atlas.execute.CELL_SECONDS", 2)
    book.chapter("bad", "import time\ntime.sleep(60)")
    book.contents("bad")
    with pytest.raises(ChapterFailed, match=r"Chapter book/bad\.md: a cell ran longer than 2 seconds"):
        run(book.project)


def test_interrupting_stops_at_once_and_keeps_what_was_finished(book):
    book.chapter("quick", "print('fine')")
    book.chapter("slow", "import time\ntime.sleep(600)")
    book.contents("quick", "slow")
    process = subprocess.Popen([sys.executable, str(TOOLS), "execute", str(book.root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "chapter book/quick" in line:
            break
    kernels = psutil.Process(process.pid).children(recursive=True)
    assert kernels
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert time.monotonic() - start < 5
    assert "Finished chapters are kept" in errors
    psutil.wait_procs(kernels, timeout=5)
    assert not any(kernel.is_running() and kernel.status() != psutil.STATUS_ZOMBIE for kernel in kernels)

    book.chapter("slow", "print('fast now')")
    assert run(book.project) == ["book/slow"]


def test_a_failure_ends_the_command_with_status_one(book):
    book.chapter("bad", "raise RuntimeError('on purpose')")
    book.contents("bad")
    done = subprocess.run([sys.executable, str(TOOLS), "execute", str(book.root)], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 1
    assert "RuntimeError: on purpose" in done.stderr


def test_claims_and_anchors_are_gathered(book):
    claim = "{'text/html': {'mhlib_claim': {'paper': 33, 'text': 'fewer bytes', 'holds': True, 'anchor': 'claim-33-x'}}}"
    book.chapter(
        "a",
        f"from IPython.display import publish_display_data\npublish_display_data({{'text/html': '<p>box</p>'}}, metadata={claim})",
        text="""\
            (row-33)=
            (row-194)=
            ## Sharing one head

            ```markdown
            (row-1)=
            ## An example, not a mark
            ```
            """,
    )
    book.contents("a")
    run(book.project)
    ledger = json.loads((book.root / "_build/ledger.json").read_text())
    assert ledger == [{"paper": 33, "text": "fewer bytes", "holds": True, "anchor": "claim-33-x", "doc": "book/a", "cell": 1}]
    anchors = json.loads((book.root / "_build/anchors.json").read_text())
    assert anchors == {n: {"doc": "book/a", "anchor": f"row-{n}", "title": "Sharing one head"} for n in ("33", "194")}


def test_a_claim_is_made_once(book):
    cell = (
        "from IPython.display import publish_display_data\n"
        "publish_display_data({'text/html': 'box'}, metadata={'text/html': {'mhlib_claim': {'paper': 33, 'text': 'same', 'anchor': 'claim-33-x'}}})"
    )
    book.chapter("a", cell, cell)
    book.contents("a")
    with pytest.raises(ValueError, match=r"book/a\.md: the claim 'same' of row 33 is made more than once"):
        run(book.project)


@pytest.mark.parametrize(("text", "complaint"), [
    ("(row-33)=\n\nSome words first.\n\n## Heading", "must stand directly above a heading"),
    ("(row-33)=\n## One\n\n(row-33)=\n## Two", "row 33 is marked twice"),
])
def test_a_row_is_marked_once_and_above_a_heading(book, text, complaint):
    book.chapter("a", "print(1)", text=text)
    book.contents("a")
    with pytest.raises(ValueError, match=complaint):
        run(book.project)
