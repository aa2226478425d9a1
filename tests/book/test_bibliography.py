"""The bibliography lists every paper once, with what is known of it, and its BibTeX file holds all of them."""

from types import SimpleNamespace

import pytest
from atlas import bibliography_page
from atlas.bibliography_page import BibFile
from atlas.project import Project
from bs4 import BeautifulSoup
from pybtex.database import parse_string

BIB = r"""
@misc{shazeer2019mqa,
  title  = {Fast {Decoding}: One Head},
  author = {Shazeer, Noam and van der Berg, Ann {\O}.},
  year   = {2019},
  eprint = {1911.02150}
}

@book{old, title = {The {LLM}, at  Large}, author = {{A Team}}, year = {2024}}

@book{elsewhere, title = {Not in the catalogue}, author = {Nobody, Else}, year = {1979}}
"""


def paper(n, **fields):
    known = {"n": n, "key": f"key{n}", "year": 2024, "arxiv": None, "url": None, "confidence": "high"}
    return SimpleNamespace(**known | fields)


PAPERS = [
    paper(33, title="Fast <decoding>: one head", year=2019, arxiv="1911.02150", url="https://arxiv.org/abs/1911.02150"),
    paper(34, title="The LLM at large"),
    paper(35, title="Cost of O(n^2) & 100% (title not verified)", confidence="low", year=2025),
    paper(36, title="Later", url="https://example.org/later"),
]
ANCHORS = {"33": {"doc": "book/heads/sharing", "anchor": "row-33", "title": "One head"}}


@pytest.fixture(scope="module")
def bib():
    return BibFile(BIB)


@pytest.fixture(scope="module")
def page(bib):
    text = bibliography_page.render(PAPERS, ANCHORS, bib, {"shazeer2019mqa"})
    return text, {item["id"]: item for item in BeautifulSoup(text, "html.parser").find_all("li")}


def test_every_paper_once_the_newest_first(page):
    text, items = page
    assert list(items) == ["paper-35", "paper-34", "paper-36", "paper-33"]
    assert [line for line in text.splitlines() if line.startswith("### ")] == ["### 2025", "### 2024", "### 2019"]
    assert '<a href="#papers-2024">2024\N{NO-BREAK SPACE}(2)</a>' in text and "(papers-2024)=\n### 2024" in text
    assert "all 4 papers" in text and "The authors of 2 of them" in text


def test_links(page):
    _, items = page
    links = lambda n: [link["href"] for link in items[f"paper-{n}"].find_all("a")]  # noqa: E731
    assert links(33) == ["https://arxiv.org/abs/1911.02150", "catalogue.html#row-33", "../heads/sharing.html#row-33", "#cite-shazeer2019mqa"]
    assert links(34) == ["catalogue.html#row-34"], "no chapter cites it, so its entry is not on the page"
    assert links(36) == ["https://example.org/later", "catalogue.html#row-36"]


def test_authors_come_from_the_references_by_number_or_title(page):
    _, items = page
    assert "Noam Shazeer, Ann Ø. van der Berg" in items["paper-33"].text and "arXiv:1911.02150" in items["paper-33"].text
    assert "A Team" in items["paper-34"].text
    assert "Fast <decoding>: one head" in items["paper-33"].text


def test_doubts_are_said(page):
    _, items = page
    assert "(title not verified) (title or number not certain)" in items["paper-35"].text
    assert "not certain" not in items["paper-34"].text


def test_keys_that_pages_cite():
    text = "As {cite:p}`one, two` and {cite:t}`three` say, {cite}`one`; not {ref}`four`."
    assert bibliography_page.cited([text, "{cite:p}`five`"]) == {"one", "two", "three", "five"}


def test_bibtex_file(bib):
    text = bibliography_page.bibtex(PAPERS, bib, "https://example.org/")
    entries = parse_string(text, "bibtex").entries
    assert list(entries) == ["shazeer2019mqa", "old", "elsewhere", "key35", "key36"]
    assert BIB.strip() in text, "entries of the references are copied as they are"
    assert entries["key35"].fields["title"] == r"{Cost of O(n\^{}2) \& 100\% (title not verified)}"
    assert entries["key35"].fields["note"] == "Title or number not certain" and entries["key36"].fields["url"] == "https://example.org/later"


def test_bibtex_file_of_the_catalogue():
    from mhlib import catalog

    bib = BibFile.of(Project.here())
    entries = parse_string(bibliography_page.bibtex(catalog.papers(), bib, ""), "bibtex").entries
    keys = [bib.key(paper) or paper.key for paper in catalog.papers()]
    assert len(set(keys)) == len(catalog.papers()) == 285 and set(keys) <= set(entries)
    for paper, key in zip(catalog.papers(), keys):
        assert entries[key].fields.get("eprint") == paper.arxiv
        assert entries[key].persons.get("author") or bib.key(paper) is None
    assert not [key for key, entry in bib.entries.items() if "others" in map(str, entry.persons["author"])], "authors are named, not counted"
