"""Where paper and code differ: every such finding of a chapter, with the number that shows it."""

import json

from atlas.families import FAMILIES
from atlas.html import escape, link, raw, relative
from atlas.project import Project
from atlas.sortable import Column, Filter, Row, sortable

DOC = "book/reference/differences"
HEAD = """# Where paper and code differ

Some operators do not do what their paper says: the released code takes another formula, or the formula amounts to something simpler than it looks.
Where a chapter found such a case it shows it by numbers. {count}
"""
COLUMNS = [Column("Row", "number"), Column("What differs", "text"), Column("Stated"), Column("Found"), Column("Shown by"), Column("Computed in", "text")]


def page(project: Project) -> str:
    from mhlib import catalog

    found = json.loads((project.build / "differences.json").read_text(encoding="utf-8"))
    return render(catalog.papers(), found)


def render(papers, found: list[dict]) -> str:
    rows = {paper.n: paper for paper in papers}
    head = HEAD.format(count=f"All {len(found)} are gathered here." if found else "None has been recorded yet.")
    if not found:
        return head
    shown = [_row(rows[box["paper"]], box) for box in sorted(found, key=lambda box: box["paper"])]
    filters = [Filter("family", "Family", [(f, title) for f, title in FAMILIES.items() if any(row.data["family"] == f for row in shown)])]
    return head + "\n" + raw(sortable("differences", "Differences", COLUMNS, shown, filters, "differences")) + "\n"


def _row(paper, box: dict) -> Row:
    cells = [
        link(f"{relative('book/reference/catalogue', DOC)}#row-{paper.n}", str(paper.n)),
        f"{escape(box['text'])}<br><small><cite>{escape(paper.title)}</cite></small>",
        escape(box["stated"]),
        escape(box["found"]),
        escape(box["shown"]),
        link(f"{relative(box['doc'], DOC)}#{box['anchor']}", box["doc"].rpartition("/")[2].replace("-", " ")),
    ]
    return Row(box["anchor"], cells, {"family": paper.family})
