"""Bar charts in plain HTML: they take the room there is and the page's colours, say in words what they show, and number what colour tells apart."""

from dataclasses import dataclass

from atlas.html import escape


@dataclass(frozen=True)
class Series:
    """One part of every bar. Its fill is a class of mh.css, so that dark pages can have their own; `sign` stands beside the number."""

    name: str
    fill: str
    sign: str


def stacked_bars(title: str, bars: dict[str, list[int]], series: list[Series]) -> str:
    """Horizontal bars of counts, one part a series; the axis starts at 0. compare.js draws bars of the same form."""
    most = max((sum(parts) for parts in bars.values()), default=0) or 1
    legend = "".join(f'<li><span class="mh-key {one.fill}"></span>{one.sign} {escape(one.name)}</li>' for one in series)
    rows = "".join(_row(label, parts, series, most) for label, parts in bars.items())
    words = "; ".join(f"{label}: " + ", ".join(f"{count} {one.name}" for one, count in zip(series, parts, strict=True)) for label, parts in bars.items())
    return f'<div class="mh-chart" role="img" aria-label="{escape(f"{title}. {words}.")}"><ul class="mh-legend">{legend}</ul>{rows}</div>'


def _row(label: str, parts: list[int], series: list[Series], most: int) -> str:
    counted = [(one, count) for one, count in zip(series, parts, strict=True) if count]
    pieces = "".join(f'<span class="mh-bar {one.fill}" style="--share:{count / most:.4f}" title="{count} {escape(one.name)}"></span>' for one, count in counted)
    said = " ".join(f"{one.sign} {count}" for one, count in counted)
    return f'<div class="mh-bars"><span class="mh-name">{escape(label)}</span><span class="mh-track">{pieces}<span class="mh-said">{said}</span></span></div>\n'
