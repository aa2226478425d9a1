"""Small pieces of HTML for generated pages."""

import posixpath
from html import escape

__all__ = ["escape", "link", "raw", "relative"]


def relative(target: str, page: str) -> str:
    """The address of one page as seen from another; both are named as in `_toc.yml`."""
    return posixpath.relpath(target, posixpath.dirname(page)) + ".html"


def link(url: str, text: str) -> str:
    return f'<a href="{escape(url)}">{escape(text)}</a>'


def raw(html: str) -> str:
    """HTML inside of a MyST page, as it is."""
    return f"````{{raw}} html\n{html}\n````"
