"""How the report looks: the rates of the settings tried, and the section of the shared page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_speedups.loading.report import DataLoaderTunerReport, LoaderPlan, trials_table
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.reporting import plots, store, text
from lightning_speedups.reporting.sections import Chart, Code, Fact, Section, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE = "DataLoaderTuner"


def rates(report: DataLoaderTunerReport) -> Figure:
    """One row per loader that was tried: samples per second of each setting, with its interval."""
    shown = [plan for plan in report.plans if _tried(plan)]
    figure, axes = plots.new_figure(
        "Loading, by setting", x_label="samples/s", height_in=1.6 + 2.2 * max(1, len(shown))
    )
    rows = [axes]
    if len(shown) > 1:
        with plots.style():
            figure.clear()
            rows = list(figure.subplots(len(shown)))
    for row, plan in zip(rows, shown, strict=False):
        with plots.style():
            _draw(row, plan)
    return figure


def section(report: DataLoaderTunerReport) -> Section:
    """The report as a section of the shared page."""
    tables = []
    for plan in report.plans:
        if plan.trials:
            columns, rows = trials_table(plan)
            tables.append(Table(f"{_name(plan)}: trials", columns, tuple(rows), numeric=("samples/s",)))
        if plan.refused:
            refusals = tuple((refusal.kind, refusal.where, refusal.message) for refusal in plan.refused)
            tables.append(Table(f"{_name(plan)}: refused", ("kind", "where", "why"), refusals))
    charts: tuple[Chart, ...] = ()
    if any(_tried(plan) for plan in report.plans):
        figure = plots.to_svg(rates(report), title="Loading, by setting", description=_summary(report))
        charts = (Chart(figure, "The bar is the median, the line the range of the rounds; the chosen one is green."),)
    return Section(
        title=_TITLE,
        summary=_summary(report),
        facts=tuple(_facts(report)),
        tables=tuple(tables),
        charts=charts,
        notes=tuple(f"{_name(plan)}: {advice}" for plan in report.plans for advice in plan.advice),
        code=tuple(Code(f"DataLoader(..., {plan.code})", _name(plan)) for plan in report.plans if plan.changed),
    )


def write(report_dir: str | Path, report: DataLoaderTunerReport) -> None:
    """Write ``data_loader_tuner.json``, ``data_loader_tuner.png`` and this report's part of ``report.html``."""
    figure = rates(report) if any(_tried(plan) for plan in report.plans) else None
    store.write_report(report_dir, "data_loader_tuner", report, section(report), figure)


def _facts(report: DataLoaderTunerReport) -> list[Fact]:
    facts = [Fact("Tuning took", text.seconds(report.seconds_spent_s))]
    if report.cpus is not None:
        facts.append(Fact("CPUs per rank", text.count(report.cpus.usable), ", ".join(report.cpus.chain)))
    for plan in report.plans:
        if plan.gain_realised is not None:
            facts.insert(0, Fact(_name(plan), text.ratio(plan.gain_realised), "measured in the first tuned epoch"))
        elif plan.gain_predicted is not None and plan.changed:
            facts.insert(0, Fact(_name(plan), text.ratio(plan.gain_predicted), "predicted by the trials"))
    return facts


def _summary(report: DataLoaderTunerReport) -> str:
    if not report.plans:
        return "No loader was looked at."
    return " ".join(f"{_name(plan)}: {plan.message}." for plan in report.plans)


def _tried(plan: LoaderPlan) -> bool:
    return any(trial.samples_per_s is not None for trial in plan.trials)


def _draw(axes: Axes, plan: LoaderPlan) -> None:
    tried = [trial for trial in plan.trials if trial.samples_per_s is not None]
    after = plan.after
    labels = [plots.label(_setting(trial.settings, trial.verdict)) for trial in tried]
    medians = [trial.samples_per_s or 0.0 for trial in tried]
    low = [median - (trial.low or median) for trial, median in zip(tried, medians, strict=True)]
    high = [(trial.high or median) - median for trial, median in zip(tried, medians, strict=True)]
    chosen = [trial.settings["num_workers"] == after["num_workers"] for trial in tried]
    colors = [plots.GREEN if is_chosen else plots.GREY for is_chosen in chosen]
    at = range(len(tried))
    axes.barh(at, medians, color=colors, xerr=[low, high], ecolor=plots.INK)
    axes.set_yticks(at, labels)
    axes.invert_yaxis()
    axes.set_title(plots.label(_name(plan), 60))
    axes.set_xlabel("samples/s")


def _setting(settings: dict[str, object], verdict: str) -> str:
    beside = " (step)" if verdict.endswith("beside the step") else ""
    return f"{LoaderSettings.from_dict(settings)}{beside}"


def _name(plan: LoaderPlan) -> str:
    return f"{plan.stage} loader {plan.index}" if plan.index else f"{plan.stage} loader"
