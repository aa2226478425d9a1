"""What pages and tests need to know about the chapters: where each row is explained, every claim, every difference.

Written to `_build/anchors.json`, `_build/ledger.json` and `_build/differences.json`.
"""

import json

import nbformat

from atlas.chapter import Chapter, headings, pages
from atlas.project import Project, write_if_changed

def write(project: Project, chapters: list[Chapter]) -> None:
    write_if_changed(project.build / "anchors.json", _json(anchors(pages(project))))
    write_if_changed(project.build / "ledger.json", _json(gather(chapters, "claim")))
    write_if_changed(project.build / "differences.json", _json(gather(chapters, "difference")))


def anchors(pages: list[Chapter]) -> dict[str, dict]:
    """Row number -> page, anchor and heading. A chapter marks the section that explains row 33 with `(row-33)=` above its heading."""
    found: dict[str, dict] = {}
    for page in pages:
        for row, title in _marked_headings(page):
            if row in found:
                raise ValueError(f"row {row} is marked twice, in {found[row]['doc']}.md and in {page.doc}.md: keep one (row-{row})=")
            found[row] = {"doc": page.doc, "anchor": f"row-{row}", "title": title}
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def _marked_headings(page: Chapter):
    for labels, title in headings(page.text):
        rows = [label.removeprefix("row-") for label in labels if label.startswith("row-")]
        if rows and title is None:
            raise ValueError(f"{page.doc}.md: (row-{rows[0]})= must stand directly above a heading")
        yield from ((row, title) for row in rows)


def gather(chapters: list[Chapter], kind: str) -> list[dict]:
    """Every box of a kind, "claim" or "difference", that the executed chapters show, in reading order."""
    boxes = []
    for chapter in chapters:
        for number, cell in enumerate(nbformat.read(chapter.executed, as_version=4).cells):
            for output in cell.get("outputs", []):
                if box := output.get("metadata", {}).get("text/html", {}).get(f"mhlib_{kind}"):
                    boxes.append({**box, "doc": chapter.doc, "cell": number})
    anchors = [box["anchor"] for box in boxes]
    if twice := next((box for box in boxes if anchors.count(box["anchor"]) > 1), None):
        raise ValueError(f"{twice['doc']}.md: the {kind} {twice['text']!r} of row {twice['paper']} is made more than once; word each one differently")
    return boxes


def _json(value) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
