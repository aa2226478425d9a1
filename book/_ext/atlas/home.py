"""The parts of the first page that are made from data: how far the work is, the atlas of all mechanisms, what is new. `index.md` includes them."""

from atlas import news
from atlas.api import Api
from atlas.chapter import chapters
from atlas.families import FAMILIES, PART_OF, PARTS, STATES, known
from atlas.html import escape, link, raw, relative
from atlas.project import Project
from atlas.shown import shown
from atlas.verdicts import claims, tally

DOC = "book/index"
CATALOGUE, LEDGER, API = "book/reference/catalogue", "book/reference/ledger", "book/reference/api"
STAGES = ("project", "score", "normalize", "aggregate", "merge")
#: Hooks stand with the stage beside them.
STAGE_OF = {"queries": "project", "update": "project", "expand": "project", "select": "score", "bias": "score"}
SEVERAL, WHOLE = "several", "as a whole"


def parts(project: Project) -> dict[str, str]:
    """Path of each part, below `_build`, and its Markdown."""
    from mhlib import catalog

    papers, status, api = list(catalog.papers()), catalog.status(project.build), Api.of(project)
    return {
        "_build/pages/facts.md": raw(facts(project, status, api)) + "\n",
        "_build/pages/atlas.md": raw(atlas(papers, status, api, shown(project))) + "\n",
        "_build/pages/news.md": news.page(project, DOC),
    }


def facts(project: Project, status: dict, api: Api) -> str:
    """How far the work is, in numbers that lead to their lists."""
    tried = claims(project)
    works = sum(row.state == "works" for row in status.values())
    items = [
        (f"{relative(CATALOGUE, DOC)}#state=works", works, f"of {len(status)} papers work"),
        (f"{relative(API, DOC)}", len(api.mechanisms), "mechanisms to import"),
        (f"{relative(LEDGER, DOC)}", len(tried), f"claims tried: {tally(tried)}"),
    ]
    first = [chapter.doc for chapter in chapters(project)][:1]
    ways = [way for doc in first for way in ((relative(doc, DOC), "Start reading"), (project.repository.colab(doc), "Run it on Colab"))]
    ways += [("#import-it", "Import the library"), (relative(CATALOGUE, DOC), "Find a paper")]
    return (
        '<ul class="mh-facts">' + "".join(f'<li><a href="{where}"><strong>{number}</strong> {text}</a></li>' for where, number, text in items) + "</ul>\n"
        '<ul class="mh-ways">' + "".join(f"<li>{link(where, text)}</li>" for where, text in ways) + "</ul>"
    )


def atlas(papers, status: dict, api: Api, shown: dict[str, str]) -> str:
    """Families down, stages across; a cell names its mechanisms. What replaces all stages spans them; what is only planned is counted at the end."""
    known({paper.family for paper in papers} | {m.family for m in api.mechanisms.values()})
    head = "".join(f'<th role="columnheader" scope="col">{title}</th>' for title in ("Family", *STAGES, SEVERAL, "planned"))
    rows = "\n".join(_rows(family, papers, status, api, shown) for family in FAMILIES)
    legend = "".join(f'<li data-part="{escape(part)}">{escape(part)}</li>' for part in PARTS)
    states = "".join(f'<li class="mh-state" data-state="{state}">{state}</li>' for state in STATES)
    return (
        f'<ul class="mh-legend" aria-label="Colours: parts of the atlas">{legend}</ul><ul class="mh-legend" aria-label="States">{states}</ul>\n'
        f'<div class="mh-table mh-atlas" tabindex="0" role="group" aria-label="Atlas of mechanisms: stages by families">\n'
        f'<table role="table"><thead role="rowgroup"><tr role="row">{head}</tr></thead>\n<tbody role="rowgroup">\n{rows}\n</tbody></table>\n</div>'
    )


def _rows(family: str, papers, status: dict, api: Api, shown: dict[str, str]) -> str:
    columns: dict[str, list[str]] = {column: [] for column in (*STAGES, SEVERAL, WHOLE)}
    for mechanism in api.mechanisms.values():
        if mechanism.family == family:
            columns[column(mechanism.stage)].append(_cell(mechanism, status, api, shown.get(mechanism.name)))
    planned = sum(paper.family == family and status[paper.n].state == "planned" for paper in papers)
    last = f'<a href="{relative(CATALOGUE, DOC)}#family={family}&amp;state=planned"><span class="mh-state" data-state="planned">{planned} planned</span></a>'
    whole = columns.pop(WHOLE)
    lines = []
    if any(columns.values()) or not whole:
        lines.append("".join(f'<td role="cell" data-label="{name}">{"".join(links)}</td>' for name, links in columns.items()))
    if whole:
        lines.append(f'<td role="cell" class="mh-whole" colspan="{len(columns)}" data-label="{WHOLE}">{"".join(whole)}</td>')
    span = f' rowspan="{len(lines)}"' if len(lines) > 1 else ""
    lines[0] = (
        f'<th role="rowheader" scope="row"{span}>{escape(FAMILIES[family])}</th>{lines[0]}'
        f'<td role="cell"{span} data-label="planned">{last if planned else ""}</td>'
    )
    return "\n".join(f'<tr role="row" data-part="{escape(PART_OF[family])}">{line}</tr>' for line in lines)


def column(stage: str) -> str:
    """Where a mechanism stands that changes these stages: "project, merge" are several, none is a layer as a whole."""
    stages = {STAGE_OF.get(name, name) for name in stage.split(", ") if name}
    if len(stages) == 1:
        return stages.pop() if stages <= set(STAGES) else WHOLE
    return SEVERAL if stages else WHOLE


def state(mechanism, status: dict, doc: str | None) -> str:
    """Of its rows; one without rows works when something independent checks it and a chapter runs it."""
    if not mechanism.papers:
        return "works" if doc and (mechanism.reductions or mechanism.peers) else "in progress"
    return "works" if all(status[n].state == "works" for n in mechanism.papers) else "in progress"


def _cell(mechanism, status: dict, api: Api, doc: str | None) -> str:
    """Leads to the section that explains one of its rows, else to the chapter that runs it, else to its description."""
    explained = next((status[n].anchor for n in mechanism.papers if status[n].anchor), None)
    if explained:
        address = f"{relative(explained['doc'], DOC)}#{explained['anchor']}"
    else:
        address = relative(doc, DOC) if doc else api.address(mechanism.name, DOC)
    name, now = mechanism.path.rpartition(".")[2], state(mechanism, status, doc)
    inside = f'<span class="mh-state" data-state="{now}">{escape(name)}</span><span class="mh-hidden">, {now}</span>'
    return f'<a class="mh-cell" href="{escape(address)}">{inside}</a>' if address else f'<span class="mh-cell">{inside}</span>'
