"""Which public names the library has, on which page each is described, and which mechanisms they are."""

import functools
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from atlas.html import escape, relative
from atlas.project import Project

FOLDER = "book/reference/api"
#: Packages whose subfolders are families, with a page for each.
BY_FAMILY = ("heads", "pooling", "outputs")
#: No part of the library's interface.
WITHOUT = ("cli",)


@dataclass(frozen=True)
class Page:
    """One page: a package of `mhlib`, or one family of it."""

    package: str
    family: str
    modules: dict[str, str]  # public name -> the module that defines it

    @property
    def names(self) -> tuple[str, ...]:
        """Classes first, then functions and data."""
        return tuple(sorted(self.modules, key=lambda name: (name.islower(), name.lower())))

    @property
    def doc(self) -> str:
        return f"{FOLDER}/{'-'.join(filter(None, [self.package.removeprefix('mhlib.'), self.family]))}"

    @property
    def title(self) -> str:
        return f"{self.package}: {self.family.replace('_', ' ')}" if self.family else self.package

    @property
    def module(self) -> str:
        """The package whose docstring opens the page."""
        return f"{self.package}.{self.family}" if self.family else self.package


@dataclass(frozen=True)
class Api:
    pages: tuple[Page, ...]
    mechanisms: dict

    @classmethod
    @functools.cache
    def of(cls, project: Project) -> "Api":
        from mhlib import registry

        return cls(tuple(sorted(_pages(project.root / "mhlib"), key=lambda page: (page.package != "mhlib", page.doc))), registry.mechanisms())

    @functools.cached_property
    def addresses(self) -> dict[str, tuple[str, str]]:
        """Dotted name -> page and anchor."""
        return {f"{page.package}.{name}": (page.doc, f"{page.package}.{name}") for page in self.pages for name in page.names}

    def link(self, mechanism: str, page: str) -> str:
        """HTML of a link from a page to a mechanism of the registry; its name alone where no page describes it."""
        text = f"<code>{escape(self.mechanisms[mechanism].path.rpartition('.')[2])}</code>"
        address = self.address(mechanism, page)
        return f'<a href="{address}">{text}</a>' if address else text

    def address(self, mechanism: str, page: str) -> str | None:
        """Where a mechanism of the registry is described, as seen from a page; None where that is nowhere."""
        path = self.mechanisms[mechanism].path
        if path not in self.addresses:
            return None
        doc, anchor = self.addresses[path]
        return f"{relative(doc, page)}#{anchor}"


def _pages(root: Path):
    from mhlib._lazy import scan, submodules

    yield Page("mhlib", "", _public("mhlib"))
    for part in submodules(str(root / "__init__.py")):
        if part in WITHOUT or part == "kernels" and importlib.util.find_spec("triton") is None:
            continue
        package = f"mhlib.{part}"
        folder = root / part
        names = scan(package, str(folder / "__init__.py")) if folder.is_dir() else _public(package)
        groups: dict[str, dict[str, str]] = {}
        for name, module in names.items():
            groups.setdefault(_family(part, module), {})[name] = module
        yield from (Page(package, family, members) for family, members in groups.items())


def _public(module: str) -> dict[str, str]:
    return dict.fromkeys(getattr(importlib.import_module(module), "__all__", ()), module)


def _family(part: str, module: str) -> str:
    """The subfolder of a family, of mhlib.heads.sharing.grouped_query: sharing; what lies beside the folders has none."""
    parts = module.split(".")
    return parts[2] if part in BY_FAMILY and len(parts) > 3 else ""
