"""A box that sets what a paper says beside what was computed here, and feeds the ledger of claims."""

from dataclasses import asdict, dataclass

from mhlib.book.box import anchor_of, box, plain

__all__ = ["claim", "Claim"]

_VERDICTS = {
    True: ("✓", "holds here", "#009E73"),
    "in part": ("◐", "holds in part", "#E69F00"),
    False: ("✗", "not reproduced here", "#D55E00"),
}


@dataclass(frozen=True)
class Claim:
    """One claim of one paper. It travels to the ledger in the metadata of its own output."""

    paper: int
    text: str
    expected: str
    measured: str
    holds: bool | str
    reason: str | None
    anchor: str

    @property
    def verdict(self) -> str:
        return _VERDICTS[self.holds][1]

    def _repr_mimebundle_(self, include=None, exclude=None):
        from mhlib import catalog

        row, (sign, verdict, colour) = catalog.paper(self.paper), _VERDICTS[self.holds]
        lines = [("The paper", self.expected), ("Here", self.measured), *([("Why", self.reason)] if self.reason else [])]
        foot = f'<div style="margin-top:0.4em"><strong><span aria-hidden="true">{sign}</span> {verdict}</strong></div>'
        html = box("Claim", self.anchor, row, self.text, lines, colour=colour, label=verdict, foot=foot)
        text = plain("Claim", row, self.text, [*lines, ("Verdict", verdict)])
        return {"text/html": html, "text/plain": text}, {"text/html": {"mhlib_claim": asdict(self)}}


def claim(paper: int, text: str, expected, measured, holds, reason: str | None = None) -> Claim:
    """Record a claim of a paper with an honest verdict. Make it the last value of a cell, so that it is shown.

    Args:
        paper: the paper's row number in the catalogue.
        text: what the paper claims, in one sentence.
        expected: the paper's figure, with unit.
        measured: ours, with unit, computed by the chapter.
        holds: True, False, or "in part"; a numpy bool will do.
        reason: why it does not hold, or holds only in part, at this scale. Required unless `holds` is True.

    Raises:
        ValueError: the row is not in the catalogue, the verdict is none of the three, or the reason is missing.
    """
    from mhlib import catalog

    catalog.paper(paper)
    holds = _verdict(holds)
    if holds is not True and not (reason and reason.strip()):
        raise ValueError(f"a claim that does not fully hold needs a reason: claim({paper}, ..., holds={holds!r}, reason='at this scale ...')")
    reason = None if holds is True else reason  # a chapter may give one for all outcomes
    return Claim(paper, text, str(expected), str(measured), holds, reason, anchor_of("claim", paper, text))


def _verdict(holds) -> bool | str:
    if isinstance(holds, str):
        if holds == "in part":
            return holds
    elif type(holds).__name__ in ("bool", "bool_"):  # a comparison of numpy numbers is a numpy bool
        return bool(holds)
    raise ValueError(f'holds must be True, False or "in part"; got {holds!r}')
