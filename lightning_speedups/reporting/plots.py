"""Plots through matplotlib's object interface: no pyplot, no windows, the program's own settings left as they are.

matplotlib is imported when a figure is made, not before.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lightning_speedups.reporting import svg, text
from lightning_speedups.reporting.files import write_aside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, "Color Universal Design" (2008): told apart with every common kind of colour blindness. Ordered so
# that the first four keep a contrast of 3 to 1 on white and on the page's dark background; the set's yellow does
# not on white, and its black not on dark, so both are left out.
BLUE: Final = "#0072b2"
VERMILLION: Final = "#d55e00"
GREEN: Final = "#009e73"
PURPLE: Final = "#cc79a7"
ORANGE: Final = "#e69f00"
SKY: Final = "#56b4e9"
PALETTE: Final = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)

INK: Final = "#1f2328"
"""Text and axes. In a page it becomes the page's own text colour, so it reads in light and in dark."""

GREY: Final = "#8a8f98"
"""Grid lines and what stays in the background; reads in light and in dark."""

_DPI = 144
_STYLE: dict[str, Any] = {
    "text.usetex": False,
    "text.color": INK,
    "font.family": ["DejaVu Sans"],
    "font.size": 11,
    "svg.fonttype": "path",
    "svg.hashsalt": "lightning_speedups",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GREY,
    "grid.alpha": 0.35,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 2,
    "legend.frameon": False,
    "legend.fontsize": 10,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The look of the pack's plots while the block runs; the program's ``rcParams`` are back afterwards.

    ``new_figure``, ``save_png`` and ``to_svg`` use it by themselves. Wrap the drawing in between as well where it
    makes text or a legend: a program that sets ``text.usetex`` or a dark style would otherwise colour those.
    """
    from cycler import cycler
    from matplotlib.style import context

    with context([_STYLE, {"axes.prop_cycle": cycler(color=PALETTE)}], after_reset=True):
        yield


def new_figure(
    title: str, *, x_label: str = "", y_label: str = "", width_in: float = 7.0, height_in: float = 3.8
) -> tuple[Figure, Axes]:
    """A figure with one empty pair of axes in the pack's look.

    Args:
        title: what the plot shows, in a line.
        x_label: what runs to the right, with its unit.
        y_label: what runs up, with its unit.
        width_in: width in inches.
        height_in: height in inches.

    Example:
        >>> figure, axes = new_figure("Validation loss", x_label="epoch", y_label="loss")
        >>> _ = axes.plot([1, 2, 3], [0.9, 0.5, 0.4], color=BLUE, label=label("val_loss"))
        >>> to_svg(figure, title="Validation loss falls over three epochs").startswith("<svg")
        True
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(width_in, height_in), facecolor="white", layout="constrained")
        axes = figure.add_subplot(facecolor="none")
        axes.set_title(label(title, 70))
        axes.set_xlabel(label(x_label, 60))
        axes.set_ylabel(label(y_label, 40))
    return figure, axes


def label(words: object, limit: int = 40) -> str:
    """A foreign string as a plot's text: one short line, ``$`` not read as mathematics.

    matplotlib leaves a label that starts with ``_`` out of the legend; a space in front keeps it in.
    """
    line = text.one_line(words, limit).replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line


def save_png(figure: Figure, path: Path) -> None:
    """Write the figure as PNG, beside its place and then renamed into it.

    Raises:
        OSError: where it cannot be written; nothing half-written is left.
    """
    write_aside(path, _rendered(figure, "png", {"Software": None}, dpi=_DPI))


def to_svg(figure: Figure, *, title: str, description: str = "") -> str:
    """The figure as an ``<svg>`` element to put inside a page.

    Args:
        figure: the figure; it is not changed.
        title: its name for a reader who does not see it.
        description: what a seeing reader takes from it, in words.
    """
    from matplotlib.colors import to_hex

    document = _rendered(figure, "svg", {"Date": None, "Creator": None}, facecolor="none").decode("utf-8")
    root = svg.parse(document[document.index("<svg") :])
    svg.recolour(root, {to_hex(INK): "currentColor"})
    root.attrib["stroke-linejoin"] = "round"
    svg.describe(root, text.printable(title), text.printable(description))
    digest = hashlib.sha256(f"{title}\n{description}\n{document}".encode(errors="replace")).hexdigest()
    return svg.to_text(root, f"plot-{digest[:10]}-")


def _rendered(figure: Figure, file_format: str, metadata: dict[str, None], **options: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.text import Text

    canvas = {"png": FigureCanvasAgg, "svg": FigureCanvasSVG}[file_format](figure)
    buffer = io.BytesIO()
    with style(), warnings.catch_warnings():
        # A user's name may have letters that the font lacks; they come out as boxes, and the page spells the name.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from (current )?font", category=UserWarning)
        for words in figure.findobj(Text):
            words.set_usetex(False)
        canvas.print_figure(buffer, format=file_format, metadata=metadata, **options)
    return buffer.getvalue()
