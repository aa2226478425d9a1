"""Every page, as a reader sees it: at desk and phone width, in light and dark."""

import pytest
from axe_playwright_python.sync_playwright import Axe

PHONE = 375
# Preloading would fetch stylesheets again, which a page opened from a folder may not do.
AXE = {"preload": False, "resultTypes": ["violations"]}
#: Code without its colours, and formulas without their drawing.
PLAIN = """document.querySelectorAll(".highlight pre").forEach((pre) => { pre.textContent = pre.textContent });
document.querySelectorAll("mjx-container").forEach((formula) => formula.replaceChildren())"""


def test_page(visit, page_name, audit):
    page = visit(page_name)
    faults = [*math(page), *pictures(page), *too_wide(page), *accessibility(page, audit)]
    assert not faults, "\n".join([page_name, *faults])


def math(page):
    formulas, drawn = page.evaluate("[document.querySelectorAll('.math').length, document.querySelectorAll('.math mjx-container').length]")
    if drawn < formulas:
        yield f"{formulas - drawn} of {formulas} formulas were not drawn"
    yield from page.evaluate("[...document.querySelectorAll('mjx-merror, [data-mjx-error]')].map(e => 'formula error: ' + e.textContent)")


def pictures(page):
    """Sphinx writes the file's path where a picture has no text alternative, which axe takes for one."""
    for kind, text in page.evaluate(
        "[...document.querySelectorAll('main img, main svg')].filter(e => !e.closest('[aria-hidden=true], mjx-container, button'))"
        ".map(e => [e.outerHTML.slice(0, 120), e.tagName === 'IMG' ? e.alt : e.getAttribute('aria-label')])"
    ):
        if not text or not text.strip():
            yield f"a picture without a text alternative: {kind}"
        elif "/" in text and " " not in text.strip():
            yield f"a picture whose text alternative is a path: {text}"


def accessibility(page, audit):
    if audit == "none":
        return
    if audit != "full":
        page.evaluate(PLAIN)
    page.add_style_tag(content="* { transition: none !important }")  # colours halfway between two themes are nobody's fault
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    yield from violations(page, "light")
    if audit != "light":
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        yield from violations(page, "dark", runOnly=["color-contrast"])  # nothing else depends on colours


def violations(page, theme, **options):
    """What axe finds to be serious or critical."""
    for violation in Axe().run(page, options=AXE | options).response["violations"]:
        if violation["impact"] in ("serious", "critical"):
            where = "; ".join(" ".join(node["target"][0] if isinstance(node["target"][0], list) else [node["target"][0]]) for node in violation["nodes"][:3])
            yield f"{theme}: {violation['id']}, {violation['help']}: {where}"


def too_wide(page):
    desk = page.viewport_size
    page.set_viewport_size({"width": PHONE, "height": 800})
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # scripts follow the size
    width = page.evaluate("document.documentElement.scrollWidth")
    if width > PHONE:
        yield f"at {PHONE} pixels the page is {width} wide: {', '.join(page.evaluate(STICKING_OUT, PHONE))}"
    page.set_viewport_size(desk)


# What sticks out without lying in something that scrolls by itself.
STICKING_OUT = """phone => {
  const contained = (e) => e && e !== document.body && (getComputedStyle(e).overflowX !== "visible" || contained(e.parentElement));
  return [...document.querySelectorAll("main *")]
    .filter((e) => e.getBoundingClientRect().right > phone + 1 && !contained(e.parentElement))
    .map((e) => e.outerHTML.slice(0, 80)).slice(0, 5);
}"""


def test_first_page_forwards(open_page):
    page = open_page("index.html")
    page.wait_for_url("**/book/index.html")
    assert page.title().startswith("Heads and Pools")


@pytest.mark.parametrize("word", ["notation", "catalogue"])
def test_search_finds_pages_without_a_server(open_page, word):
    page = open_page(f"search.html?q={word}")
    page.wait_for_selector("#search-results li a")
    assert word in page.inner_text("#search-results").lower()
