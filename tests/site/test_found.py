"""What search engines and those who share a page need, and what a page may weigh."""

import gzip
import json
import zipfile
from urllib.parse import urlsplit

import pytest
from atlas import page_extras
from atlas.chapter import chapters
from atlas.notebooks import ARCHIVE
from atlas.project import Project

from parsed import soup

PROJECT = Project.here()
CHAPTERS = [chapter.doc for chapter in chapters(PROJECT)]
KILO = 1000


def head(html, doc):
    return soup(html / f"{doc}.html").head


@pytest.mark.parametrize("doc", PROJECT.documents())
def test_a_page_introduces_itself(html, doc):
    about = head(html, doc)
    said = {tag.get("property") or tag.get("name"): tag.get("content") for tag in about.find_all("meta")}
    assert about.title.text.strip().removeprefix("Heads and Pools").strip() or doc == "book/index"
    assert said["og:title"] and said["og:site_name"] == "Heads and Pools" and said["og:url"] == PROJECT.repository.page(doc)
    assert about.find("link", rel="canonical")["href"] == PROJECT.repository.page(doc)
    card = said["og:image"].removeprefix(PROJECT.repository.site)
    assert (html / card).is_file(), card


def test_descriptions_are_whole_sentences_and_differ(html):
    said = {doc: head(html, doc).find("meta", attrs={"name": "description"})["content"] for doc in PROJECT.documents()}
    assert {doc: text for doc, text in said.items() if not text.endswith((".", "!", "?", '"', "”"))} == {}
    assert {doc: text for doc, text in said.items() if set(text) & set("`$*{")} == {}
    assert len(set(said.values())) == len(said)


@pytest.mark.parametrize("doc", PROJECT.documents())
def test_mathjax_is_loaded_where_there_are_formulas(html, doc):
    page = soup(html / f"{doc}.html")
    assert bool(page.select("script[src*='/mathjax/']")) == bool(page.select("main .math"))


def test_titles_differ(html):
    titles = [head(html, doc).title.text for doc in PROJECT.documents()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("doc", CHAPTERS)
def test_a_chapter_names_its_papers(html, doc):
    data = json.loads(head(html, doc).find("script", type="application/ld+json").text)
    assert len(data.get("citation", [])) == len(page_extras.rows_of(PROJECT, doc))
    assert head(html, doc).find("meta", attrs={"name": "description"})["content"].strip()


def test_sitemap_lists_the_pages(html):
    listed = soup(html / "sitemap.xml").find_all("loc")
    addresses = {tag.text for tag in listed}
    assert {PROJECT.repository.page(doc) for doc in PROJECT.documents()} <= addresses
    assert not any("_modules/" in address or "search" in address for address in addresses)


@pytest.mark.parametrize("doc", CHAPTERS)
def test_a_chapter_weighs_little(html, doc):
    page = html / f"{doc}.html"
    pictures = {(page.parent / tag["src"]).resolve() for tag in soup(page).select("main img[src]") if not urlsplit(tag["src"]).scheme}
    weight = sum(file.stat().st_size for file in {page, *pictures})
    assert weight < 500 * KILO, f"{weight / KILO:.0f} kB"


def test_what_pages_share_weighs_little(browser, html):
    page, loaded = browser.new_page(), []
    page.on("request", lambda request: loaded.append(request.url))
    page.goto((html / "book/how-to-read.html").as_uri())
    page.wait_for_load_state("networkidle")
    page.close()
    files = {html / urlsplit(url).path.partition("_build/html/")[2] for url in loaded if "/_static/" in url and "/mathjax/" not in url}
    assert len(files) > 10 and all(file.is_file() for file in files)
    weight = sum(len(gzip.compress(file.read_bytes())) for file in files)
    assert weight < 700 * KILO, f"{weight / KILO:.0f} kB gzipped"


def test_pages_with_a_history_tell_when_they_were_changed(html):
    if not (PROJECT.root / ".git").exists() or (PROJECT.root / ".git/shallow").exists():
        pytest.skip("this copy has no history")
    assert "Last updated on" in (html / "book/notation.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("doc", CHAPTERS)
def test_a_chapter_leads_to_catalogue_and_library(html, doc):
    footer = soup(html / f"{doc}.html").find(class_="mh-footer")
    rows = {f"#row-{n}" for n in page_extras.rows_of(PROJECT, doc)}
    assert rows <= {"#" + link["href"].partition("#")[2] for link in footer.find_all("a")}
    assert PROJECT.repository.pip in footer.find("pre").text


def test_glossary_words_show_their_sentence(html):
    words = soup(html / "book/heads/sharing.html").select("a.mh-term")
    assert words and all(word["title"] and "reference/glossary.html#term-" in word["href"] for word in words)


def test_all_notebooks_come_in_one_file(html):
    with zipfile.ZipFile(html / ARCHIVE) as archive:
        held = {f"book/{name.partition('/')[2]}": archive.read(name) for name in archive.namelist()}
    assert held == {f"{doc}.ipynb": (PROJECT.notebooks / f"{doc}.ipynb").read_bytes() for doc in CHAPTERS}
    assert f'href="{ARCHIVE.removeprefix("book/")}"' in (html / "book/index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("doc", PROJECT.documents())
def test_a_page_names_its_licence_and_how_to_cite(html, doc):
    foot = soup(html / f"{doc}.html").find(class_="extra_footer")
    licence, cite = (link["href"] for link in foot.find_all("a"))
    assert licence == PROJECT.repository.file("LICENSE") and cite.endswith("#cite-it")
