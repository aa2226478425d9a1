"""The API reference: a page for each package of `mhlib` and for each family of heads, pools and outputs, from docstrings."""

import importlib
import inspect
import textwrap

from sphinx.pycode import ModuleAnalyzer

from atlas.api import FOLDER, Api, Page
from atlas.families import FAMILIES
from atlas.html import escape, link, raw, relative
from atlas.project import Project
from atlas.shown import shown

INDEX = FOLDER
CATALOGUE = "book/reference/catalogue"
HEAD = """# API reference

Every public name of `mhlib`, once, from the docstrings of the code that the chapters run. Where a name is a mechanism of the registry, its rows
in the [catalogue](catalogue.md) and the chapter that explains it stand above it. The {ref}`index of all names <genindex>` is sorted by letter.

{list}
"""


def pages(project: Project) -> dict[str, str]:
    """Path of each page -> its Markdown."""
    from mhlib import catalog

    api, status = Api.of(project), catalog.status(project.build)
    contents = "".join(f"<li>{link(relative(page.doc, INDEX), page.title)}: {_names(page)}</li>\n" for page in api.pages)
    texts = {INDEX: HEAD.replace("{list}", raw(f'<ul class="mh-names">\n{contents}</ul>'))}
    run = shown(project)
    texts |= {page.doc: _page(page, api, status, run) for page in api.pages}
    return {f"{doc}.md": text for doc, text in texts.items()}


def _names(page: Page) -> str:
    return ", ".join(f'<a href="{relative(page.doc, INDEX)}#{page.package}.{name}"><code>{escape(name)}</code></a>' for name in page.names)


def _page(page: Page, api: Api, status: dict, run: dict[str, str]) -> str:
    opening = inspect.getdoc(importlib.import_module(page.module)) or ""
    by_path = {mechanism.path: mechanism for mechanism in api.mechanisms.values()}
    parts = [f"# {page.title}", _rst(opening)]
    for name in page.names:
        path = f"{page.package}.{name}"
        parts.append(f"## {name}\n\n" + _entry(path, page.modules[name], by_path.get(path), page.doc, status, run))
    return "\n\n".join(parts) + "\n"


def _entry(path: str, module: str, mechanism, doc: str, status: dict, run: dict[str, str]) -> str:
    package, _, name = path.rpartition(".")
    obj = getattr(importlib.import_module(package), name)
    if isinstance(obj, type):
        directive = f".. autoclass:: {path}\n   :members:\n   :exclude-members: extra_repr\n   :show-inheritance:"
    elif callable(obj):
        directive = f".. autofunction:: {path}"
    else:
        said = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name), [])
        directive = f".. py:data:: {path}\n\n" + textwrap.indent("\n".join(said), "   ")
    about = _about(mechanism, doc, status, run.get(mechanism.name)) if mechanism else ""
    if package == "mhlib":
        # The listing of its source leads back to it by the package where it is defined.
        about += raw(f'<span id="{obj.__module__.rpartition(".")[0]}.{name}"></span>') + "\n\n"
    return about + _rst(directive)


def _about(mechanism, doc: str, status: dict, run: str | None) -> str:
    """What the registry knows: name and kind, rows and their state, the chapter that explains it or else the first that runs it."""
    rows = [status[n] for n in mechanism.papers]
    facts = [f"<code>{escape(mechanism.name)}</code>, {escape(mechanism.kind.replace('_', ' '))}, {escape(FAMILIES[mechanism.family].lower())}"]
    facts += [link(f"{relative(CATALOGUE, doc)}#row-{row.n}", f"row {row.n}") + f" ({escape(row.state)})" for row in rows]
    facts += [link(f"{relative(row.anchor['doc'], doc)}#{row.anchor['anchor']}", f"chapter: {row.anchor['title']}") for row in rows if row.anchor]
    if run and not any(row.anchor for row in rows):
        facts.append(link(relative(run, doc), f"run in: {run.rpartition('/')[2].replace('-', ' ')}"))
    checks = [f"reduces: {r.text}" for r in mechanism.reductions] + [f"compared with {peer}" for peer in mechanism.peers]
    proofs = f"<br><small>{escape('; '.join(checks))}</small>" if checks else ""
    return raw(f'<p class="mh-about">{" · ".join(facts)}{proofs}</p>') + "\n\n"


def _rst(text: str) -> str:
    return f"````{{eval-rst}}\n{text}\n````"
