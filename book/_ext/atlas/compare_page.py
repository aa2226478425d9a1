"""Heads, and pools, side by side at a size of the reader's choice: a table to sort and a chart, from numbers counted at build time."""

import json
from decimal import ROUND_HALF_UP, Decimal

from atlas import counts
from atlas.api import Api
from atlas.families import FAMILIES
from atlas.html import escape, raw
from atlas.project import Project
from atlas.sortable import Column, Filter, Row, sortable

HEADS, POOLS = "book/reference/compare-heads", "book/reference/compare-pools"
HEADS_TEXT = """# Compare heads

What one layer of each head costs, counted by `mhlib.cost` when this page was built: bfloat16, one sequence, no bias. A *prompt* is the whole context read
in one pass; a *token* is one step of decoding against a cache of that length. FLOPs are those of matrix products, two per multiply-add, with causal
tables counted in full; bytes are the least that must move. Where a layer asks for a size of its own, it gets a customary one: a quarter as many
key heads as heads, and a latent of an eighth of the width, without the rotary part. How to read FLOPs per byte is explained in
{doc}`/book/foundations/multi-head-attention`.
"""
POOLS_TEXT = """# Compare pools

What each pool costs on one set of tokens, counted when this page was built: bfloat16 numbers, FLOPs of matrix products (two per multiply-add), and the
least bytes that must move: the tokens, the weights and what comes out. A pool without matrix products shows 0 FLOPs; it is bound by its bytes.
"""


def heads(project: Project) -> str:
    api = Api.of(project)
    lengths = Filter("context", "Context", [(str(i), f"{n} tokens") for i, n in enumerate(counts.CONTEXTS)], setting=True)
    sizes = Filter("size", "Layer", [(str(i), text) for i, text in enumerate(counts.HEAD_SIZES)], setting=True)
    return HEADS_TEXT + "\n" + render("head-costs", HEADS, list(counts.heads(api.mechanisms.values())), counts.HEAD_MEASURES, [sizes, lengths], api)


def pools(project: Project) -> str:
    api = Api.of(project)
    lengths = Filter("context", "Set", [(str(i), f"{n} tokens") for i, n in enumerate(counts.TOKENS)], setting=True)
    sizes = Filter("size", "Tokens", [(str(i), text) for i, text in enumerate(counts.POOL_SIZES)], setting=True)
    return POOLS_TEXT + "\n" + render("pool-costs", POOLS, list(counts.pools(api.mechanisms.values())), counts.POOL_MEASURES, [sizes, lengths], api)


def render(name: str, doc: str, found: list, measures: tuple[str, ...], settings: list[Filter], api: Api) -> str:
    counted = [one for one in found if isinstance(one, counts.Counted)]
    columns = [Column("Mechanism", "text"), *(Column(measure, "number") for measure in measures)]
    families = {one.mechanism.family for one in counted}
    filters = [
        *settings,
        Filter("measure", "Chart", [(str(i), measure) for i, measure in enumerate(measures)], setting=True),
        Filter("family", "Family", [(family, title) for family, title in FAMILIES.items() if family in families]),
    ]
    shown = ", ".join(setting.options[0][1] for setting in settings)
    data = json.dumps({one.mechanism.name: {"options": one.options, "numbers": one.numbers} for one in counted}, separators=(",", ":"))
    parts = [
        sortable(name, "Costs", columns, [_row(one, doc, api) for one in counted], filters, "mechanisms"),
        f'<p class="mh-shown">Without JavaScript this table shows {escape(shown)}.</p>',
        f'<script type="application/json" class="mh-counts" data-for="{name}">{data}</script>',
    ]
    left = [f"- `{one.mechanism.name}` {one.reason}" for one in found if isinstance(one, counts.Uncounted)]
    return raw("\n".join(parts)) + "\n" + ("\nNot counted:\n\n" + "\n".join(left) + "\n" if left else "")


def _row(one, doc: str, api: Api) -> Row:
    label = api.link(one.mechanism.name, doc)
    if one.options[0]:
        label += f'<br><small class="mh-options">{escape(one.options[0])}</small>'
    first = one.numbers[0][0]
    cells = [label, *(si(number) for number in first)]
    return Row(one.mechanism.name, cells, {"family": one.mechanism.family}, {i: str(number) for i, number in enumerate(first, 1)})


def si(number: float) -> str:
    """Three digits and a prefix; compare.js writes numbers the same way."""
    if number < 1000 and number == int(number):
        return str(int(number))
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if number >= 0.9995 * 10**power:
            return f"{_three(number / 10**power)} {prefix}"
    return _three(number)


def _three(number: float) -> str:
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    # Halves go up, as JavaScript's toFixed has them.
    return str(Decimal(number).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
