"""Figures are inline SVG that follows the page's colours and has a text alternative."""

import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import matplotlib.pyplot as plt
import pytest
from mhlib.book import figure, style


@pytest.fixture(autouse=True)
def own_settings():
    with matplotlib.rc_context():
        matplotlib.use("agg")
        style()
        yield
    plt.close("all")


def drawn(**arguments):
    fig, ax = plt.subplots()
    ax.plot([0, 1], [0, 1], label="black line")
    ax.plot([0, 1], [1, 0], color="black")
    ax.imshow([[0, 1], [1, 0]])
    ax.set_xlabel("tokens")
    ax.legend()
    return figure(fig, **{"alt": "A line rises from 0 to 1 & <another> falls."} | arguments)


def test_it_is_one_valid_svg_with_role_and_label():
    root = ElementTree.fromstring(drawn().svg)
    assert root.tag.endswith("svg")
    assert root.get("role") == "img"
    assert root.get("aria-label") == "A line rises from 0 to 1 & <another> falls."
    assert root.get("viewBox") and "max-width:100%" in root.get("style") and root.get("width") is None


def test_ink_takes_the_colour_of_the_page():
    svg = drawn().svg
    assert "currentColor" in svg
    assert not re.search(r": #(000000|010203|ffffff)", svg)
    assert ">black line<" in svg and ">tokens<" in svg, "text stays text"
    assert "<style" not in svg, "a rule in there would reach the whole page"


def test_ids_are_unique_on_a_page_and_references_follow():
    first, second = drawn().svg, drawn().svg
    ids = re.findall(r'\bid="([^"]+)"', first + second)
    assert len(ids) == len(set(ids))
    for svg in (first, second):
        own = set(re.findall(r'\bid="([^"]+)"', svg))
        assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg)) <= own


def test_it_closes_the_figure_and_shows_the_caption():
    html = drawn(caption="Scores < 1")._repr_mimebundle_()["text/html"]
    assert not plt.get_fignums()
    assert "<figcaption" in html and "Scores &lt; 1" in html


def test_plain_text_is_the_alternative():
    assert drawn()._repr_mimebundle_()["text/plain"].startswith("Figure: A line rises")


@pytest.mark.parametrize("alt", ["", "   "])
def test_a_figure_without_words_is_an_error(alt):
    fig, _ = plt.subplots()
    with pytest.raises(ValueError, match="needs alt"):
        figure(fig, alt)


def test_lines_differ_by_more_than_colour():
    fig, ax = plt.subplots()
    lines = [ax.plot([0, 1], [0, n])[0] for n in range(6)]
    assert len({str(line.get_linestyle()) + str(line._dash_pattern) for line in lines}) == 6
    assert len({line.get_color() for line in lines}) == 6
