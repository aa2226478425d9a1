"""What each chapter gets besides its text: where its mechanisms stand in library and catalogue, how to install, and metadata for search engines."""

import functools
import importlib
import inspect
import json
import re
from pathlib import Path

from atlas.api import Api
from atlas.chapter import Chapter
from atlas.html import escape, link, relative
from atlas.opening import opening, shorten
from atlas.project import Project
from atlas.references import References

CATALOGUE, HOME = "book/reference/catalogue", "book/index"
_DESCRIPTION = re.compile(r'((?:property="og:description"|property="og:image:alt"|name="description") content=")[^"]*')


def rows_of(project: Project, doc: str) -> list[int]:
    """The catalogue rows that a page explains."""
    file = project.build / "anchors.json"
    anchors = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return [int(n) for n, anchor in anchors.items() if anchor["doc"] == doc]


def add(app, pagename, templatename, context, doctree) -> None:
    """Append the footer to a chapter; in the head put what runs first, structured data, and a description in whole sentences."""
    first = context["pathto"]("_static/first.js", 1)
    context["metatags"] = f'<script src="{first}"></script>\n' + context.get("metatags", "")
    if doctree is None:
        return
    from mhlib import catalog

    project = Project(Path(app.srcdir))
    papers = [catalog.paper(n) for n in rows_of(project, pagename)]
    chapter = Chapter(project, pagename)
    if chapter.path.is_file() and chapter.runs:
        context["body"] += footer(project, pagename, papers)
    # The title may hold markup of its own, and a script must not be closed by its content.
    data = json.dumps(structured(project, pagename, str(context.get("title", "")), papers), ensure_ascii=False).replace("</", "<\\/")
    if said := description(project, pagename):
        context["metatags"] = _DESCRIPTION.sub(lambda found: found[1] + escape(said), context["metatags"])
    context["metatags"] += f'<script type="application/ld+json">{data}</script>\n'


def description(project: Project, doc: str) -> str:
    """The opening of a page, or of the package that a page of the reference describes."""
    described = next((page.module for page in Api.of(project).pages if page.doc == doc), None)
    if described:
        return shorten(inspect.getdoc(importlib.import_module(described)) or "")
    page = Chapter(project, doc)
    return opening(page, _references(project)) if page.path.is_file() else ""


@functools.cache
def _references(project: Project) -> References:
    """Of the pages as they are rendered: while that goes on, none of them changes."""
    return References.of(project)


def foot(app, pagename, templatename, context, doctree) -> None:
    """Below every page: the library's version, the licence, and how to cite."""
    import mhlib

    licence = link(Project(Path(app.srcdir)).repository.file("LICENSE"), "MIT licence")
    cite = link(context["pathto"]("book/how-to-read").rstrip("#") + "#cite-it", "cite it")
    context["theme_extra_footer"] = f"<p>mhlib {escape(mhlib.__version__)} · {licence} · {cite}</p>"


def footer(project: Project, doc: str, papers: list) -> str:
    api = Api.of(project)
    items = []
    for paper in papers:
        names = [m.name for m in api.mechanisms.values() if paper.n in m.papers]
        here = ", ".join(api.link(name, doc) for name in names)
        row = link(f"{relative(CATALOGUE, doc)}#row-{paper.n}", f"row {paper.n}")
        items.append(f"<li>{row}: <cite>{escape(paper.title)}</cite> ({paper.year}){': ' if here else ''}{here}</li>")
    listed = f'<p class="mh-explained">This chapter explains:</p><ul>{"".join(items)}</ul>' if items else ""
    install = f'<div class="highlight-bash notranslate"><div class="highlight"><pre>pip install "mhlib @ {escape(project.repository.pip)}"</pre></div></div>'
    return f'<section class="mh-footer" aria-label="In the library and the catalogue">{listed}<p>To run its code elsewhere, install the library:</p>{install}</section>'


def structured(project: Project, doc: str, title: str, papers: list) -> dict:
    """schema.org's description of a page and of the papers that it explains."""
    data = {
        "@context": "https://schema.org",
        "@type": "WebSite" if doc == HOME else "TechArticle",
        "headline": title,
        "url": project.repository.page(doc),
        "isPartOf": {"@type": "Book", "name": "Heads and Pools", "url": project.repository.site},
        "license": "https://spdx.org/licenses/MIT",
    }
    if papers:
        data["citation"] = [
            {"@type": "ScholarlyArticle", "name": paper.title, "datePublished": str(paper.year), **({"url": paper.url} if paper.url else {})}
            for paper in papers
        ]
    return data
