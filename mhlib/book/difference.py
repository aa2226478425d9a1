"""A box for what readers cannot find elsewhere: where a paper and its released code differ, or an operator degenerates."""

from dataclasses import asdict, dataclass

from mhlib.book.box import anchor_of, box, plain

__all__ = ["Difference", "difference"]


@dataclass(frozen=True)
class Difference:
    """One difference, shown by numbers. It travels to the page that collects them in the metadata of its own output."""

    paper: int
    text: str
    stated: str
    found: str
    shown: str
    anchor: str

    def _repr_mimebundle_(self, include=None, exclude=None):
        from mhlib import catalog

        row = catalog.paper(self.paper)
        lines = [("Stated", self.stated), ("Found", self.found), ("Shown by", self.shown)]
        html = box("Difference", self.anchor, row, self.text, lines, colour="#0072B2", label="where paper and code differ")
        text = plain("Difference", row, self.text, lines)
        return {"text/html": html, "text/plain": text}, {"text/html": {"mhlib_difference": asdict(self)}}


def difference(paper: int, text: str, *, stated: str, found: str, shown: str) -> Difference:
    """Record where a paper and its code, or a paper and its own formula, part. Make it the last value of a cell.

    Args:
        paper: the paper's row number in the catalogue.
        text: what differs and what follows from it, in one sentence.
        stated: what the paper says.
        found: what the released code does, or what the formula amounts to.
        shown: the number that shows it, computed by the chapter.

    Raises:
        ValueError: the row is not in the catalogue, or a part is empty.
    """
    from mhlib import catalog

    catalog.paper(paper)
    parts = {"text": text, "stated": stated, "found": found, "shown": shown}
    if empty := [name for name, value in parts.items() if not str(value).strip()]:
        raise ValueError(f"a difference needs all of its parts, {', '.join(empty)} is empty")
    return Difference(paper, text, str(stated), str(found), str(shown), anchor_of("difference", paper, text))
