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
def audits(page_name) -> set[str]:
    """What axe looks at. Contrast takes most of the time and colours depend on the kind of page, so one page of each kind is audited
    in full and chapters, whose outputs are their own, without their code. With EVERY_PAGE=1, as at night, all pages are audited in full."""
    if os.environ.get("EVERY_PAGE") or FIRST_OF_KIND[kind(page_name)] == page_name:
        return {"structure", "contrast", "code"}
    return {"structure", "contrast"} if page_name in CHAPTERS else set() if page_name.startswith("_modules/") else {"structure"}


@pytest.fixture(scope="session")
def browser():
    found = chromium.find()
    assert found, chromium.HOW
    with sync_playwright() as playwright:
        # A container may run as root without the user namespaces that Chromium's sandbox needs. It opens local files only.
        yield playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])


@pytest.fixture
def open_page(browser, html):
    """Open a page of the site; complains at the end about console errors and about requests that left the site."""
    opened, faults = [], []

    def open_(name: str, width: int = 1280, scheme: str = "light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: message.type == "error" and faults.append(f"{name}: console: {message.text}"))
        page.on("pageerror", lambda error: faults.append(f"{name}: script: {error}"))
        # A page that is left while it loads has not failed.
        page.on("requestfailed", lambda request: request.failure == "net::ERR_ABORTED" or faults.append(f"{name}: not loaded: {request.url}"))
        page.on("request", lambda request: request.url.startswith(("file:", "data:", "blob:")) or faults.append(f"{name}: left the site: {request.url}"))
        path, _, query = name.partition("?")
        page.goto((html / path).as_uri() + ("?" + query if query else ""))
        page.wait_for_function("() => window.MathJax?.startup?.promise.then(() => true) ?? true")
        opened.append(page)
        return page

    yield open_
    for page in opened:
        page.close()
    assert not faults, "\n".join(faults)
