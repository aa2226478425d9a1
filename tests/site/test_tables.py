"""The tables that can be searched, filtered and sorted, from a folder; and without JavaScript."""

import pytest

from parsed import soup

CATALOGUE = "book/reference/catalogue.html"
SHOWN = "[...document.querySelectorAll('#catalogue tbody tr:not([hidden])')].map(row => row.id)"


def rows(html) -> list:
    return soup(html / CATALOGUE).select("#catalogue tbody tr")


def test_search_as_you_type(open_page, html):
    page = open_page(CATALOGUE)
    everything = page.evaluate(SHOWN)
    assert len(everything) == len(rows(html))
    page.fill(".mh-filter input", "grouped query")
    wanted = [row["id"] for row in rows(html) if "grouped" in row.text.lower() and "query" in row.text.lower()]
    assert page.evaluate(SHOWN) == wanted and 0 < len(wanted) < len(everything)
    assert page.inner_text(".mh-filter output") == f"{len(wanted)} of {len(everything)} papers"
    page.click(".mh-filter button[type=reset]")
    page.wait_for_function(f"() => {SHOWN}.length === {len(everything)}")
    assert page.url.endswith("#")


@pytest.mark.parametrize("name, value", [("family", "latent"), ("kind", "theory"), ("state", "works"), ("year", "2024")])
def test_filter_lives_in_the_address(open_page, html, name, value):
    page = open_page(CATALOGUE)
    page.select_option(f".mh-filter select[name={name}]", value)
    wanted = [row["id"] for row in rows(html) if row[f"data-{name}"] == value]
    assert page.evaluate(SHOWN) == wanted and wanted
    assert page.url.endswith(f"#{name}={value}")
    page.goto(page.url)
    page.reload()
    assert page.evaluate(SHOWN) == wanted, "a shared address opens the same rows"


def test_words_live_in_the_address_beside_a_filter(open_page, html):
    page = open_page(f"{CATALOGUE}")
    page.fill(".mh-filter input", "pool")
    page.select_option(".mh-filter select[name=state]", "works")
    shown = page.evaluate(SHOWN)
    page.reload()
    page.wait_for_load_state("load")
    assert page.input_value(".mh-filter input") == "pool" and page.evaluate(SHOWN) == shown
    page.select_option(".mh-filter select[name=state]", "planned")
    wanted = [row["id"] for row in rows(html) if row["data-state"] == "planned" and "pool" in row.text.lower()]
    assert page.evaluate(SHOWN) == wanted and wanted


@pytest.mark.parametrize("address", ["#state=nope", "#sort=99", "#sort=0x2", "#sort=+2", "#size=7"])
def test_what_an_address_says_wrongly_is_as_at_the_start(open_page, html, address):
    page = open_page(CATALOGUE)
    page.evaluate("address => { location.hash = address }", address)
    page.wait_for_function("address => location.hash === address", arg=address)
    assert page.input_value(".mh-filter select[name=state]") == "" and page.locator("#catalogue th[aria-sort]").count() == 0
    assert page.evaluate(SHOWN) == [row["id"] for row in rows(html)]


def test_an_anchor_elsewhere_on_the_page_leaves_the_filter(open_page):
    page = open_page(CATALOGUE)
    page.select_option(".mh-filter select[name=state]", "works")
    shown = page.evaluate(SHOWN)
    page.evaluate("location.hash = '#main-content'")
    page.wait_for_timeout(100)
    assert page.evaluate(SHOWN) == shown


def test_sort_by_a_column_and_back(open_page, html):
    page = open_page(CATALOGUE)
    year = page.locator("#catalogue th", has_text="Year")
    year.get_by_role("button").press("Enter")
    years = [int(row["data-year"]) for row in rows(html)]
    shown = "[...document.querySelectorAll('#catalogue tbody tr')].map(row => Number(row.dataset.year))"
    assert page.evaluate(shown) == sorted(years) and year.get_attribute("aria-sort") == "ascending"
    year.get_by_role("button").press("Enter")
    assert page.evaluate(shown) == sorted(years, reverse=True) and page.url.endswith("#sort=-2")


def test_a_link_to_a_row_shows_it_whatever_was_filtered(open_page):
    page = open_page(CATALOGUE)
    page.fill(".mh-filter input", "no row holds this")
    assert page.evaluate(SHOWN) == []
    page.evaluate("location.hash = '#row-285'")
    page.wait_for_function("() => !document.getElementById('row-285').hidden")
    assert page.locator("#row-285").is_visible()


def test_without_javascript_it_is_a_plain_table(browser, html):
    page = browser.new_page(java_script_enabled=False)
    page.goto((html / CATALOGUE).as_uri())
    assert not page.locator(".mh-filter").is_visible()
    assert page.locator("#catalogue tbody tr:visible").count() == len(rows(html))
    page.close()


def test_ledger_filters_by_verdict(open_page):
    page = open_page("book/reference/ledger.html")
    page.select_option(".mh-filter select[name=verdict]", "True")
    verdicts = page.evaluate("[...document.querySelectorAll('#ledger tbody tr:not([hidden])')].map(row => row.cells[4].textContent)")
    assert verdicts and all("holds here" in verdict for verdict in verdicts)
