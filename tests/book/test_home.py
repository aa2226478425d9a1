"""The first page's atlas shows every mechanism where it belongs; what is new comes from the history."""

import subprocess
from types import SimpleNamespace

import pytest
from atlas import home, news
from atlas.api import Api, Page
from atlas.project import Project
from atlas.shown import shown
from bs4 import BeautifulSoup


def mechanism(name, family="kv-sharing", stage="project", papers=(33,), **rest):
    checked = {"reductions": (), "peers": ()}
    return SimpleNamespace(**{"name": name, "family": family, "stage": stage, "papers": papers, "path": f"mhlib.heads.{name}", **checked, **rest})


def row(state, anchor=None):
    return SimpleNamespace(state=state, anchor=anchor)


@pytest.fixture
def drawn():
    named = [mechanism("one_head"), mechanism("two_heads", stage="score, merge", papers=(34,)), mechanism("plain", "core", "", (), peers=("torch",))]
    api = Api((Page("mhlib.heads", "", {"two_heads": "mhlib.heads.two"}),), {m.name: m for m in named})
    papers = [SimpleNamespace(n=n, family="kv-sharing") for n in (33, 34, 35)]
    explained = {"doc": "book/heads/sharing", "anchor": "row-33", "title": "One"}
    status = {33: row("works", explained), 34: row("in progress"), 35: row("planned")}
    return BeautifulSoup(home.atlas(papers, status, api, {"plain": "book/foundations/first"}), "html.parser")


def test_a_cell_leads_to_the_chapter_or_else_to_the_description(drawn):
    links = {link.text: link["href"] for link in drawn.select("a.mh-cell")}
    assert links == {"one_head, works": "heads/sharing.html#row-33", "two_heads, in progress": "reference/api/heads.html#mhlib.heads.two_heads", "plain, works": "foundations/first.html"}


def test_a_mechanism_without_a_row_works_when_it_is_checked_and_run():
    checked, unchecked = mechanism("plain", papers=(), peers=("torch",)), mechanism("plain", papers=())
    states = [home.state(one, {}, doc) for one in (checked, unchecked) for doc in ("book/a", None)]
    assert states == ["works", "in progress", "in progress", "in progress"]


def test_cells_stand_below_their_stage(drawn):
    assert drawn.find(class_="mh-whole")["colspan"] == "6"
    where = {cell.text.partition(",")[0]: cell.find_parent("td")["data-label"] for cell in drawn.select(".mh-cell")}
    assert where == {"one_head": "project", "two_heads": "several", "plain": "as a whole"}


def test_planned_rows_lead_to_the_catalogue(drawn):
    planned = drawn.find("a", href="reference/catalogue.html#family=kv-sharing&state=planned")
    assert planned.text == "1 planned"


@pytest.mark.parametrize("stage, column", [("bias", "score"), ("queries, project", "project"), ("merge", "merge"), ("", "as a whole"), ("attend", "as a whole")])
def test_hooks_stand_with_a_stage(stage, column):
    assert home.column(stage) == column


def test_real_mechanisms_all_appear():
    from mhlib import catalog

    api = Api.of(Project.here())
    text = home.atlas(catalog.papers(), catalog.status(), api, shown(Project.here()))
    assert len(BeautifulSoup(text, "html.parser").select(".mh-cell")) == len(api.mechanisms)


def test_news_name_what_was_added_last(book):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=book.root, check=True, capture_output=True)

    book.contents("a")
    assert "without the repository's history" in news.page(book.project, "book/index")
    git("init")
    book.chapter("a", "1")
    git("add", "book/a.md")
    git("commit", "-m", "a", "--date", "2020-02-02")
    assert '<a class="mh-card" href="a.html">' in news.page(book.project, "book/index")
    book.chapter("a", "2")
    git("commit", "-am", "changed")
    assert news.page(book.project, "book/index").count("<strong>Chapter a</strong>") == 1
    (book.root / ".git/shallow").write_text(subprocess.run(["git", "rev-parse", "HEAD"], cwd=book.root, check=True, capture_output=True, text=True).stdout)
    assert "without the repository's history" in news.page(book.project, "book/index"), "the end of a history tells nothing"
