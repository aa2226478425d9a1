"""Results recorded on machines that a reader may not have, shown with device, date and versions."""

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path

__all__ = ["recorded", "Recorded"]

_PACKAGE = Path(__file__).parent
# A checkout keeps them beside the benchmarks that write them; a wheel carries a copy.
_FOLDERS = (_PACKAGE.parents[1] / "benchmarks/results", _PACKAGE / "results")


@dataclass(frozen=True)
class Recorded:
    """The recorded runs of one benchmark, newest first; none is an answer too."""

    name: str
    runs: tuple[dict, ...]

    def __bool__(self) -> bool:
        return bool(self.runs)

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/html": self._html(), "text/plain": self._plain()}

    def _missing(self) -> str:
        return f"Not recorded yet: nobody has run the benchmark {self.name!r} on a GPU and kept its result. No figure is shown in its place."

    def _plain(self) -> str:
        if not self.runs:
            return self._missing()
        return "\n\n".join(f"{_heading(run)}\n" + "\n".join(str(row) for row in run["rows"]) for run in self.runs)

    def _html(self) -> str:
        if not self.runs:
            box = "border:1px dashed rgba(128,128,128,0.7);border-radius:0.3em;padding:0.6em 1em;color:inherit"
            return f'<div class="mhlib-recorded" style="{box}">{escape(self._missing())}</div>'
        tables = "".join(map(_table, self.runs))
        label = f"Recorded results: {escape(self.name)}"
        return f'<div class="mhlib-recorded" style="overflow-x:auto" tabindex="0" role="group" aria-label="{label}">{tables}</div>'


def recorded(name: str, folders=_FOLDERS) -> Recorded:
    """The recorded runs whose `benchmarks` hold `name`, newest first; benchmarks/results/README.md says how a file looks.

    Raises:
        ValueError: a file lacks the device, the date or the versions: a figure without them says nothing.
    """
    runs = []
    for folder in map(Path, folders):
        for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            run = json.loads(file.read_text(encoding="utf-8"))
            if missing := [key for key in ("device", "date", "versions", "benchmarks") if not run.get(key)]:
                raise ValueError(f"{file} lacks {', '.join(missing)}; benchmarks/results/README.md says what a file holds")
            if name in run["benchmarks"]:
                runs.append({**{key: run[key] for key in ("device", "date", "versions")}, "rows": run["benchmarks"][name]})
        if runs:
            break  # the same files, once in the checkout and once in the wheel
    return Recorded(name, tuple(sorted(runs, key=lambda run: run["date"], reverse=True)))


def _heading(run: dict) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in run["versions"].items())
    return f"Recorded on {run['device']}, {run['date']}, with {versions}"


def _table(run: dict) -> str:
    columns = list(run["rows"][0])
    shown = {column: _column([row.get(column) for row in run["rows"]]) for column in columns}
    style = {column: f'style="text-align:{_side(run["rows"], column)};padding:0.2em 0.8em"' for column in columns}
    head = "".join(f'<th scope="col" {style[column]}>{escape(str(column))}</th>' for column in columns)
    rows = ("".join(f"<td {style[column]}>{escape(shown[column][n])}</td>" for column in columns) for n in range(len(run["rows"])))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    caption = f'<caption style="text-align:left;color:inherit">{escape(_heading(run))}</caption>'
    return f'<table style="color:inherit">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _side(rows: list[dict], column: str) -> str:
    return "left" if any(isinstance(row.get(column), str) for row in rows) else "right"


def _column(values: list) -> list[str]:
    """Four digits; the same number of decimals in a whole column, unless some need an exponent."""
    shown = [f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value) for value in values]
    floats = [text for text, value in zip(shown, values) if isinstance(value, float)]
    if any(not text.replace(".", "").lstrip("-").isdigit() for text in floats):
        return shown
    decimals = max((len(text.partition(".")[2]) for text in floats), default=0)
    return [f"{value:.{decimals}f}" if isinstance(value, float) else text for text, value in zip(shown, values)]
