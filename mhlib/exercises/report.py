"""What a check found, as a box in a notebook and as text elsewhere."""

from dataclasses import dataclass, field
from html import escape
from typing import Any

__all__ = ["Result"]

_STATES = {
    "passed": ("✓", "passed", "#009E73"),
    "failed": ("✗", "not yet", "#D55E00"),
    "open": ("○", "your turn", "rgba(128,128,128,0.9)"),
}


@dataclass(frozen=True)
class Result:
    """The result of a check; true when it passed.

    Attributes:
        state: "passed", "failed", or "open" while the function returns nothing.
        message: one sentence.
        rows: label and text of what there is to see: input, expected, given, ...
        hint: what is probably wrong, or "".
        inputs: the arguments of the first case that failed, by name, to try it again by hand.
        wasteful: whether all that is wrong is a tensor larger than it need be.
    """

    name: str
    state: str
    message: str
    rows: tuple[tuple[str, str], ...] = ()
    hint: str = ""
    inputs: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    wasteful: bool = field(default=False, repr=False)

    @property
    def passed(self) -> bool:
        return self.state == "passed"

    def __bool__(self) -> bool:
        return self.passed

    def _repr_mimebundle_(self, include=None, exclude=None):
        record = {"name": self.name, "state": self.state}
        return {"text/html": self._html(), "text/plain": str(self)}, {"text/html": {"mhlib_exercise": record}}

    def __str__(self) -> str:
        sign, state, _ = _STATES[self.state]
        lines = [f"{sign} Exercise {self.name}: {state}", f"  {self.message}"]
        for label, text in self.rows:
            first, *rest = text.split("\n")
            lines += [f"  {label}: {first}", *(f"    {line}" for line in rest)]
        return "\n".join(lines + ([f"  Hint: {self.hint}"] if self.hint else []))

    def _html(self) -> str:
        # As the box of a claim: half-transparent greys and `inherit` suit a light and a dark page alike.
        sign, state, colour = _STATES[self.state]
        cell = "padding:0.1em 0.8em 0.1em 0;text-align:left;vertical-align:top;background:none;border:none"
        pre = "margin:0;padding:0;background:none;border:none;color:inherit;font-size:0.9em;white-space:pre-wrap;overflow-wrap:anywhere"
        rows = "".join(
            f'<tr style="background:none"><th scope="row" style="{cell};font-weight:600;white-space:nowrap">{escape(label)}</th>'
            f'<td style="{cell}"><pre style="{pre}">{escape(text)}</pre></td></tr>'
            for label, text in self.rows
        )
        table = (
            f'<table style="border-collapse:collapse;border:none;margin:0.4em 0;background:none;color:inherit;'
            f'font-size:inherit"><tbody>{rows}</tbody></table>'
        )
        hint = f'<div style="margin-top:0.4em"><strong>Hint:</strong> {escape(self.hint)}</div>'
        return (
            f'<div class="mhlib-exercise" role="group" aria-label="Exercise {escape(self.name)}: {state}" '
            f'style="border:1px solid rgba(128,128,128,0.5);border-left:0.4em solid {colour};border-radius:0.3em;'
            f'padding:0.6em 1em;margin:1em 0;color:inherit">'
            f'<div style="font-size:0.9em">Exercise · <code style="color:inherit;background:none;border:none;padding:0">'
            f"{escape(self.name)}</code></div>"
            f'<div style="margin:0.4em 0"><strong><span aria-hidden="true">{sign}</span> {state}</strong>: {escape(self.message)}</div>'
            f"{table if self.rows else ''}{hint if self.hint else ''}</div>"
        )
