"""Charts as inline SVG: they follow the page's colours, say in words what they show, and number what colour tells apart."""

from dataclasses import dataclass

from atlas.html import escape

WIDTH, LABELS, BAR, GAP = 640, 190, 18, 8


@dataclass(frozen=True)
class Series:
    """One part of every bar. Its fill is a class of mh.css, so that dark pages can have their own; `sign` stands beside the number."""

    name: str
    fill: str
    sign: str


def stacked_bars(title: str, axis: str, bars: dict[str, list[int]], series: list[Series]) -> str:
    """Horizontal bars of counts, one part a series; the axis starts at 0."""
    most = max((sum(parts) for parts in bars.values()), default=0) or 1
    unit = (WIDTH - LABELS - 110) / most
    pieces, top = [], 30
    for number, one in enumerate(series):
        left = LABELS + number * 145
        pieces.append(f'<rect class="{one.fill}" x="{left}" y="4" width="12" height="12"/>')
        pieces.append(f'<text x="{left + 17}" y="14">{one.sign} {escape(one.name)}</text>')
    for label, parts in bars.items():
        pieces.append(f'<text x="{LABELS - 8}" y="{top + 13}" text-anchor="end">{escape(label)}</text>')
        left = float(LABELS)
        for one, count in zip(series, parts, strict=True):
            if count:
                pieces.append(f'<rect class="{one.fill}" x="{left:.1f}" y="{top}" width="{count * unit:.1f}" height="{BAR}"><title>{escape(f"{label}: {count} {one.name}")}</title></rect>')
                left += count * unit
        signs = " ".join(f"{one.sign}{count}" for one, count in zip(series, parts, strict=True) if count)
        pieces.append(f'<text x="{left + 5:.1f}" y="{top + 13}">{signs}</text>')
        top += BAR + GAP
    pieces.append(f'<path d="M{LABELS} 26V{top}" stroke="currentColor"/><text x="{LABELS}" y="{top + 16}">{escape(axis)}</text>')
    words = "; ".join(f"{label}: " + ", ".join(f"{count} {one.name}" for one, count in zip(series, parts, strict=True)) for label, parts in bars.items())
    return (
        f'<div class="mh-table" tabindex="0" role="group" aria-label="{escape(title)}">'
        f'<svg class="mh-chart" viewBox="0 0 {WIDTH} {top + 24}" width="{WIDTH}" role="img" aria-label="{escape(f"{title}. {words}.")}">{"".join(pieces)}</svg></div>'
    )
