"""The demo's two drawings: accuracy over time, and where the wall time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_speedups.demo.measures import RunResult
from lightning_speedups.reporting import plots, text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STOCK, PACK = "stock Trainer", "with the pack"


def accuracy_over_time(stock: RunResult, pack: RunResult) -> Figure:
    """Validation accuracy against the seconds since the fit began; a star at each run's best epoch."""
    figure, axes = plots.new_figure(
        "Validation accuracy over wall time", x_label="seconds since the fit began", y_label="accuracy, %"
    )
    with plots.style():
        for run, name, colour, width in ((stock, STOCK, plots.BLUE, 4.0), (pack, PACK, plots.VERMILLION, 1.6)):
            seconds = [point.end_s for point in run.curve]
            percent = [100 * point.val_acc for point in run.curve]
            axes.plot(seconds, percent, color=colour, linewidth=width, label=name)
            axes.plot(run.best.end_s, 100 * run.best.val_acc, "*", color=colour, markersize=9 + 2 * width)
            axes.plot(seconds[-1], percent[-1], "o", color=colour, markersize=4 + width)
        # The climb of the first epochs would press what the runs differ in into a thin band.
        climbed = [point.val_acc for run in (stock, pack) for point in run.curve[len(run.curve) // 8 :]]
        lowest = 100 * min(climbed)
        axes.set_ylim(lowest - 0.05 * (100 - lowest), 100 + 0.05 * (100 - lowest))
        axes.set_xlim(left=0)
        axes.legend(loc="lower right", title="star: best epoch, dot: end")
    return figure


def where_the_time_went(stock: RunResult, pack: RunResult) -> Figure:
    """Wall time of both runs as bars, training and evaluation apart."""
    figure, axes = plots.new_figure("Where the wall time went", x_label="seconds", height_in=2.2)
    with plots.style():
        names = [PACK, STOCK]
        evaluation = [pack.evaluation_s, stock.evaluation_s]
        rest = [pack.wall_s - pack.evaluation_s, stock.wall_s - stock.evaluation_s]
        axes.barh(names, rest, color=plots.BLUE, height=0.55, label="training")
        axes.barh(names, evaluation, left=rest, color=plots.ORANGE, height=0.55, label="evaluation")
        for position, run in enumerate((pack, stock)):
            axes.annotate(
                text.seconds(run.wall_s), (run.wall_s, position), (6, 0), textcoords="offset points", va="center"
            )
        axes.set_xlim(0, 1.22 * max(stock.wall_s, pack.wall_s))
        axes.grid(axis="y", visible=False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=2)
    return figure
