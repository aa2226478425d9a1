"""Where paper and code differ: every such finding of a chapter, with the number that shows it."""

import json

from atlas.html import escape, link, raw, relative, table
from atlas.project import Project

DOC = "book/reference/differences"
HEAD = """# Where paper and code differ

Some operators do not do what their paper says: the released code takes another formula, or the formula amounts to something simpler than it looks.
Where a chapter found such a case it shows it by numbers. {count}
"""


def page(project: Project) -> str:
    from mhlib import catalog

    found = json.loads((project.build / "differences.json").read_text(encoding="utf-8"))
    return render(catalog.papers(), found)


def render(papers, found: list[dict]) -> str:
    rows = {paper.n: paper for paper in papers}
    head = HEAD.format(count=f"All {len(found)} are gathered here." if found else "None has been recorded yet.")
    if not found:
        return head
    columns = ["Row", "What differs", "Stated", "Found", "Shown by", "Computed in"]
    ordered = sorted(found, key=lambda box: box["paper"])
    return head + "\n" + raw(table("Differences", columns, [_row(rows[box["paper"]], box) for box in ordered])) + "\n"


def _row(paper, box: dict) -> tuple[str, list[str]]:
    return box["anchor"], [
        link(f"{relative('book/reference/catalogue', DOC)}#row-{paper.n}", str(paper.n)),
        f"{escape(box['text'])}<br><small><cite>{escape(paper.title)}</cite></small>",
        escape(box["stated"]),
        escape(box["found"]),
        escape(box["shown"]),
        link(f"{relative(box['doc'], DOC)}#{box['anchor']}", box["doc"].rpartition("/")[2].replace("-", " ")),
    ]
