"""The generated pages show every row and every claim, escaped, with links that lead there."""

from types import SimpleNamespace

import pytest
from atlas import catalogue_page, ledger_page
from bs4 import BeautifulSoup

PAPERS = [
    SimpleNamespace(n=33, title="Fast <decoding>", year=2019, url="https://arxiv.org/abs/1911.02150", confidence="high", family="kv-sharing", mechanism="One & shared"),
    SimpleNamespace(n=34, title="Latent", year=2024, url=None, confidence="low", family="latent", mechanism="Compressed"),
    SimpleNamespace(n=35, title="Later", year=2025, url=None, confidence="high", family="latent", mechanism="Planned one"),
]
STATUS = {
    33: SimpleNamespace(state="works", tests="passed", missing=()),
    34: SimpleNamespace(state="in progress", tests="not run here", missing=("no chapter explains it", "no claim in the ledger")),
    35: SimpleNamespace(state="planned", tests="not run here", missing=("no registered mechanism",)),
}
ANCHORS = {"33": {"doc": "book/heads/sharing", "anchor": "row-33", "title": "One head"}}
CLAIM = {"paper": 33, "text": "x < y", "expected": "8", "measured": "7.9", "holds": True, "reason": None, "doc": "book/heads/sharing", "cell": 3, "anchor": "claim-33-ab"}


def rows(markdown: str) -> dict:
    return {row["id"]: row for row in BeautifulSoup(markdown, "html.parser").find_all("tr", id=True)}


def test_catalogue():
    text = catalogue_page.render(PAPERS, STATUS, ANCHORS)
    found = rows(text)
    assert list(found) == ["row-33", "row-34", "row-35"]
    assert "3 papers" in text and "1 rows work, 1 are in progress and 1 are planned" in text
    links = [link["href"] for link in found["row-33"].find_all("a")]
    assert links == ["https://arxiv.org/abs/1911.02150", "../heads/sharing.html#row-33"]
    assert "Fast <decoding>" in found["row-33"].text and "One & shared" in found["row-33"].text
    assert "no chapter explains it" in found["row-34"].text and "not certain" in found["row-34"].text
    assert found["row-35"].find(class_="mh-state").text == "planned"


def test_catalogue_knows_every_family_of_the_real_rows():
    from mhlib import catalog

    assert {paper.family for paper in catalog.papers()} <= set(catalogue_page.FAMILIES)


def test_catalogue_complains_about_an_unknown_family():
    stranger = SimpleNamespace(**{**vars(PAPERS[0]), "family": "unheard-of"})
    with pytest.raises(ValueError, match="no heading for the families unheard-of"):
        catalogue_page.render([stranger], STATUS, {})


def test_ledger():
    failed = CLAIM | {"holds": False, "reason": "too <small>", "anchor": "claim-33-cd"}
    in_part = CLAIM | {"holds": "in part", "reason": "half", "anchor": "claim-33-ef", "paper": 34}
    text = ledger_page.render(PAPERS, [in_part, CLAIM, failed])
    assert "3 claims" in text and "1 hold here, 1 hold in part, and 1 could not" in text
    found = rows(text)
    assert list(found) == ["claim-33-ab", "claim-33-cd", "claim-33-ef"], "by row"
    assert [link["href"] for link in found["claim-33-ab"].find_all("a")] == ["catalogue.html#row-33", "../heads/sharing.html#claim-33-ab"]
    assert "x < y" in found["claim-33-ab"].text and "holds here" in found["claim-33-ab"].text
    assert "not reproduced here" in found["claim-33-cd"].text and "too <small>" in found["claim-33-cd"].text


def test_empty_ledger():
    assert "0 claims" in ledger_page.render(PAPERS, [])
