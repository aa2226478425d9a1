"""A box that sets what a paper says beside what was computed here, and feeds the ledger of claims."""

import hashlib
from dataclasses import asdict, dataclass, field
from html import escape

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
    title: str = field(repr=False)
    link: str | None = field(repr=False)

    @property
    def verdict(self) -> str:
        return _VERDICTS[self.holds][1]

    def _repr_mimebundle_(self, include=None, exclude=None):
        record = {key: value for key, value in asdict(self).items() if key not in ("title", "link")}
        return {"text/html": self._html(), "text/plain": self._plain()}, {"text/html": {"mhlib_claim": record}}

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("The paper", self.expected), ("Here", self.measured)]
        return rows + [("Why", self.reason)] if self.reason else rows

    def _plain(self) -> str:
        rows = "".join(f"\n  {name}: {value}" for name, value in self._rows())
        return f"Claim of row {self.paper}, {self.title}\n  {self.text}{rows}\n  Verdict: {self.verdict}"

    def _html(self) -> str:
        # Half-transparent greys and `inherit` suit a light and a dark page alike, in the book and in a plain notebook.
        sign, verdict, colour = _VERDICTS[self.holds]
        title = f'<cite>{escape(self.title)}</cite>'
        if self.link:
            title = f'<a href="{escape(self.link)}">{title}</a>'
        cell = "padding:0.1em 0.8em 0.1em 0;text-align:left;vertical-align:top;background:none;border:none"
        rows = "".join(
            f'<tr style="background:none"><th scope="row" style="{cell};font-weight:600;white-space:nowrap">{name}</th>'
            f'<td style="{cell}">{escape(value)}</td></tr>'
            for name, value in self._rows()
        )
        return (
            f'<div class="mhlib-claim" id="{self.anchor}" role="group" aria-label="Claim of row {self.paper}: {verdict}" '
            f'style="border:1px solid rgba(128,128,128,0.5);border-left:0.4em solid {colour};border-radius:0.3em;'
            f'padding:0.6em 1em;margin:1em 0;color:inherit">'
            f'<div style="font-size:0.9em">Claim · row {self.paper} · {title}</div>'
            f'<div style="margin:0.4em 0">{escape(self.text)}</div>'
            f'<table style="border-collapse:collapse;border:none;margin:0;background:none;color:inherit;font-size:inherit"><tbody>{rows}</tbody></table>'
            f'<div style="margin-top:0.4em"><strong><span aria-hidden="true">{sign}</span> {verdict}</strong></div>'
            f"</div>"
        )


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

    row = catalog.paper(paper)
    holds = _verdict(holds)
    if holds is not True and not (reason and reason.strip()):
        raise ValueError(f"a claim that does not fully hold needs a reason: claim({paper}, ..., holds={holds!r}, reason='at this scale ...')")
    anchor = f"claim-{paper}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return Claim(paper, text, str(expected), str(measured), holds, reason, anchor, f"{row.title} ({row.year})", row.url)


def _verdict(holds) -> bool | str:
    if isinstance(holds, str):
        if holds == "in part":
            return holds
    elif type(holds).__name__ in ("bool", "bool_"):  # a comparison of numpy numbers is a numpy bool
        return bool(holds)
    raise ValueError(f'holds must be True, False or "in part"; got {holds!r}')
