"""The verdicts of claims: what they are called, and the sign that stands for each where there is little room."""

import json
from collections import Counter

from atlas.project import Project

VERDICTS = {"True": "holds here", "in part": "holds in part", "False": "not reproduced here"}
SIGNS = {"True": "✓", "in part": "◐", "False": "✗"}


def claims(project: Project) -> list[dict]:
    """The ledger as the last execution left it."""
    file = project.build / "ledger.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []


def sign(value: str, number: int | str = "") -> str:
    """HTML of a verdict's sign, with its words for those who point at it or listen."""
    return f'<span class="mh-sign" title="{VERDICTS[value]}">{SIGNS[value]} {number}<span class="mh-hidden"> {VERDICTS[value]}</span></span>'


def tally(found: list[dict]) -> str:
    """How many claims came out how."""
    counts = Counter(str(claim["holds"]) for claim in found)
    return " ".join(sign(value, counts[value]) for value in VERDICTS if counts[value])
