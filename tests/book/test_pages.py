"""The generated pages show every row and every claim, escaped, with links that lead there."""

from types import FunctionType, SimpleNamespace

import pytest
from atlas import catalogue_page, ledger_page
from atlas.api import Api, Page
from atlas.families import FAMILIES, PART_OF
from atlas.project import Project
from bs4 import BeautifulSoup

def paper(n, **fields):
    return SimpleNamespace(**{"n": n, "url": None, "confidence": "high", "kind": "operator", "also": (), **fields})


def row(state, tests, *missing, mechanisms=(), claims=()):
    return SimpleNamespace(state=state, tests=tests, missing=missing, mechanisms=mechanisms, claims=claims)


PAPERS = [
    paper(33, title="Fast <decoding>", year=2019, url="https://arxiv.org/abs/1911.02150", family="kv-sharing", also=("systems",), mechanism="One & shared"),
    paper(34, title="Latent", year=2024, confidence="low", family="latent", mechanism="Compressed"),
    paper(35, title="Later", year=2025, family="latent", kind="theory", mechanism="Planned one"),
]
CLAIM = {"paper": 33, "text": "x < y", "expected": "8", "measured": "7.9", "holds": True, "reason": None, "doc": "book/heads/sharing", "cell": 3, "anchor": "claim-33-ab"}
STATUS = {
    33: row("works", "passed", mechanisms=("one",), claims=(CLAIM,)),
    34: row("in progress", "not run here", "no chapter explains it", "no claim in the ledger"),
    35: row("planned", "not run here", "no registered mechanism"),
}
ANCHORS = {"33": {"doc": "book/heads/sharing", "anchor": "row-33", "title": "One head"}}
API = Api((Page("mhlib.heads", "sharing", {"One": "mhlib.heads.sharing.one"}),), {"one": SimpleNamespace(path="mhlib.heads.One")})


def rows(markdown: str) -> dict:
    return {row["id"]: row for row in BeautifulSoup(markdown, "html.parser").find_all("tr", id=True)}


def test_catalogue():
    text = catalogue_page.render(PAPERS, STATUS, ANCHORS, API)
    found = rows(text)
    assert list(found) == ["row-33", "row-34", "row-35"]
    assert "3 papers" in text and "works 1, in progress 1, planned 1" in text
    links = [link["href"] for link in found["row-33"].find_all("a")]
    assert links == [
        "https://arxiv.org/abs/1911.02150", "../heads/sharing.html#row-33", "api/heads-sharing.html#mhlib.heads.One", "ledger.html#claim-33-ab"
    ]  # fmt: skip
    assert found["row-33"]["data-family"] == "kv-sharing" and found["row-35"]["data-kind"] == "theory"
    assert "Fast <decoding>" in found["row-33"].text and "One & shared" in found["row-33"].text
    assert "no chapter explains it" in found["row-34"].text and "not certain" in found["row-34"].text
    assert found["row-35"].find(class_="mh-state").text == "planned"
    assert found["row-33"].find(class_="mh-sign").text == "✓  holds here"


def test_catalogue_knows_every_family_of_the_real_rows():
    from mhlib import catalog

    assert {paper.family for paper in catalog.papers()} <= set(FAMILIES) == set(PART_OF)


def test_catalogue_complains_about_an_unknown_family():
    stranger = SimpleNamespace(**{**vars(PAPERS[0]), "family": "unheard-of"})
    with pytest.raises(ValueError, match="no heading for the families unheard-of"):
        catalogue_page.render([stranger], STATUS, {}, API)


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


def test_ledger_counts_by_family_in_a_chart_that_says_it_in_words():
    text = ledger_page.render(PAPERS, [CLAIM, CLAIM | {"holds": False, "reason": "small", "anchor": "x", "paper": 34}])
    said = BeautifulSoup(text, "html.parser").find(class_="mh-chart")["aria-label"]
    assert "Sharing keys and values: 1 holds here, 0 holds in part, 0 not reproduced here; Latent attention: 0 holds here" in said


def test_every_public_name_has_one_place():
    api = Api.of(Project.here())
    paths = [f"{page.package}.{name}" for page in api.pages for name in page.names]
    assert len(paths) == len(set(paths))
    assert {m.path for m in api.mechanisms.values()} <= set(paths) | {m.path for m in api.mechanisms.values() if m.path.startswith("mhlib.kernels")}


def test_what_the_package_itself_offers_has_a_place():
    import mhlib

    own = {name for name in dir(mhlib) if isinstance(getattr(mhlib, name), FunctionType | type) and name not in ("submodules", "unknown")}
    assert own == set(mhlib.__all__) | ({"__getattr__", "__dir__"} & own)
    assert {f"mhlib.{name}" for name in mhlib.__all__} <= set(Api.of(Project.here()).addresses)


def test_empty_ledger():
    assert "0 claims" in ledger_page.render(PAPERS, [])
