"""The catalogue: every row with its state, computed by `mhlib.catalog.status(project.build)`."""

import json

from atlas.html import escape, link, raw, relative, table
from atlas.project import Project

DOC = "book/reference/catalogue"
FAMILIES = {
    "core": "Foundations",
    "kv-sharing": "Sharing keys and values",
    "latent": "Latent attention",
    "projection": "Projections",
    "head-mixing": "Mixing between heads",
    "head-routing": "Routing to heads",
    "head-regularisation": "Regularising heads",
    "score": "Scores and normalisers",
    "local-multiscale": "Local and multi-scale",
    "sparse": "Sparse attention",
    "linear": "Linear attention",
    "hybrid": "Hybrids",
    "token-reduction": "Fewer tokens",
    "pool-global": "Pooling: global",
    "pool-local": "Pooling: local",
    "pool-pyramid": "Pooling: pyramids",
    "pool-attentive": "Pooling: attentive",
    "pool-statistics": "Pooling: statistics",
    "pool-mil": "Pooling: multiple instance",
    "pool-embedding": "Pooling: embeddings",
    "pool-mixer": "Pooling: mixers",
    "pool-structure": "Pooling: structures",
    "multi-output": "Multi-output heads",
    "moe": "Mixtures of experts",
    "head-analysis": "Understanding heads",
    "theory": "Theory",
    "systems": "Systems",
    "applications": "Applications",
}
STATES = ("works", "in progress", "planned")
HEAD = """# The catalogue

{total} papers, one row each. A row **works** when its mechanism can be imported from `mhlib` and passes the contract tests, is checked against
something independent, is explained and run in a chapter, and has at least one claim in the [ledger](ledger.md). The build finds this out
by itself: at present {works} rows work, {progress} are in progress and {planned} are planned.
"""


def page(project: Project) -> str:
    from mhlib import catalog

    anchors = json.loads((project.build / "anchors.json").read_text(encoding="utf-8"))
    return render(catalog.papers(), catalog.status(project.build), anchors)


def render(papers, status: dict, anchors: dict[str, dict]) -> str:
    papers = list(papers)
    if unknown := {paper.family for paper in papers} - set(FAMILIES):
        raise ValueError(f"no heading for the families {', '.join(sorted(unknown))}: add it to FAMILIES in {__name__}")
    counts = {state: sum(status[paper.n].state == state for paper in papers) for state in STATES}
    head = HEAD.format(total=len(papers), works=counts["works"], progress=counts["in progress"], planned=counts["planned"])
    sections = []
    for family, title in FAMILIES.items():
        rows = [_row(paper, status[paper.n], anchors.get(str(paper.n))) for paper in papers if paper.family == family]
        if rows:
            sections.append(f"## {title}\n\n" + raw(table(title, ["Row", "Paper", "State", "Mechanism"], rows)))
    return head + "\n" + "\n\n".join(sections) + "\n"


def _row(paper, status, explained: dict | None) -> tuple[str, list[str]]:
    title = link(paper.url, paper.title) if paper.url else escape(paper.title)
    doubt = "" if paper.confidence == "high" else " <em>(title or number not certain)</em>"
    state = f'<span class="mh-state" data-state="{escape(status.state)}">{escape(status.state)}</span>'
    if explained:
        state += "<br>" + link(f"{relative(explained['doc'], DOC)}#{explained['anchor']}", explained["title"])
    if status.state != "planned":
        state += f"<br><small>tests {escape(status.tests)}</small>"
    if status.state == "in progress":
        state += f"<br><small>{escape('; '.join(status.missing))}</small>"
    return f"row-{paper.n}", [str(paper.n), f"{title} ({paper.year}){doubt}", state, escape(paper.mechanism)]
