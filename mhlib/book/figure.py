"""One style for all figures, and figures as inline SVG that follows a light or dark page and says in words what it shows."""

import hashlib
import io
import itertools
import re
from dataclasses import dataclass
from html import escape

__all__ = ["figure", "style", "Figure"]

# Okabe and Ito's colours, which colour-blind readers tell apart, without black and yellow: those vanish on a dark or a light page.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
_LINES = ["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1))]
# Stands for "the colour of the text around the figure" until the SVG is written; no other part of a figure uses it.
_INK = "#010203"
_count = itertools.count(1)


def style() -> None:
    """Set matplotlib's defaults for every figure that follows. Call it once, in the chapter's first cell."""
    import matplotlib as mpl
    from cycler import cycler

    ink = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color", "grid.color",
           "legend.labelcolor", "hatch.color", "boxplot.medianprops.color", "lines.color")
    mpl.rcParams.update({
        **{name: _INK for name in ink},
        "axes.prop_cycle": cycler(color=_COLOURS) + cycler(linestyle=_LINES),
        "figure.figsize": (6.4, 3.6),
        "figure.constrained_layout.use": True,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": False,
        "grid.alpha": 0.25,
        "axes.titlesize": "medium",
        "axes.titlelocation": "left",
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
        "image.cmap": "viridis",
        "image.interpolation": "nearest",
        "svg.fonttype": "none",
    })


@dataclass(frozen=True)
class Figure:
    """A drawn figure: inline SVG and its description."""

    svg: str
    alt: str
    caption: str | None

    def _repr_mimebundle_(self, include=None, exclude=None):
        caption = f'<figcaption style="font-size:0.9em;margin-top:0.4em;color:inherit">{escape(self.caption)}</figcaption>' if self.caption else ""
        html = f'<figure class="mhlib-figure" style="margin:1em 0;color:inherit">{self.svg}{caption}</figure>'
        return {"text/html": html, "text/plain": f"Figure: {self.alt}"}


def figure(fig, alt: str, caption: str | None = None) -> Figure:
    """Turn a matplotlib figure into inline SVG and close it. Make it the last value of a cell.

    Args:
        fig: the matplotlib figure, drawn after `style()`.
        alt: what the figure shows, for someone who cannot see it; best with the computed numbers in it.
        caption: a line below the figure.

    Raises:
        ValueError: `alt` is empty.
    """
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    if not alt or not alt.strip():
        raise ValueError("figure() needs alt: say in a sentence what the figure shows, for someone who cannot see it")
    for ax in fig.axes:
        if ax.images and not len(ax.get_xticks()) and not len(ax.get_yticks()):
            ax.spines[:].set_visible(False)  # a picture without scales needs no half frame
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "mhlib", "svg.fonttype": "none"}):  # the same figure gives the same text
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    width = fig.get_size_inches()[0]
    plt.close(fig)
    return Figure(_inline(buffer.getvalue(), alt.strip(), width), alt.strip(), caption)


def _inline(svg: str, alt: str, inches: float) -> str:
    svg = svg[svg.index("<svg"):].strip()
    view_box = re.search(r'viewBox="([^"]*)"', svg)[1]
    body = svg[svg.index(">") + 1:]
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # its one rule, for `*`, would reach the whole page
    body = re.sub(rf"(?<=: )({_INK}|#000000)", "currentColor", body)
    body = _unique_ids(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{view_box}" '
        f'role="img" aria-label="{escape(alt)}" fill="currentColor" '
        f'style="width:{inches * 96:.0f}px;max-width:100%;height:auto;stroke-linejoin:round;stroke-linecap:butt">{body}'
    )


def _unique_ids(body: str) -> str:
    """Matplotlib calls the first axes of every figure `axes_1`; a page holds many figures."""
    prefix = f"f{next(_count)}-{hashlib.sha256(body.encode()).hexdigest()[:6]}-"
    body = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', body)
    return re.sub(r'(url\(#|href="#)', rf"\1{prefix}", body)
