"""The box for differences between paper and code: what it takes, what it shows, what it tells the page that collects them."""

import pytest
from atlas import differences_page
from bs4 import BeautifulSoup
from mhlib.book import difference
from mhlib.catalog import paper, papers


def made(**changes):
    parts = {"stated": "weights differ", "found": "<all> equal", "shown": "spread 0.0"}
    return difference(1, "The query weights are uniform", **parts | changes)


def test_box_shows_every_part():
    data, metadata = made()._repr_mimebundle_()
    for shown in (BeautifulSoup(data["text/html"], "html.parser").get_text(" "), data["text/plain"]):
        for part in ("The query weights are uniform", "weights differ", "<all> equal", "spread 0.0", paper(1).title):
            assert part in shown
    record = metadata["text/html"]["mhlib_difference"]
    assert record["paper"] == 1 and f'id="{record["anchor"]}"' in data["text/html"]


@pytest.mark.parametrize("part", ["stated", "found", "shown"])
def test_no_part_may_be_empty(part):
    with pytest.raises(ValueError, match=f"{part} is empty"):
        made(**{part: " "})


def test_the_row_must_exist():
    with pytest.raises(ValueError, match="1 to 285, got 999"):
        difference(999, "x", stated="a", found="b", shown="c")


def test_the_page_collects_them():
    record = {**made()._repr_mimebundle_()[1]["text/html"]["mhlib_difference"], "doc": "book/pooling/many-queries", "cell": 3}
    html = differences_page.render(papers(), [record])
    assert "All 1 are gathered here" in html and "&lt;all&gt; equal" in html and f'many-queries.html#{record["anchor"]}' in html
    assert "None has been recorded yet" in differences_page.render(papers(), [])
