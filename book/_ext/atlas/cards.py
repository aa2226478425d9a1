"""Chapters as cards: the first figure, the title, the opening words, and how the claims came out."""

import re

import nbformat

from atlas.chapter import Chapter, headings
from atlas.html import escape, relative
from atlas.opening import opening
from atlas.references import References
from atlas.verdicts import claims, tally


def card(chapter: Chapter, page: str, note: str, references: References) -> str:
    """HTML of a card, as seen from a page, with a note at its foot."""
    title = next(title for _, title in headings(chapter.text) if title)
    said = f'<span class="mh-card-text">{escape(opening(chapter, references))}</span>'
    picture = f'<span class="mh-card-figure" aria-hidden="true">{thumbnail(chapter)}</span>'
    told = tally([claim for claim in claims(chapter.project) if claim["doc"] == chapter.doc])
    foot = f'<span class="mh-card-foot"><span>{f"claims: {told}" if told else ""}</span><span>{escape(note)}</span></span>'
    return f'<a class="mh-card" href="{relative(chapter.doc, page)}">{picture}<strong>{escape(title)}</strong>{said}{foot}</a>'


def thumbnail(chapter: Chapter) -> str:
    """The first figure of the executed chapter, without what only a listener needs, since the card says what it is; empty before it was executed."""
    if not chapter.executed.is_file():
        return ""
    for cell in nbformat.read(chapter.executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            html = output.get("data", {}).get("text/html", "")
            if 'class="mhlib-figure"' in html:
                svg = html[html.index("<svg") : html.index("</svg>") + len("</svg>")]
                svg = re.sub(r' role="img" aria-label="[^"]*"', "", svg, count=1)
                # The same figure may stand on a page whose own figures are counted alike.
                return re.sub(r'(\bid="|url\(#|href="#)', r"\1card-", svg)
    return ""
