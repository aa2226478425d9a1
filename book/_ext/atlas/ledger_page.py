"""The ledger: every claim that a chapter checked, with the paper's figure, ours, and the verdict."""

from atlas.charts import Series, stacked_bars
from atlas.families import FAMILIES
from atlas.html import escape, link, raw, relative
from atlas.project import Project
from atlas.sortable import Column, Filter, Row, sortable
from atlas.verdicts import SIGNS, VERDICTS, claims

DOC = "book/reference/ledger"
CATALOGUE = "book/reference/catalogue"
SERIES = [Series(VERDICTS[v], fill, SIGNS[v]) for v, fill in (("True", "mh-holds"), ("in part", "mh-part"), ("False", "mh-fails"))]
HEAD = """# The ledger of claims

Each chapter ends by checking a claim of its papers at the scale of a laptop. Every check is listed here as it came out: {total} claims,
of which {holds} hold here, {part} hold in part, and {fails} could not be reproduced here. A claim that fails stays, with the reason.
"""
COLUMNS = [
    Column("Row", "number"), Column("Claim", "text"), Column("The paper"), Column("Here"), Column("Verdict", "text"),
    Column("Computed in", "text"),
]  # fmt: skip


def page(project: Project) -> str:
    from mhlib import catalog

    return render(catalog.papers(), claims(project))


def render(papers, claims: list[dict]) -> str:
    papers = {paper.n: paper for paper in papers}
    verdicts = [str(claim["holds"]) for claim in claims]
    head = HEAD.format(total=len(claims), holds=verdicts.count("True"), part=verdicts.count("in part"), fails=verdicts.count("False"))
    if not claims:
        return head
    rows = [_row(papers[claim["paper"]], claim) for claim in sorted(claims, key=lambda claim: claim["paper"])]
    filters = [
        Filter("verdict", "Verdict", [(verdict, shown) for verdict, shown in VERDICTS.items()]),
        Filter("family", "Family", [(f, title) for f, title in FAMILIES.items() if any(row.data["family"] == f for row in rows)]),
    ]
    parts = [head, raw(_chart(papers, claims)), raw(sortable("ledger", "Claims", COLUMNS, rows, filters, "claims"))]
    return "\n\n".join(parts) + "\n"


def _chart(papers: dict, claims: list[dict]) -> str:
    bars: dict[str, list[int]] = {}
    for family, title in FAMILIES.items():
        verdicts = [str(claim["holds"]) for claim in claims if papers[claim["paper"]].family == family]
        if verdicts:
            bars[title] = [verdicts.count(verdict) for verdict in VERDICTS]
    return stacked_bars("Claims by family and verdict", bars, SERIES)


def _row(paper, claim: dict) -> Row:
    value = str(claim["holds"])
    verdict = f'<strong><span aria-hidden="true">{SIGNS[value]}</span> {VERDICTS[value]}</strong>'
    if claim["reason"]:
        verdict += f"<br><small>{escape(claim['reason'])}</small>"
    cells = [
        link(f"{relative(CATALOGUE, DOC)}#row-{paper.n}", str(paper.n)),
        f"{escape(claim['text'])}<br><small><cite>{escape(paper.title)}</cite></small>",
        escape(claim["expected"]),
        escape(claim["measured"]),
        verdict,
        link(f"{relative(claim['doc'], DOC)}#{claim['anchor']}", claim["doc"].rpartition("/")[2].replace("-", " ")),
    ]
    return Row(claim["anchor"], cells, {"verdict": value, "family": paper.family}, {4: str(list(VERDICTS).index(value))})
