"""No link inside the site leads nowhere, and the generated pages show what was computed."""

import json
from urllib.parse import parse_qsl, unquote, urlsplit

from atlas import generate
from atlas.chapter import chapters
from atlas.project import Project

from parsed import anchors, choices, soup

PROJECT = Project.here()


def test_links(html, page_name):
    page = html / page_name
    broken = []
    for tag in soup(page).find_all(["a", "link", "img", "script"]):
        target = urlsplit(tag.get("href") or tag.get("src") or "")
        if target.scheme or target.netloc or tag.get("rel") == ["canonical"]:
            continue
        file = (page.parent / unquote(target.path)).resolve() if target.path else page
        if not file.exists():
            broken.append(f"{target.geturl()}: there is no {file}")
        elif "=" in target.fragment:
            broken += [f"{target.geturl()}: the page cannot be filtered by {choice}" for choice in parse_qsl(target.fragment) if choice not in choices(file)]
        elif target.fragment and file.suffix == ".html" and unquote(target.fragment) not in anchors(file):
            broken.append(f"{target.geturl()}: the page has no such anchor")
    assert not broken, "\n".join([page_name, *broken])


def test_every_page_of_the_contents_is_built(html):
    missing = [doc for doc in PROJECT.documents() if not (html / f"{doc}.html").is_file()]
    assert not missing


def test_no_page_is_left_over(html):
    known = set(PROJECT.documents())
    built = {page.relative_to(html).with_suffix("").as_posix() for page in (html / "book").rglob("*.html")}
    assert built == known


def test_catalogue_lists_every_row(html):
    from mhlib import catalog

    shown = anchors(html / "book/reference/catalogue.html")
    assert {f"row-{paper.n}" for paper in catalog.papers()} <= shown


def test_ledger_lists_every_claim_and_each_can_be_found_where_it_was_computed(html):
    claims = json.loads((PROJECT.build / "ledger.json").read_text(encoding="utf-8"))
    shown = anchors(html / "book/reference/ledger.html")
    for claim in claims:
        assert claim["anchor"] in shown, claim
        assert claim["anchor"] in anchors(html / f"{claim['doc']}.html"), claim


def test_every_chapter_opens_on_colab_and_can_be_downloaded(html):
    for chapter in chapters(PROJECT):
        links = {tag["href"] for tag in soup(html / f"{chapter.doc}.html").find_all("a", href=True)}
        colab = next(link for link in links if link.startswith("https://colab.research.google.com/github/"))
        assert colab == PROJECT.repository.colab(chapter.doc)
        assert colab.partition("/blob/notebooks/")[2] == (PROJECT.notebooks / f"{chapter.doc}.ipynb").relative_to(PROJECT.notebooks).as_posix()
        served = html / "_sources" / f"{chapter.doc}.ipynb"
        assert served.read_bytes() == (PROJECT.notebooks / f"{chapter.doc}.ipynb").read_bytes()
        assert any(link.endswith(f"{chapter.doc}.ipynb") and "://" not in link for link in links)


def test_addresses_come_from_the_config(html):
    canonical = soup(html / "book/notation.html").find("link", rel="canonical")["href"]
    assert canonical == PROJECT.repository.page("book/notation")
    assert "%REPOSITORY%" not in (html / "book/index.html").read_text(encoding="utf-8")


def test_only_pages_with_a_source_can_be_edited(html):
    for doc in PROJECT.documents():
        edits = [tag["href"] for tag in soup(html / f"{doc}.html").find_all("a", href=True) if f"/edit/{PROJECT.repository.branch}/" in tag["href"]]
        expected = [] if generate.is_generated(doc) else [f"{PROJECT.repository.url}/edit/{PROJECT.repository.branch}/{doc}.md"]
        assert edits == expected
