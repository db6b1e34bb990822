"""Shows the summary of the stop rules: two tables and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType

from lightning_speedups.reporting import plots, terminal
from stopping.summary import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = ("stops", "saved %", "steps", "loss %", "test", "worst", "to last")


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.stopped),
        f"{row.saved_pct.median:.0f} [{row.saved_pct.low:.0f}, {row.saved_pct.high:.0f}]",
        f"{row.steps_saved:.0f}",
        f"{row.val_loss_p90_pct:+.1f}",
        f"{row.test_mean:+.2f}",
        f"{row.test_worst:+.1f}",
        f"{row.test_mean_to_last:+.2f}",
    )


def rules_table(rows: Sequence[Row], epochs: int) -> RenderableType:
    """The rules side by side."""
    return terminal.table(
        f"Stop rules over {rows[0].curves} training curves of {epochs} epochs",
        ("rule", *_COLUMNS),
        [(row.rule.label, *_cells(row)) for row in rows],
        numeric=_COLUMNS,
        caption=(
            "rel: at least 1 % better counts; ema: smoothed by 0.6; acc: on the accuracy; all: until loss and accuracy"
            " are flat. stops: curves stopped before their end. saved %: epochs not run, median [95 % interval];"
            " steps: the same in optimizer steps. Given up, positive is worse: validation loss in %, 90th percentile"
            " over the curves; test accuracy in points against the full run's own best-validation epoch (mean, worst),"
            " and against its last epoch (mean)."
        ),
    )


def kinds_table(kinds: Mapping[str, Row]) -> RenderableType:
    """Where one rule helps, and where it does not."""
    label = next(iter(kinds.values())).rule.label
    return terminal.table(
        f"{label[:1].upper()}{label[1:]}, by learning-rate schedule and share of wrong labels",
        ("curves", *_COLUMNS),
        [(kind, *_cells(row)) for kind, row in kinds.items()],
        numeric=_COLUMNS,
    )


_MARKERS = "osD^v<>P"
_LABELS_AT = ((6, -12), (-14, 6), (5, -13), (-14, -13), (-5, 9), (5, 5), (-4, -16), (-4, 8))
"""Where each family's parameters stand beside its points, in points; chosen so that neighbours stay legible."""


def plot_of(rows: Sequence[Row]) -> Figure:
    """Saved against given up: a point a rule, joined within a family; bars hold the middle of the curves."""
    with plots.style():
        figure, axes = plots.new_figure(
            "What a stop rule saves, and what it gives up",
            x_label="epochs saved, % of the full run (mean; bars: quartiles)",
            y_label="test points given up (bars: 10-90 %)",
            width_in=9.0,
            height_in=5.4,
        )
        families: dict[str, list[Row]] = {}
        for row in rows:
            families.setdefault(row.rule.family, []).append(row)
        for index, (family, members) in enumerate(families.items()):
            colour = (*plots.PALETTE, plots.INK, plots.GREY)[index]
            xs, ys = [row.saved_mean_pct for row in members], [row.test_mean for row in members]
            axes.plot(xs, ys, _MARKERS[index], linestyle="-", color=colour, linewidth=1, label=plots.label(family))
            spread = {
                "xerr": _around(xs, [row.saved_quartiles_pct for row in members]),
                "yerr": _around(ys, [row.test_range for row in members]),
            }
            axes.errorbar(xs, ys, **spread, fmt="none", ecolor=colour, alpha=0.25, linewidth=1)
            for x, y, row in zip(xs, ys, members, strict=True):
                label = plots.label(row.rule.parameter)
                axes.annotate(label, (x, y), _LABELS_AT[index], textcoords="offset points", fontsize=9, color=colour)
        axes.axhline(0.0, color=plots.GREY, linewidth=1)
        axes.legend(loc="upper left")
    return figure


def _around(middles: Sequence[float], ranges: Sequence[tuple[float, float]]) -> np.ndarray:
    """Lengths of the bars below and above; a mean may lie outside the range when few curves carry it."""
    pairs = zip(middles, ranges, strict=True)
    return np.array([(max(middle - low, 0.0), max(high - middle, 0.0)) for middle, (low, high) in pairs]).T
