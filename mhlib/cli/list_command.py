"""``list``: the mechanisms of the registry, or the rows of the catalogue, one a line, by family."""

import argparse
from collections.abc import Iterator
from itertools import groupby

from mhlib import catalog
from mhlib.cli import find
from mhlib.cli.text import table
from mhlib.registry import mechanisms

Row = tuple[str, tuple[str, ...]]  # the family, and the cells


def run(options: argparse.Namespace) -> None:
    states = catalog.status()
    families = {paper.family for paper in catalog.papers()} | {m.family for m in mechanisms().values()}
    family = options.family and find.choice("family", options.family, sorted(families))
    found = _papers(options, states) if options.papers else _mechanisms(options, states)
    rows = sorted((row for row in found if family in (None, row[0])), key=lambda row: row[0])
    if not rows:
        hint = "" if options.papers else "; add --papers to look in the whole catalogue"
        print(f"Nothing here is all of that{hint}.")
        return
    head = ("row", "state", "mechanisms", "paper") if options.papers else ("name", "kind", "rows", "state", "what")
    header, *lines = table([head, *(cells for _, cells in rows)]).split("\n")
    print(header)
    for of, group in groupby(zip(rows, lines), key=lambda pair: pair[0][0]):
        print(of, *(line for _, line in group), sep="\n")
    what = "papers" if options.papers else "mechanisms"
    working = sum(state.state == "works" for state in states.values())
    print(f"\n{len(rows)} {what}. Of all {len(states)} papers {working} work; `python -m mhlib show NAME` tells more.")


def _mechanisms(options: argparse.Namespace, states: dict) -> Iterator[Row]:
    for m in mechanisms().values():
        own = sorted({states[n].state for n in m.papers})
        if options.kind in (None, m.kind) and (options.state is None or options.state in own):
            yield m.family, (m.name, m.kind, ", ".join(map(str, m.papers)) or "-", ", ".join(own) or "-", m.title)


def _papers(options: argparse.Namespace, states: dict) -> Iterator[Row]:
    known = mechanisms()
    for paper in catalog.papers():
        status = states[paper.n]
        kinds = {known[name].kind for name in status.mechanisms}
        if options.kind in (None, *kinds) and options.state in (None, status.state):
            names = ", ".join(status.mechanisms) or "-"
            yield paper.family, (f"{paper.n:3}", status.state, names, f"{paper.title} ({paper.year})")
