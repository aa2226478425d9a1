"""The papers, one typed row each, read from ``papers.json`` on first use."""

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Paper", "paper", "papers"]


@dataclass(frozen=True)
class Paper:
    """One row of the catalogue.

    Attributes:
        n: the row number that everything refers to.
        key: citation key.
        title, year, arxiv: of the paper; arxiv is None where no preprint is known.
        confidence: how sure title and identifier are: "high", "medium" or "low".
        kind: operator, training, system, analysis, theory, application, survey, or homonym (another meaning of "head").
        family, also: the family that it belongs to, and others that it touches.
        mechanism: what it contributes, in one line.
        does: what that is good for, in a few sentences.
    """

    n: int
    key: str
    title: str
    year: int
    arxiv: str | None
    confidence: str
    kind: str
    family: str
    also: tuple[str, ...]
    mechanism: str
    does: str

    @property
    def url(self) -> str | None:
        """The preprint's address, or None."""
        return None if self.arxiv is None else f"https://arxiv.org/abs/{self.arxiv}"


# Some titles of the data say in words what `confidence` says as well.
_NOT_CERTAIN = re.compile(r"\s*[(\[](exact )?title not (verified|found)[)\]]$")


@functools.cache
def papers() -> tuple[Paper, ...]:
    """All rows, by number."""
    rows = json.loads((Path(__file__).parent / "papers.json").read_text(encoding="utf-8"))
    return tuple(Paper(**row | {"also": tuple(row["also"]), "title": _NOT_CERTAIN.sub("", row["title"])}) for row in rows)


def paper(n: int) -> Paper:
    """Row ``n``; a ValueError says which rows there are."""
    rows = papers()
    if not isinstance(n, int) or not 1 <= n <= len(rows):
        raise ValueError(f"paper must be a row number of the catalogue, 1 to {len(rows)}, got {n!r}")
    return rows[n - 1]
