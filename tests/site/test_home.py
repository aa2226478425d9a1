"""The atlas on the first page: reached by keyboard, a list on a phone."""

import pytest

INDEX = "book/index.html"


def test_keyboard_path_through_the_atlas(open_page):
    page = open_page(INDEX)
    page.locator(".mh-atlas").focus()
    wanted = page.evaluate("[...document.querySelectorAll('.mh-atlas a')].map(link => link.href)")
    reached = []
    for _ in wanted:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.href"))
    assert reached == wanted and len(wanted) > 20
    page.keyboard.press("Enter")
    page.wait_for_url(wanted[-1])


def test_a_list_on_a_phone(open_page):
    page = open_page(INDEX, width=375)
    edges = page.evaluate("[...document.querySelectorAll('.mh-atlas a')].map(link => { const box = link.getBoundingClientRect(); return [box.left, box.right, box.height] })")
    assert all(left >= 0 and right <= 375 for left, right, _ in edges)


def test_theme_switch(open_page):
    page = open_page(INDEX)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    themes = set()
    for _ in range(3):
        page.locator("button.theme-switch-button:visible").click()
        themes.add((page.evaluate("document.documentElement.dataset.theme"), page.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert {theme for theme, _ in themes} == {"light", "dark"} and len({colour for _, colour in themes}) == 2 and before in {c for _, c in themes}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_follows_the_system_until_the_reader_chooses_and_prints_on_white(open_page, scheme):
    page = open_page(INDEX, scheme=scheme)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    themes = page.evaluate("['beforeprint', 'afterprint'].map(name => { dispatchEvent(new Event(name)); return document.documentElement.dataset.theme })")
    assert themes == ["light", scheme]


def test_search_and_theme_work_where_storage_is_blocked(browser, html):
    page = browser.new_page()
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.add_init_script("for (const name of ['localStorage', 'sessionStorage']) Object.defineProperty(window, name, { get() { throw new DOMException('blocked', 'SecurityError') }, configurable: true })")
    page.goto((html / "search.html").as_uri() + "?q=notation")
    page.wait_for_selector("#search-results li a")
    page.locator("button.theme-switch-button:visible").click()
    assert not faults
    page.close()
