"""The built site in a headless Chromium, opened from its folder as a reader without a network would."""

import os
from pathlib import Path

import pytest
from atlas import browser as chromium
from atlas.chapter import chapters
from atlas.project import Project
from playwright.sync_api import sync_playwright

HTML = Path(__file__).resolve().parents[2] / "_build/html"
# The root's index.html only forwards to the first page, and 404.html works on the published site only (test_not_found.py).
PAGES = sorted({page.relative_to(HTML).as_posix() for page in HTML.rglob("*.html") if "_static" not in page.parts} - {"index.html", "404.html"})


def pytest_generate_tests(metafunc):
    if "page_name" in metafunc.fixturenames:
        metafunc.parametrize("page_name", PAGES)


@pytest.fixture(scope="session")
def html() -> Path:
    assert (HTML / "index.html").is_file(), "the site is not built: run `make book` first"
    return HTML


CHAPTERS = {f"{chapter.doc}.html" for chapter in chapters(Project.here())}


def kind(name: str) -> str:
    """Pages of one kind are laid out alike; every other page is a kind of its own."""
    folders = ("_modules/", "book/reference/api/")
    return "chapter" if name in CHAPTERS else next((folder for folder in folders if name.startswith(folder)), name)


FIRST_OF_KIND = {kind(name): name for name in reversed(PAGES)}


@pytest.fixture
def audit(page_name) -> str:
    """How closely axe looks. One page of each kind is audited as it is and in both schemes. Chapters, whose outputs are their own, are so, too,
    but without what differs least and takes the most time, highlighted code and drawn formulas; other pages in one scheme, further source
    listings not at all. With EVERY_PAGE=1, as at night, all pages are audited as they are."""
    if os.environ.get("EVERY_PAGE") or FIRST_OF_KIND[kind(page_name)] == page_name:
        return "full"
    return "plain" if page_name in CHAPTERS else "none" if page_name.startswith("_modules/") else "light"


@pytest.fixture(scope="session")
def browser():
    found = chromium.find()
    assert found, chromium.HOW
    with sync_playwright() as playwright:
        # A container may run as root without the user namespaces that Chromium's sandbox needs. It opens local files only.
        yield playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])


@pytest.fixture(scope="session")
def tab(browser):
    """One page for all that only look: a new one for each would take longer than most pages do."""
    return browser.new_page()


@pytest.fixture
def visit(tab, html):
    """Go to a page of the site in the tab; complains at the end as open_page does."""
    faults, unwatch = [], []

    def go(name: str, width: int = 1280):
        unwatch.append(watch(tab, name, faults))
        tab.set_viewport_size({"width": width, "height": 900})
        load(tab, html, name)
        return tab

    yield go
    for undo in unwatch:
        undo()
    assert not faults, "\n".join(faults)


@pytest.fixture
def open_page(browser, html):
    """Open a page of the site by itself; complains at the end about console errors and about requests that left the site."""
    opened, faults = [], []

    def open_(name: str, width: int = 1280, scheme: str = "light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        watch(page, name, faults)
        load(page, html, name)
        opened.append(page)
        return page

    yield open_
    for page in opened:
        page.close()
    assert not faults, "\n".join(faults)


def load(page, html: Path, name: str) -> None:
    path, _, query = name.partition("?")
    page.goto((html / path).as_uri() + ("?" + query if query else ""))
    page.wait_for_function("() => window.MathJax?.startup?.promise.then(() => true) ?? true")


def watch(page, name: str, faults: list[str]):
    """Note what goes wrong on a page from now on; returns what ends that."""
    listeners = {
        "console": lambda message: message.type == "error" and faults.append(f"{name}: console: {message.text}"),
        "pageerror": lambda error: faults.append(f"{name}: script: {error}"),
        # A page that is left while it loads has not failed.
        "requestfailed": lambda request: request.failure == "net::ERR_ABORTED" or faults.append(f"{name}: not loaded: {request.url}"),
        "request": lambda request: request.url.startswith(("file:", "data:", "blob:")) or faults.append(f"{name}: left the site: {request.url}"),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    return lambda: [page.remove_listener(event, listener) for event, listener in listeners.items()]
