"""GitHub Pages shows 404.html at the address that was wrong, however deep: its links name the whole path of the site."""

from urllib.parse import urlsplit

from atlas.project import Project
from bs4 import BeautifulSoup


def test_every_link_works_at_any_depth(html):
    root = urlsplit(Project.here().repository.site).path
    page = BeautifulSoup((html / "404.html").read_bytes(), "html.parser")
    addresses = [tag.get("href") or tag.get("src") or tag.get("action") for tag in page.select("[href], [src], [action]")]
    own = [urlsplit(address) for address in addresses if not address.startswith("#") and not urlsplit(address).netloc]
    assert len(own) > 30
    assert not [address for address in own if not address.path.startswith(root) or not (html / address.path.removeprefix(root)).exists()]


def test_it_is_no_page_of_the_book(html):
    assert "404" not in (html / "sitemap.xml").read_text(encoding="utf-8")
    assert "Page not found" not in (html / "searchindex.js").read_text(encoding="utf-8")
