"""The bibliography: what the chapters cite, then every paper of the catalogue, and all of them as a BibTeX file."""

import functools
import json
import re
from itertools import groupby
from pathlib import Path

from docutils.nodes import make_id

from atlas.catalogue_page import DOC as CATALOGUE
from atlas.catalogue_page import DOUBT
from atlas.chapter import pages
from atlas.html import escape, link, raw, relative
from atlas.project import Project

DOC = "book/reference/bibliography"
#: Served next to the page.
BIBTEX = "book/reference/heads-and-pools.bib"
HEAD = """# Bibliography

The works that the chapters cite, then all {papers} papers of the [catalogue](catalogue.md).

{download}

## What the chapters cite

```{{bibliography}}
```

## All papers of the catalogue

The newest first, and within a year by row. The authors of {held} of them are named, those that the book's own list of references holds; of the others
this project's data hold none.

{years}
"""
BIBTEX_HEAD = """\
% The bibliography of Heads and Pools, {site}
% First what its chapters cite, then the other papers of its catalogue. The project's data hold no authors of these."""
_CITES = re.compile(r"\{cite(?::\w+)?\}`([^`]+)`")


class BibFile:
    """The entries of `references.bib`, and which of them is a paper of the catalogue."""

    def __init__(self, text: str):
        from pybtex.database import parse_string

        self.text = text
        self.entries = parse_string(text, "bibtex").entries
        self._by_number = {entry.fields["eprint"]: key for key, entry in self.entries.items() if "eprint" in entry.fields}
        self._by_title = {_letters(_plain(entry.fields["title"])): key for key, entry in self.entries.items()}

    @classmethod
    def of(cls, project: Project) -> "BibFile":
        return cls((project.root / "book/references.bib").read_text(encoding="utf-8"))

    def key(self, paper) -> str | None:
        return self._by_number.get(paper.arxiv) or self._by_title.get(_letters(paper.title))

    def authors(self, key: str) -> str:
        return ", ".join(_name(person) for person in self.entries[key].persons.get("author", []))


def _plain(latex: str) -> str:
    from pybtex.richtext import Text

    return str(Text.from_latex(latex))


def _letters(title: str) -> str:
    """A title without what may differ between two spellings of it: case, punctuation, spaces."""
    return re.sub(r"[\W_]+", "", title.lower())


def _name(person) -> str:
    return _plain(" ".join([*person.first_names, *person.middle_names, *person.prelast_names, *person.last_names, *person.lineage_names]))


def page(project: Project) -> str:
    from mhlib import catalog

    anchors = json.loads((project.build / "anchors.json").read_text(encoding="utf-8"))
    return render(catalog.papers(), anchors, BibFile.of(project), cited(page.text for page in pages(project)))


def cited(texts) -> set[str]:
    """The keys that pages cite: the others of `references.bib` are not on the page."""
    return {key.strip() for text in texts for keys in _CITES.findall(text) for key in keys.split(",")}


def render(papers, anchors: dict[str, dict], bib: BibFile, cited: set[str]) -> str:
    papers = sorted(papers, key=lambda paper: (-paper.year, paper.n))
    years = {year: list(of_year) for year, of_year in groupby(papers, key=lambda paper: paper.year)}
    contents = " · ".join(link(f"#papers-{year}", f"{year}\N{NO-BREAK SPACE}({len(of_year)})") for year, of_year in years.items())
    head = HEAD.format(
        papers=len(papers),
        held=sum(bib.key(paper) is not None for paper in papers),
        download=raw(f'<p><a href="{BIBTEX.rpartition("/")[2]}" download>All of them as a BibTeX file</a></p>'),
        years=raw(f"<p>{contents}</p>"),
    )
    item = functools.partial(_item, anchors=anchors, bib=bib, cited=cited)
    lists = {year: "\n".join(item(paper) for paper in of_year) for year, of_year in years.items()}
    parts = [f"(papers-{year})=\n### {year}\n\n" + raw(f'<ul class="mh-papers">\n{items}\n</ul>') for year, items in lists.items()]
    return "\n".join([head, "\n\n".join(parts), ""])


def _item(paper, anchors: dict[str, dict], bib: BibFile, cited: set[str]) -> str:
    title = link(paper.url, paper.title) if paper.url else escape(paper.title)
    doubt = "" if paper.confidence == "high" else f" <em>({DOUBT})</em>"
    key = bib.key(paper)
    authors = f"<br>{escape(bib.authors(key))}" if key else ""
    more = " · ".join(_more(paper, anchors.get(str(paper.n)), key if key in cited else None))
    return f'<li id="paper-{paper.n}">{title}{doubt}<small>{authors}<br>{more}</small></li>'


def _more(paper, explained: dict | None, key: str | None):
    """The number of the preprint, and where else this site speaks of the paper."""
    if paper.arxiv:
        yield f"arXiv:{escape(paper.arxiv)}"
    yield link(f"{relative(CATALOGUE, DOC)}#row-{paper.n}", f"row {paper.n}")
    if explained:
        yield "Chapter: " + link(f"{relative(explained['doc'], DOC)}#{explained['anchor']}", explained["title"])
    if key:
        yield link("#" + make_id(f"cite-{key}"), "as cited above")


def bibtex(papers, bib: BibFile, site: str) -> str:
    """All works as one file: entries of `references.bib` as they are, and what the catalogue knows of the other papers."""
    others = [_entry(paper) for paper in papers if bib.key(paper) is None]
    return "\n\n".join([BIBTEX_HEAD.format(site=site), bib.text.strip(), *others]) + "\n"


def _entry(paper) -> str:
    fields = {"title": f"{{{_latex(paper.title)}}}", "year": str(paper.year)}
    if paper.arxiv:
        fields |= {"eprint": paper.arxiv, "archiveprefix": "arXiv"}
    elif paper.url:
        fields["url"] = paper.url
    if paper.confidence != "high":
        fields["note"] = DOUBT.capitalize()
    width = max(map(len, fields))
    body = ",\n".join(f"  {field:{width}} = {{{value}}}" for field, value in fields.items())
    return f"@misc{{{paper.key},\n{body}\n}}"


def _latex(text: str) -> str:
    """Plain text, with what means something to LaTeX escaped."""
    marks = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"} | {mark: f"\\{mark}" for mark in "&%$#_{}"}
    return "".join(marks.get(mark, mark) for mark in text)


def write_bibtex(project: Project, out: Path) -> None:
    from mhlib import catalog

    (out / BIBTEX).write_text(bibtex(catalog.papers(), BibFile.of(project), project.repository.site), encoding="utf-8")
