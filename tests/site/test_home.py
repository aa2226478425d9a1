"""The atlas on the first page: reached by keyboard, a list on a phone."""

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
