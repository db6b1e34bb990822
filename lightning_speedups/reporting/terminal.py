"""Tables for the terminal: at most 80 columns, plain where there is no colour, user text never read as markup."""

from __future__ import annotations

import io
import sys
from collections.abc import Collection, Sequence
from typing import TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lightning_speedups.reporting.sections import check_shape
from lightning_speedups.reporting.text import printable

WIDTH = 80


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    numeric: Collection[str] = (),
    caption: str = "",
) -> Group:
    """A table whose strings are shown as they are; a cell that wants colour is a ``rich.text.Text``.

    Args:
        title: one line above the table.
        columns: the headers.
        rows: one cell for each column.
        numeric: the headers of the columns to align right.
        caption: a line below: how it was measured, what the marks mean.

    Raises:
        ValueError: for a row of another length than ``columns``, or a numeric column that is not there.
    """
    check_shape(title, columns, rows, numeric)
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header in columns:
        # Folding rather than cutting: a value that a reader cannot see whole is worth nothing.
        grid.add_column(_plain(header), justify="right" if header in numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(cell if isinstance(cell, Text) else _plain(cell) for cell in row))
    # Not the grid's own title and caption: rich wraps those to the width of the grid, however narrow it is.
    parts: list[RenderableType] = [Text(printable(title), style="bold"), grid]
    return Group(*parts, *([Text(printable(caption), style="dim")] if caption else []))


def render(renderable: RenderableType, width: int = WIDTH) -> str:
    """What ``renderable`` looks like at ``width`` columns: plain text, no colour, no trailing spaces."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False, highlight=False)
    with console.capture() as capture:
        console.print(_unmarked(renderable))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def show(renderable: RenderableType, file: TextIO | None = None) -> None:
    """Print ``renderable`` in one write, so that progress bars and other processes do not tear it.

    Colour only on a terminal, and never where ``NO_COLOR`` is set. What the stream's encoding has no letter for
    is replaced rather than raised.
    """
    stream = sys.stdout if file is None else file
    console = Console(file=stream, highlight=False)
    console.width = min(console.width, WIDTH)
    with console.capture() as capture:
        console.print(_unmarked(renderable))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(capture.get().encode(encoding, "replace").decode(encoding))
    stream.flush()


def _plain(text: str) -> Text:
    return Text(printable(text))


def _unmarked(renderable: RenderableType) -> RenderableType:
    return _plain(renderable) if isinstance(renderable, str) else renderable
