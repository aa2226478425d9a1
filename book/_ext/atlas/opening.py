"""How a page begins, in plain words: for cards, and for those who share or search."""

import re

from atlas.chapter import Chapter, prose
from atlas.degrade import Degrader
from atlas.references import References

#: An opening has as many sentences as it takes to get so many words.
WORDS = 20
_SENTENCE = re.compile(r".+?[.!?][\"”’]?(?=\s|$)", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def opening(page: Chapter, references: References) -> str:
    """The first sentences below the title; empty where something else than prose stands there."""
    lines = iter(prose(page.text))
    next((line for line in lines if line.startswith("# ")), None)
    paragraph: list[str] = []
    for line in lines:
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            break
    if not paragraph or paragraph[0].startswith("#"):
        return ""
    degrade = Degrader(page.doc, references, page.project.repository)
    return shorten(_LINK.sub(r"\1", degrade(" ".join(paragraph))))


def shorten(text: str) -> str:
    """Whole sentences, enough for an opening, without marks of emphasis, code and formulas."""
    said = ""
    for sentence in _SENTENCE.findall(re.sub(r"[*`$]", "", text)):
        said = f"{said} {sentence.strip()}".strip()
        if len(said.split()) >= WORDS:
            break
    return " ".join(said.split())
