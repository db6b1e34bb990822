"""How the report looks: the curve with its best check and the stop, and the section of the shared page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_speedups.reporting import plots, store, text
from lightning_speedups.reporting.sections import Chart, Fact, Section, Table
from lightning_speedups.stopping.report import EarlyStoppingReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROWS_SHOWN = 200


def curve(report: EarlyStoppingReport, names: Sequence[str]) -> Figure:
    """One row per metric over the optimizer steps, with the best check and the step of the stop marked."""
    figure, axes = plots.new_figure(
        "Early stopping", x_label="optimizer step", y_label=names[0], height_in=2.2 + 1.6 * len(names)
    )
    rows = [axes]
    if len(names) > 1:
        with plots.style():
            figure.clear()
            rows = list(figure.subplots(len(names), sharex=True))
            rows[0].set_title("Early stopping")
            rows[-1].set_xlabel("optimizer step")
    for index, (row, name) in enumerate(zip(rows, names, strict=True)):
        with plots.style():
            _draw(row, report, index, name)
    return figure


def section(report: EarlyStoppingReport, names: Sequence[str], title: str) -> Section:
    """The report as a section of the shared page."""
    facts = [Fact("Checks", text.count(len(report.history)))]
    if report.best_score is not None:
        facts.insert(0, Fact(f"Best {names[0]}", f"{report.best_score:.6g}", f"epoch {report.best_epoch}"))
    if report.steps_saved is not None:
        seconds = "" if report.seconds_saved is None else f"about {text.seconds(report.seconds_saved)}"
        facts.append(Fact("Steps saved", text.number(report.steps_saved), seconds))
    shown = report.history[-_ROWS_SHOWN:]
    rows = tuple(
        (str(check.epoch), str(check.step), *(_shown(value) for value in check.values), "yes" if check.improved else "")
        for check in shown
    )
    cut = f" (the last {_ROWS_SHOWN} of {len(report.history)})" if len(shown) < len(report.history) else ""
    figure = plots.to_svg(curve(report, names), title=title, description=report.message)
    return Section(
        title=title,
        summary=f"Result: {report.message}."
        + (
            " The best weights are back in the module; the optimizer stays at the last step." if report.restored else ""
        ),
        facts=tuple(facts),
        charts=(Chart(figure, "The dot is the best check; the dashed line is where training stopped."),),
        tables=(
            Table(
                f"Checks{cut}",
                ("epoch", "step", *_distinct(names), "improved"),
                rows,
                numeric=("epoch", "step", *_distinct(names)),
            ),
        ),
    )


def write(report_dir: str | Path, report: EarlyStoppingReport, names: Sequence[str], name: str | None) -> None:
    """Write ``early_stopping.json``, ``early_stopping.png`` and this report's part of ``report.html``."""
    title = "EarlyStopping" if name is None else f"EarlyStopping {name}"
    file = "early_stopping" if name is None else f"early_stopping_{name}"
    store.write_report(report_dir, file, report, section(report, names, title), curve(report, names))


def _draw(axes: Axes, report: EarlyStoppingReport, index: int, name: str) -> None:
    points = [(check.step, value) for check in report.history if (value := check.values[index]) is not None]
    axes.set_ylabel(plots.label(name, 40))
    axes.plot([step for step, _ in points], [value for _, value in points], color=plots.BLUE, marker="o", markersize=3)
    best = [(step, value) for step, value in points if step == report.best_step]
    if best:
        step, value = best[0]
        axes.plot(step, value, "o", color=plots.GREEN, markersize=9, label=f"best, epoch {report.best_epoch}")
    if report.stopped_step is not None:
        axes.axvline(
            report.stopped_step, color=plots.VERMILLION, linestyle="--", label=f"stop, epoch {report.stopped_epoch}"
        )
    if best or report.stopped_step is not None:
        axes.legend()


def _shown(value: float | None) -> str:
    return "not logged again" if value is None else f"{value:.6g}"


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    # A metric may be called like one of the table's own columns.
    return tuple(f"metric {name}" if name in ("epoch", "step", "improved") else name for name in names)
