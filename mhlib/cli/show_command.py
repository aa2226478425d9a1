"""``show``: one mechanism, or one paper of the catalogue."""

import argparse
import inspect

import torch

from mhlib import catalog
from mhlib.cli import Failure, build, find
from mhlib.cli.text import readable, table, wrap
from mhlib.registry import PROPERTIES, Mechanism

#: Sizes of large models, for the arguments that a mechanism asks for: as in Llama 3 and DeepSeek-V2.
REALISTIC = {"num_kv_heads": 8, "kv_rank": 512, "rope_dim": 64, "window": 4096, "num_groups": 8}


def run(options: argparse.Namespace) -> None:
    if options.name.isdecimal():
        _paper(int(options.name))
    else:
        _mechanism(find.mechanism(options.name))


def _paper(n: int) -> None:
    try:
        paper, status = catalog.paper(n), catalog.status()[n]
    except (ValueError, KeyError) as error:
        raise Failure(str(error)) from error
    print(wrap(f"Row {n}: {paper.title} ({paper.year})"))
    print(wrap(f"{paper.kind}, family {paper.family}{f', {paper.url}' if paper.url else ''}", 2, "  "))
    print("\n" + wrap(paper.mechanism, 2, "  ") + "\n\n" + wrap(paper.does, 2, "  "))
    print(f"\nState: {status.state}" + "".join(f"\n  missing: {text}" for text in status.missing))
    if status.mechanisms:
        print(f"Mechanisms: {', '.join(status.mechanisms)}")


def _mechanism(m: Mechanism) -> None:
    changes = f", changes {m.stage}" if m.stage else ""
    print(f"{m.name}: {m.path}\n{m.kind.replace('_', ' ')}, family {m.family}{changes}\n")
    print(readable(inspect.getdoc(m.obj) or ""))
    _section("Papers", [_cited(n) for n in m.papers])
    _section("Promises, each tested", [f"{name}: {text}" for name, text in PROPERTIES.items() if name in m.properties])
    _section("Becomes", [reduction.text for reduction in m.reductions])
    _section("Compared in tests with", list(m.peers))
    if m.kind == "head":
        _costs(m)
    states = catalog.status()
    anchors = {n: states[n].anchor for n in m.papers if states[n].anchor}
    chapters = [f"{a['title']}: {a['doc']}.html#{a['anchor']} (row {n})" for n, a in anchors.items()]
    _section("Explained in the book", chapters or (["not yet, or the book has not been built here"] if m.papers else []))


def _section(title: str, lines: list[str]) -> None:
    if lines:
        print(f"\n{title}")
        for line in lines:
            print(wrap(line, 4, "  - "))


def _cited(n: int) -> str:
    paper = catalog.paper(n)
    return f"row {n}: {paper.title} ({paper.year}){f', arXiv {paper.arxiv}' if paper.arxiv else ''}"


def _costs(m: Mechanism) -> None:
    """Small, as the tests build it, and at the size of a large model where the arguments are known."""
    small = m.example()
    columns = [(f"dim {small.dim}, {small.num_heads} heads, 64 tokens", build.figures(small, 64, 1, torch.bfloat16))]
    wanted = build.constructor(m.obj)
    options = {name: REALISTIC[name] for name in build.required(m.obj) if name in REALISTIC}
    if "rope_dim" in wanted:
        options["rope_dim"] = REALISTIC["rope_dim"]
    try:
        large = build.figures(build.builder(m, 4096, 32, options), 4096, 1, torch.bfloat16, "H100")
    except Failure:
        large = []
    if large:
        chosen = "".join(f", {name} {value}" for name, value in options.items())
        columns.append((f"dim 4096, 32 heads{chosen}, 4096 tokens", large))
    for title, rows in columns:
        print("\n" + wrap(f"Cost of one layer in bfloat16: {title}", 2))
        print(table([("", "prefill", "one token"), *rows], right=(1, 2)))
    print(f"\n  At any other size:\n    python -m mhlib cost {m.name} --dim ... --heads ... --context ...")
