"""Where labels and citations lead, for notebooks that have no Sphinx to resolve them."""

import re
from dataclasses import dataclass
from pathlib import Path

from atlas.chapter import Chapter, headings, pages
from atlas.myst import Directive, Text, parse
from atlas.project import Project

EQUATION = re.compile(r"\$\$(?P<body>[^$]+?)\$\$[ ]*\((?P<label>[\w:.-]+)\)")
NUMBERED = {"exercise": "Exercise", "figure": "Figure", "math": "Equation"}


@dataclass(frozen=True)
class Target:
    doc: str
    text: str
    number: int | None = None


@dataclass(frozen=True)
class Citation:
    authors: str
    year: str
    link: str | None


@dataclass(frozen=True)
class References:
    labels: dict[str, Target]
    citations: dict[str, Citation]
    titles: dict[str, str]

    @classmethod
    def of(cls, project: Project) -> "References":
        labels, titles = {}, {}
        for page in pages(project):
            labels.update(_labels(page))
            titles[page.doc] = next((title for _, title in headings(page.text) if title), page.doc)
        return cls(labels, citations(project.root / "book/references.bib"), titles)


def kind(name: str) -> str | None:
    """What a numbered directive is called, or None for one without a number."""
    if name.startswith("prf:") and name != "prf:proof":
        return name.removeprefix("prf:").capitalize()
    return NUMBERED.get(name)


def _labels(page: Chapter) -> dict[str, Target]:
    found = {label: Target(page.doc, title or label) for labels, title in headings(page.text) for label in labels}
    counts: dict[str, int] = {}

    def number(name: str, label: str, title: str = "") -> None:
        counts[name] = counts.get(name, 0) + 1
        if label:
            found[label] = Target(page.doc, f"{name} {counts[name]}" + (f" ({title})" if title else ""), counts[name])

    def walk(text: str) -> None:
        for block in parse(text):
            if isinstance(block, Directive):
                name = kind(block.name)
                if name and (block.label or name != "Equation"):  # an equation without a label has no number
                    number(name, block.label, block.argument if name not in ("Figure", "Equation") else "")
                if block.name != "code-cell":
                    walk(block.body)
            elif isinstance(block, Text):
                for equation in EQUATION.finditer(block.text):
                    number("Equation", equation["label"])

    walk(page.text)
    return found


def citations(file: Path) -> dict[str, Citation]:
    if not file.is_file():
        return {}
    from pybtex.database import parse_file

    return {key: _citation(entry) for key, entry in parse_file(str(file)).entries.items()}


def _citation(entry) -> Citation:
    from pybtex.richtext import Text as RichText

    names = [str(RichText.from_latex(" ".join(person.prelast_names + person.last_names))) for person in entry.persons.get("author", [])]
    if len(names) > 2:
        names = [f"{names[0]} et al."]
    fields = entry.fields
    addresses = {"url": "{}", "eprint": "https://arxiv.org/abs/{}", "doi": "https://doi.org/{}"}
    link = next((address.format(fields[field]) for field, address in addresses.items() if field in fields), None)
    return Citation(" and ".join(names) or entry.key, fields.get("year", "n.d."), link)
