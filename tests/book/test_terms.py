"""Words of the glossary become links with their sentence: once a page, in prose alone."""

from types import SimpleNamespace

import pytest
from atlas import terms
from docutils import nodes

SAID = {"head": ("term-head", "One of several."), "multi head": ("term-multi-head", "Several.")}


def page(*children):
    section = nodes.section("", nodes.title("", "A head"), *children)
    return section


def linked(tree):
    builder = SimpleNamespace(format="html", get_relative_uri=lambda *_: "../reference/glossary.html")
    env = SimpleNamespace(all_docs={terms.GLOSSARY: 0}, atlas_terms=SAID)
    terms.link_terms(SimpleNamespace(builder=builder, env=env), tree, "a")
    return [(link.astext(), link["refuri"], link["reftitle"]) for link in tree.findall(nodes.reference) if "mh-term" in link["classes"]]


def test_first_occurrence_alone():
    tree = page(nodes.paragraph("", "Heads, and a head; a header; a multi head."))
    assert linked(tree) == [
        ("Heads", "../reference/glossary.html#term-head", "One of several."),
        ("multi head", "../reference/glossary.html#term-multi-head", "Several."),
    ]
    assert tree.astext().endswith("Heads, and a head; a header; a multi head.")


@pytest.mark.parametrize("wrap", [nodes.literal, nodes.math, nodes.reference])
def test_not_in_code_formulas_or_links(wrap):
    assert linked(page(nodes.paragraph("", "", wrap("head", "head")))) == []


def test_not_in_titles():
    assert linked(page()) == []


def test_not_in_the_title_of_a_cited_work():
    assert linked(page(nodes.citation("", nodes.label("", "1"), nodes.paragraph("", "A head.")))) == []
