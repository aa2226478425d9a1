"""Where labels and citations lead, for notebooks that have no Sphinx to resolve them."""

import re
from dataclasses import dataclass
from pathlib import Path

from atlas.chapter import Chapter, pages
from atlas.myst import Directive, Text, parse
from atlas.project import Project

_TARGET = re.compile(r"^\(([^()\s]+)\)=\s*$")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$")
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
            titles[page.doc] = next((found[1] for line in page.text.splitlines() if (found := _HEADING.match(line))), page.doc)
        return cls(labels, citations(project.root / "book/references.bib"), titles)


def kind(name: str) -> str | None:
    """What a numbered directive is called, or None for one without a number."""
    if name.startswith("prf:") and name != "prf:proof":
        return name.removeprefix("prf:").capitalize()
    return NUMBERED.get(name)


def _labels(page: Chapter) -> dict[str, Target]:
    found: dict[str, Target] = {}
    counts: dict[str, int] = {}

    def number(name: str, label: str, title: str = "") -> None:
        counts[name] = counts.get(name, 0) + 1
        if label:
            found[label] = Target(page.doc, f"{name} {counts[name]}" + (f" ({title})" if title else ""), counts[name])

    def walk(text: str) -> None:
        waiting: list[str] = []
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
                for line in block.lines:
                    if target := _TARGET.match(line):
                        waiting.append(target[1])
                    elif heading := _HEADING.match(line):
                        found.update({label: Target(page.doc, heading[1]) for label in waiting})
                        waiting.clear()

    walk(page.text)
    return found


def citations(file: Path) -> dict[str, Citation]:
    if not file.is_file():
        return {}
    from pybtex.database import parse_file

    return {key: _citation(entry) for key, entry in parse_file(str(file)).entries.items()}


def _citation(entry) -> Citation:
    names = [" ".join(person.prelast_names + person.last_names).strip("{}") for person in entry.persons.get("author", [])]
    authors = names[0] if len(names) == 1 else " and ".join(names) if len(names) == 2 else f"{names[0]} et al." if names else entry.key
    fields = entry.fields
    arxiv = fields.get("eprint")
    link = fields.get("url") or (f"https://arxiv.org/abs/{arxiv}" if arxiv else None) or (f"https://doi.org/{fields['doi']}" if "doi" in fields else None)
    return Citation(authors, fields.get("year", "n.d."), link)
