"""Small pieces of HTML for generated pages."""

import posixpath
from html import escape

__all__ = ["escape", "link", "raw", "relative", "table"]


def relative(target: str, page: str) -> str:
    """The address of one page as seen from another; both are named as in `_toc.yml`."""
    return posixpath.relpath(target, posixpath.dirname(page)) + ".html"


def link(url: str, text: str) -> str:
    return f'<a href="{escape(url)}">{escape(text)}</a>'


def table(label: str, columns: list[str], rows: list[tuple[str, list[str]]]) -> str:
    """A table that scrolls sideways on a narrow screen. Each row is its anchor and its cells, which are HTML already."""
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "\n".join(
        f'<tr id="{anchor}"><th scope="row">{cells[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in cells[1:]) + "</tr>"
        for anchor, cells in rows
    )
    return (
        f'<div class="mh-table" tabindex="0" role="group" aria-label="{escape(label)}">\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def raw(html: str) -> str:
    """HTML inside of a MyST page, as it is."""
    return f"````{{raw}} html\n{html}\n````"
