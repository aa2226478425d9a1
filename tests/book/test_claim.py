"""The claim box: what it takes, what it shows, and what it tells the ledger."""

import numpy as np
import pytest
from bs4 import BeautifulSoup
from mhlib.book import claim
from mhlib.catalog import paper


def made(**changes):
    return claim(**{"paper": 33, "text": "One head for all", "expected": "x 8", "measured": "x 7.9", "holds": True} | changes)


def test_box_shows_both_figures_and_the_verdict_in_words():
    html = made()._repr_mimebundle_()[0]["text/html"]
    text = BeautifulSoup(html, "html.parser").get_text(" ")
    for part in ("One head for all", "x 8", "x 7.9", "holds here", paper(33).title, "row 33"):
        assert part in text


@pytest.mark.parametrize(("holds", "words"), [(True, "holds here"), (False, "not reproduced here"), ("in part", "holds in part"), (np.bool_(True), "holds here")])
def test_verdicts(holds, words):
    box = made(holds=holds, reason="small scale")
    data, metadata = box._repr_mimebundle_()
    assert words in data["text/html"] and words in data["text/plain"]
    assert metadata["text/html"]["mhlib_claim"]["holds"] in (True, False, "in part")
    assert ("small scale" in data["text/html"]) == (words != "holds here")  # one reason for all outcomes may be given


def test_metadata_carries_the_whole_claim():
    record = made(measured=7.9)._repr_mimebundle_()[1]["text/html"]["mhlib_claim"]
    anchor = record.pop("anchor")
    assert record == {"paper": 33, "text": "One head for all", "expected": "x 8", "measured": "7.9", "holds": True, "reason": None}
    assert f'id="{anchor}"' in made()._repr_mimebundle_()[0]["text/html"]


def test_anchors_differ_by_claim_and_stay_from_run_to_run():
    assert made().anchor == made().anchor != made(text="Another").anchor


def test_html_is_escaped():
    html = made(text="<script>alert(1)</script> a < b", expected="<b>", measured="&", holds=False, reason="<i>")._repr_mimebundle_()[0]["text/html"]
    tags = {tag.name for tag in BeautifulSoup(html, "html.parser").find_all()}
    assert tags.isdisjoint({"script", "b", "i"})
    assert "a &lt; b" in html and "&amp;" in html


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"paper": 0}, "row number of the catalogue, 1 to 285"),
    ({"paper": 286}, "row number of the catalogue, 1 to 285"),
    ({"holds": False}, "needs a reason"),
    ({"holds": "in part", "reason": "  "}, "needs a reason"),
    ({"holds": "yes"}, 'True, False or "in part"; got \'yes\''),
    ({"holds": 1}, 'True, False or "in part"; got 1'),
])
def test_errors(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        made(**changes)
