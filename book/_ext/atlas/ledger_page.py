"""The ledger: every claim that a chapter checked, with the paper's figure, ours, and the verdict."""

import json

from atlas.html import escape, link, raw, relative, table
from atlas.project import Project

DOC = "book/reference/ledger"
VERDICTS = {"True": "holds here", "in part": "holds in part", "False": "not reproduced here"}
HEAD = """# The ledger of claims

Each chapter ends by checking a claim of its papers at the scale of a laptop. Every check is listed here as it came out: {total} claims,
of which {holds} hold here, {part} hold in part, and {fails} could not be reproduced here. A claim that fails stays, with the reason.
"""


def page(project: Project) -> str:
    from mhlib import catalog

    claims = json.loads((project.build / "ledger.json").read_text(encoding="utf-8"))
    return render(catalog.papers(), claims)


def render(papers, claims: list[dict]) -> str:
    rows = {paper.n: paper for paper in papers}
    verdicts = [str(claim["holds"]) for claim in claims]
    head = HEAD.format(total=len(claims), holds=verdicts.count("True"), part=verdicts.count("in part"), fails=verdicts.count("False"))
    if not claims:
        return head
    columns = ["Row", "Claim", "The paper", "Here", "Verdict", "Computed in"]
    ordered = sorted(claims, key=lambda claim: claim["paper"])
    return head + "\n" + raw(table("Claims", columns, [_row(rows[claim["paper"]], claim) for claim in ordered])) + "\n"


def _row(paper, claim: dict) -> tuple[str, list[str]]:
    verdict = f"<strong>{VERDICTS[str(claim['holds'])]}</strong>"
    if claim["reason"]:
        verdict += f"<br><small>{escape(claim['reason'])}</small>"
    return claim["anchor"], [
        link(f"{relative('book/reference/catalogue', DOC)}#row-{paper.n}", str(paper.n)),
        f"{escape(claim['text'])}<br><small><cite>{escape(paper.title)}</cite></small>",
        escape(claim["expected"]),
        escape(claim["measured"]),
        verdict,
        link(f"{relative(claim['doc'], DOC)}#{claim['anchor']}", claim["doc"].rpartition("/")[2].replace("-", " ")),
    ]
