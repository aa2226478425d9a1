"""A card shows the first figure, the title, the opening words and the verdicts of a chapter."""

import json

import nbformat
from atlas import cards
from atlas.chapter import Chapter
from atlas.references import References
from bs4 import BeautifulSoup

SVG = '<figure class="mhlib-figure"><svg role="img" aria-label="said" viewBox="0 0 1 1"><g id="f1"/><use href="#f1"/></svg></figure>'
TEXT = "---\nkernelspec:\n  name: python3\n---\n\n# A title\n\nOne *short* sentence. A second with $n$ and {doc}`words <a>` that runs on long enough to be an opening of twenty words or so. A third.\n\nMore.\n"


def test_card(book):
    book.contents("a")
    (book.root / "book/a.md").write_text(TEXT)
    chapter = Chapter(book.project, "book/a")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=[nbformat.v4.new_output("display_data", {"text/html": html}) for html in ("<p>a</p>", SVG)])])
    chapter.executed.parent.mkdir(parents=True)
    nbformat.write(notebook, chapter.executed)
    ledger = [{"doc": "book/a", "holds": True}, {"doc": "book/a", "holds": "in part"}, {"doc": "book/b", "holds": False}]
    (book.project.build / "ledger.json").write_text(json.dumps(ledger))
    card = BeautifulSoup(cards.card(chapter, "book/index", "new", References.of(book.project)), "html.parser").a
    assert card["href"] == "a.html" and card.strong.text == "A title"
    assert card.find(class_="mh-card-text").text == "One short sentence. A second with n and words that runs on long enough to be an opening of twenty words or so."
    assert card.find(class_="mh-card-foot").text == "claims: ✓ 1 holds here ◐ 1 holds in partnew"
    assert card.svg.get("role") is None and card.svg.g["id"] == "card-f1" and card.svg.use["href"] == "#card-f1"
