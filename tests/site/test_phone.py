"""What is wider than a phone scrolls by itself, says so, and can be reached by keyboard."""

CHAPTER = "book/heads/latent.html"
WIDE = "selector => [...document.querySelectorAll(selector)].filter(box => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1).map(box => [box.classList.contains('mh-scrolls'), box.tabIndex])"
SIZES = "[...document.querySelectorAll('.mhlib-figure svg text')].map(text => text.getBoundingClientRect().height)"


def test_wide_boxes_hint_at_more(open_page):
    page = open_page(CHAPTER, width=375)
    for selector in ("main pre", ".mhlib-figure", "main mjx-container[display=true]"):
        page.wait_for_function("selector => document.querySelector(`:is(${selector}).mh-scrolls`)", arg=selector)
        found = page.evaluate(WIDE, selector)
        assert found and all(hints and tab == 0 for hints, tab in found), selector
    page.set_viewport_size({"width": 1440, "height": 900})
    page.wait_for_function("() => !document.querySelector('.mhlib-figure.mh-scrolls')")


def test_figures_stay_legible(open_page):
    heights = open_page(CHAPTER, width=375).evaluate(SIZES)
    assert heights and min(heights) >= 8
