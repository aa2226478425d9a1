"""Plain `jupyter-book build .` executes, generates and renders, and renders again what changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
CATALOG = '''
from types import SimpleNamespace as Row
def papers():
    return [paper(33)]
def paper(n):
    return Row(n=33, key="fast2019", arxiv="1911.02150", title="Fast decoding", year=2019, url="https://arxiv.org/abs/1911.02150", confidence="high", kind="operator", family="kv-sharing", also=(), mechanism="One head")
def status(build):
    return {33: Row(n=33, state="in progress", tests="not run here", missing=["no chapter"], mechanisms=["seven"], claims=[], anchor=None)}
'''


NUMBERS = '''"""Numbers."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
'''
SEVEN = '''
from mhlib.registry import Example, register

__all__ = ["SEVENS", "seven"]

#: Known sevens.
SEVENS = {7: "seven"}


@register("seven", kind="function", family="theory", papers=(33,), example=lambda: Example(seven))
def seven() -> int:
    """Seven, :math:`7`."""
    return 7
'''
REFERENCE = ("reference/catalogue", "reference/ledger", "reference/api", "reference/api/numbers", "reference/api/book", "reference/api/mhlib", "reference/api/registry", "reference/bibliography")


@pytest.fixture
def small_site(book):
    """The real configuration, assets and mhlib.book, on a page or two."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    config["sphinx"]["local_extensions"] = {"atlas.extension": str(ROOT / "book/_ext")}
    book.write("_config.yml", yaml.safe_dump(config))
    shutil.copytree(ROOT / "book/_assets", book.root / "book/_assets")
    shutil.copy(ROOT / "book/references.bib", book.root / "book")
    shutil.copytree(ROOT / "mhlib/book", book.root / "mhlib/book")
    book.write("mhlib/catalog.py", CATALOG)
    shutil.copy(ROOT / "mhlib/registry.py", book.root / "mhlib")
    book.write("mhlib/functional/__init__.py", NUMBERS)
    book.write("mhlib/functional/attention.py", 'def attention():\n    """Attention."""\n')
    book.write("mhlib/value.py", "VALUE = 7\n")
    book.write("mhlib/numbers/__init__.py", NUMBERS)
    book.write("mhlib/numbers/small/seven.py", SEVEN)
    book.chapter(
        "a",
        "import mhlib.value\nfrom mhlib.book import claim",
        "claim(33, 'fewer bytes', 'x 8', f'x {mhlib.value.VALUE}', True)",
        text="(row-33)=\n## One head\n\nSee {cite:p}`vaswani2017attention` at %REPOSITORY%.",
    )
    book.contents("a", *REFERENCE)
    shutil.copytree(ROOT / "book/reference", book.root / "book/reference", ignore=lambda *_: ["catalogue.md", "ledger.md", "differences.md", "bibliography.md", "api.md", "api"])
    return book


def build(book, *options: str) -> subprocess.CompletedProcess:
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", ".", "--quiet", *options]
    return subprocess.run(command, cwd=book.root, capture_output=True, text=True, env=dict(os.environ))


def page(book, name: str) -> BeautifulSoup:
    return BeautifulSoup((book.root / f"_build/html/book/{name}.html").read_text(encoding="utf-8"), "html.parser")


def test_build(small_site):
    book = small_site
    done = build(book, "-W", "--keep-going")
    assert done.returncode == 0, done.stderr
    assert "chapter book/a … " in done.stdout

    chapter = page(book, "a")
    box = chapter.find(class_="mhlib-claim")
    assert "x 7" in box.text
    assert book.project.repository.url in chapter.text
    assert chapter.find("a", href=book.project.repository.colab("book/a"))
    assert (book.root / "_build/html/_sources/book/a.ipynb").is_file()
    assert page(book, "reference/ledger").find(id=box["id"])
    assert page(book, "reference/catalogue").find(id="row-33").find("a", href="../a.html#row-33")
    described = page(book, "reference/api/numbers")
    assert described.find(id="mhlib.numbers.seven") and described.find(class_="mh-about").find("a", href="../catalogue.html#row-33")
    assert "Known sevens." in described.find(id="mhlib.numbers.SEVENS").parent.text
    assert described.find("a", class_="viewcode-link") or described.find(class_="viewcode-link").parent["href"]
    assert page(book, "reference/catalogue").find(id="row-33").find("a", href="api/numbers.html#mhlib.numbers.seven")
    bibliography = page(book, "reference/bibliography")
    assert bibliography.find(id="cite-vaswani2017attention") and chapter.find("a", href="reference/bibliography.html#cite-vaswani2017attention")
    assert [link["href"] for link in bibliography.find(id="paper-33").find_all("a")] == ["https://arxiv.org/abs/1911.02150", "catalogue.html#row-33", "../a.html#row-33"]
    assert "{vaswani2017attention," in (book.root / "_build/html/book/reference" / bibliography.find("a", download=True)["href"]).read_text(encoding="utf-8")
    assert not list((book.root / "book").rglob("*.ipynb"))

    # the library changes, the page's source does not
    book.write("mhlib/functional/__init__.py", NUMBERS)
    book.write("mhlib/functional/attention.py", 'def attention():\n    """Attention."""\n')
    book.write("mhlib/value.py", "VALUE = 77\n")
    assert build(book, "-W", "--keep-going").returncode == 0
    assert "x 77" in page(book, "a").find(class_="mhlib-claim").text
    assert "x 77" in page(book, "reference/ledger").text

    # a page leaves the contents
    book.contents(*REFERENCE)
    assert build(book).returncode == 0
    assert not (book.root / "_build/html/book/a.html").exists()


def test_a_warning_fails_the_build_as_often_as_it_is_tried(small_site):
    book = small_site
    book.write("book/index.md", "# A small book\n\n{ref}`no-such-label`\n")
    for _ in range(2):
        done = build(book, "-W", "--keep-going")
        assert done.returncode != 0
        assert "no-such-label" in done.stderr


def test_a_failing_cell_stops_the_build_before_sphinx(small_site):
    book = small_site
    book.chapter("a", "x = 1", "x.nonsense")
    done = build(book)
    assert done.returncode == 1
    assert "Chapter book/a.md failed in code cell 2 of 2" in done.stderr
    assert "AttributeError: 'int' object has no attribute 'nonsense'" in done.stderr
    assert "There was an error in building your book" not in done.stderr
    assert not (book.root / "_build/html/book/a.html").exists()
