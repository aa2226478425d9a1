"""The box in which chapters set a paper's statement beside what was computed: alike in light and dark, and not by colour alone."""

import hashlib
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhlib.catalog import Paper


def box(kind: str, anchor: str, row: "Paper", text: str, lines: list[tuple[str, str]], *, colour: str, label: str, foot: str = "") -> str:
    """HTML of a box: a heading that names the catalogue row, a sentence, named lines, and a foot (HTML)."""
    # Half-transparent greys and `inherit` suit a light and a dark page alike, in the book and in a plain notebook.
    title = f"<cite>{escape(name(row))}</cite>"
    if row.url:
        title = f'<a href="{escape(row.url)}">{title}</a>'
    cell = "padding:0.1em 0.8em 0.1em 0;text-align:left;vertical-align:top;background:none;border:none"
    rows = "".join(
        f'<tr style="background:none"><th scope="row" style="{cell};font-weight:600;white-space:nowrap">{escape(head)}</th>'
        f'<td style="{cell}">{escape(value)}</td></tr>'
        for head, value in lines
    )
    return (
        f'<div class="mhlib-{kind.lower()}" id="{anchor}" role="group" aria-label="{kind} of row {row.n}: {escape(label)}" '
        f'style="border:1px solid rgba(128,128,128,0.5);border-left:0.4em solid {colour};border-radius:0.3em;'
        f'padding:0.6em 1em;margin:1em 0;color:inherit">'
        f'<div style="font-size:0.9em">{kind} · row {row.n} · {title}</div>'
        f'<div style="margin:0.4em 0">{escape(text)}</div>'
        f'<table style="border-collapse:collapse;border:none;margin:0;background:none;color:inherit;font-size:inherit"><tbody>{rows}</tbody></table>'
        f"{foot}</div>"
    )


def plain(kind: str, row: "Paper", text: str, lines: list[tuple[str, str]]) -> str:
    """The same in plain text."""
    return f"{kind} of row {row.n}, {name(row)}\n  {text}" + "".join(f"\n  {head}: {value}" for head, value in lines)


def name(row: "Paper") -> str:
    return f"{row.title} ({row.year})"


def anchor_of(kind: str, paper: int, text: str) -> str:
    """An id for links that stays from build to build and differs between boxes."""
    return f"{kind.lower()}-{paper}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
