"""Finding what the user named, with the nearest names where it does not exist."""

import difflib
import re
from collections.abc import Iterable

from mhlib.cli import Failure
from mhlib.registry import Mechanism, mechanisms


def mechanism(name: str) -> Mechanism:
    """By its name in the registry, the name of its class or function, or its initials: gqa, or what its title brackets, (MLA)."""
    known = mechanisms()
    by_name: dict[str, Mechanism] = {}
    for names in (_short, lambda m: [m.obj.__name__], lambda m: [m.name]):  # a later name outdoes an earlier one
        by_name |= {name.lower(): m for m in known.values() for name in names(m)}
    key = name.replace("-", "_").lower()
    if key not in by_name:
        raise Failure(f"no mechanism is called {name!r}{nearest(key, known) or '.'} `python -m mhlib list` shows all")
    return by_name[key]


def _short(m: Mechanism) -> list[str]:
    return ["".join(word[0] for word in m.name.split("_")), *re.findall(r"\((\w+)\)", m.title)]


def nearest(name: str, known: Iterable[str]) -> str:
    """"; did you mean ...?" or nothing."""
    by_lower = {k.lower(): k for k in known}
    near = [by_lower[k] for k in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def choice(what: str, name: str, known: Iterable[str]) -> str:
    """The one of ``known`` that is meant, upper and lower case apart."""
    by_lower = {k.lower(): k for k in known}
    if name.lower() not in by_lower:
        raise Failure(f"no {what} is called {name!r}; there are {', '.join(by_lower.values())}")
    return by_lower[name.lower()]
