"""The comparing pages redraw their numbers for another size, and say in the chart what the table says."""

import json

import pytest

from parsed import soup

PAGES = {"book/reference/compare-heads.html": "head-costs", "book/reference/compare-pools.html": "pool-costs"}
CELLS = "name => [...document.querySelectorAll(`#${name} tbody tr`)].map(row => [...row.cells].slice(1).map(cell => cell.textContent))"
KEYS = "name => Object.fromEntries([...document.querySelectorAll(`#${name} tbody tr`)].map(row => [row.id, [...row.cells].slice(1).map(cell => Number(cell.dataset.key))]))"


@pytest.mark.parametrize("name, table", PAGES.items())
def test_script_writes_what_the_page_came_with(open_page, html, name, table):
    came = soup(html / name).select(f"#{table} tbody tr")
    page = open_page(name)
    assert page.evaluate(CELLS, table) == [[cell.text for cell in row.find_all("td")] for row in came] != []


@pytest.mark.parametrize("name, table", PAGES.items())
def test_another_size_shows_its_own_numbers(open_page, html, name, table):
    counts = json.loads(soup(html / name).find("script", class_="mh-counts").text)
    page = open_page(name)
    page.select_option("select[name=size]", index=2)
    page.select_option("select[name=context]", index=3)
    wanted = {row: one["numbers"][2][3] for row, one in counts.items()}
    assert page.evaluate(KEYS, table) == wanted
    labels = page.evaluate("name => [...document.querySelectorAll(`#${name} .mh-options`)].map(label => [label.closest('tr').id, label.textContent])", table)
    assert labels and all(text == counts[row]["options"][2] != counts[row]["options"][0] or "groups" not in text and "kv" not in text for row, text in labels)
    page.reload()
    assert page.evaluate(KEYS, table) == wanted, "the address keeps the choice"


def test_chart_draws_the_chosen_measure_of_the_rows_that_are_shown(open_page):
    page = open_page("book/reference/compare-heads.html")
    page.select_option("select[name=measure]", label="cache bytes")
    page.fill(".mh-filter input", "latent")
    said = page.get_attribute(".mh-chart", "aria-label")
    assert said.startswith("cache bytes, from 0: MultiHeadLatentAttention ") and ";" not in said


def test_table_sorts_by_its_numbers(open_page):
    page = open_page("book/reference/compare-heads.html")
    page.locator("#head-costs th", has_text="cache bytes").get_by_role("button").click()
    page.select_option("select[name=context]", index=1)
    keys = [row[3] for row in page.evaluate(KEYS, "head-costs").values()]
    assert keys == sorted(keys)
