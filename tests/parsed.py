"""Built pages, parsed; each once in a process, since parsing a long one takes a second."""

from functools import cache
from pathlib import Path

from bs4 import BeautifulSoup


@cache
def soup(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_bytes(), "lxml-xml" if page.suffix == ".xml" else "lxml")


@cache
def anchors(page: Path) -> set[str]:
    return {tag.get("id") or tag.get("name") for tag in soup(page).find_all(lambda tag: tag.has_attr("id") or tag.has_attr("name"))}


@cache
def choices(page: Path) -> set[tuple[str, str]]:
    """What the tables of a page can be filtered by."""
    return {(select["name"], option["value"]) for select in soup(page).select(".mh-filter select") for option in select.find_all("option")}
