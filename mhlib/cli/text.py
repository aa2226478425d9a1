"""Plain text for a terminal of 100 columns: tables, wrapped paragraphs, and docstrings with their formulas made readable."""

import re
import textwrap
from collections.abc import Sequence

from mhlib.cli.formula import formula

WIDTH = 100  # columns


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = (), indent: int = 2) -> str:
    """Columns as wide as their widest cell, two spaces between; what does not fit into the width is cut off.

    Args:
        rows: the cells; all rows equally long.
        right: columns that are aligned to the right.
        indent: spaces before each line.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        " " * indent
        + "  ".join(cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        for row in rows
    )
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in map(str.rstrip, lines))


def wrap(text: str, indent: int = 0, first: str = "") -> str:
    """One paragraph, wrapped; ``first`` stands before its first line, the others are indented."""
    return textwrap.fill(
        " ".join(text.split()), WIDTH, initial_indent=first, subsequent_indent=" " * indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def si(number: float, unit: str = "") -> str:
    """A number with three digits and a prefix: 1.23 M, 45.6 kB."""
    prefixes = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")]
    if number == 0:
        return f"0 {unit}".strip()
    size, prefix = next((p for p in prefixes if abs(number) >= 0.9995 * p[0]), prefixes[-1])
    return f"{number / size:.3g} {prefix}{unit}".strip() if abs(number / size) < 999.5 else f"{number / size:.0f} {prefix}{unit}"


def readable(doc: str) -> str:
    """A docstring as text: formulas in Unicode, roles and markup gone, paragraphs wrapped."""
    doc = re.sub(r"^( *)\.\. math::[ \t]+(\S.*)$", r"\1.. math::\n\1    \2", doc, flags=re.MULTILINE)
    parts = re.split(r"^ *\.\. math::[ \t]*\n((?:[ \t]*\n|[ \t]+\S.*(?:\n|$))+)", doc, flags=re.MULTILINE)
    shown = [_displayed(part) if i % 2 else _prose(part) for i, part in enumerate(parts)]
    return "\n\n".join(part for part in shown if part)


def _displayed(block: str) -> str:
    """A formula that stands by itself, each of its lines wrapped."""
    lines = (line.strip() for line in formula(" ".join(block.split())).split("\n"))
    return "\n".join(textwrap.fill(line, WIDTH, initial_indent="    ", subsequent_indent="        ") for line in lines if line)


def _prose(text: str) -> str:
    text = re.sub(r":math:`([^`]*)`", lambda m: formula(m[1]), text)
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text)
    text = re.sub(r"``([^`]*)``", r"\1", text)
    paragraphs = (paragraph for paragraph in re.split(r"\n[ \t]*\n", text) if paragraph.strip())
    return "\n\n".join("\n".join(map(_wrapped, _items(paragraph.strip("\n").split("\n")))) for paragraph in paragraphs)


def _items(lines: list[str]) -> list[str]:
    """The lines that belong together: an item of a list of arguments with what continues it, or plain running text."""
    items: list[str] = []
    indents = [len(line) - len(line.lstrip()) for line in lines]
    of_items = min((indent for indent in indents if indent), default=0)
    for line, indent in zip(lines, indents):
        label = r"(Source|Args|Returns|Raises|Attributes|Example)s?:" if not indent else r" +[\w, .*]+: "
        starts = indent in (0, of_items) and re.match(label, line)
        if items and not starts and not items[-1].endswith("Args:"):
            items[-1] += " " + line.strip()
        else:
            items.append(line)
    return items


def _wrapped(item: str) -> str:
    indent = " " * (len(item) - len(item.lstrip()))
    return textwrap.fill(item.strip(), WIDTH, initial_indent=indent, subsequent_indent=indent + "    " * bool(indent))
