"""The catalogue: every row with its state, computed by `mhlib.catalog.status(project.build)`, in a table to search and filter."""

import json

from atlas.api import Api
from atlas.differences_page import DOC as DIFFERENCES
from atlas.families import FAMILIES, STATES, known
from atlas.html import escape, link, raw, relative
from atlas.ledger_page import DOC as LEDGER
from atlas.project import Project
from atlas.sortable import Column, Filter, Row, sortable
from atlas.verdicts import SIGNS, VERDICTS, sign

DOC = "book/reference/catalogue"
DOUBT = "title or number not certain"
HEAD = """# The catalogue

{total} papers, one row each. A row **works** when its mechanism can be imported from `mhlib`, none of its contract tests fails (a row says
if they were not run on the machine that built this page), is checked against something independent, is explained and run in a chapter, and has at least one claim in the [ledger](ledger.md). The build finds this out by itself.
At present: {counts}. A claim shows how it came out: {signs}.
"""
COLUMNS = [
    Column("Row", "number"), Column("Paper", "text"), Column("Year", "number"), Column("Family", "text"), Column("State", "text"),
    Column("Here"),
]  # fmt: skip


def page(project: Project) -> str:
    from mhlib import catalog

    anchors = json.loads((project.build / "anchors.json").read_text(encoding="utf-8"))
    found = json.loads((project.build / "differences.json").read_text(encoding="utf-8"))
    return render(catalog.papers(), catalog.status(project.build), anchors, Api.of(project), found)


def render(papers, status: dict, anchors: dict[str, dict], api: Api, differences: list[dict] = ()) -> str:
    papers = list(papers)
    known({paper.family for paper in papers})
    counts = ", ".join(f"{state} {sum(status[paper.n].state == state for paper in papers)}" for state in STATES)
    head = HEAD.format(total=len(papers), counts=counts, signs=", ".join(f"{SIGNS[value]} {said}" for value, said in VERDICTS.items()))
    rows = [_row(paper, status[paper.n], anchors.get(str(paper.n)), api, [d for d in differences if d["paper"] == paper.n]) for paper in papers]
    return head + "\n" + raw(sortable("catalogue", "Catalogue", COLUMNS, rows, _filters(papers), "papers")) + "\n"


def _filters(papers) -> list[Filter]:
    families = {paper.family for paper in papers}
    return [
        Filter("family", "Main family", [(family, title) for family, title in FAMILIES.items() if family in families]),
        Filter("kind", "Kind", [(kind, kind) for kind in sorted({paper.kind for paper in papers})]),
        Filter("state", "State", [(state, state) for state in STATES]),
        Filter("year", "Year", [(str(year), str(year)) for year in sorted({paper.year for paper in papers}, reverse=True)]),
    ]


def _row(paper, status, explained: dict | None, api: Api, differences: list[dict]) -> Row:
    title = link(paper.url, paper.title) if paper.url else escape(paper.title)
    doubt = "" if paper.confidence == "high" else f" <em>({DOUBT})</em>"
    also = f"<br><small>also {escape(', '.join(FAMILIES[family].lower() for family in paper.also))}</small>" if paper.also else ""
    cells = [
        str(paper.n),
        f"{title}{doubt}<br><small>{escape(paper.mechanism)}</small>",
        str(paper.year),
        f"{escape(FAMILIES[paper.family])}<br><small>{escape(paper.kind)}</small>{also}",
        _state(status),
        "<br>".join(_here(status, explained, api, differences)),
    ]
    data = {"family": paper.family, "kind": paper.kind, "state": status.state, "year": str(paper.year)}
    families = list(FAMILIES)
    sort = {1: paper.title, 3: f"{families.index(paper.family):02} {paper.n:03}", 4: str(STATES.index(status.state))}
    return Row(f"row-{paper.n}", cells, data, sort)


def _state(status) -> str:
    state = f'<span class="mh-state" data-state="{escape(status.state)}">{escape(status.state)}</span>'
    if status.state != "planned":
        state += f"<br><small>tests {escape(status.tests)}</small>"
    if status.state == "in progress":
        state += f"<br><small>{escape('; '.join(status.missing))}</small>"
    return state


def _here(status, explained: dict | None, api: Api, differences: list[dict]):
    """Links to the chapter, to the mechanisms in the library, to the claims, and to where paper and code differ."""
    if explained:
        yield "Chapter: " + link(f"{relative(explained['doc'], DOC)}#{explained['anchor']}", explained["title"])
    for name in status.mechanisms:
        yield api.link(name, DOC)
    if status.claims:
        yield "Claims: " + " ".join(f'<a href="{relative(LEDGER, DOC)}#{escape(claim["anchor"])}">{sign(str(claim["holds"]))}</a>' for claim in status.claims)
    if differences:
        yield "Paper and code differ: " + " ".join(link(f"{relative(DIFFERENCES, DOC)}#{found['anchor']}", str(n)) for n, found in enumerate(differences, 1))
