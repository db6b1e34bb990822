"""How the report looks on the shared page."""

from __future__ import annotations

from pathlib import Path

from lightning_speedups.evaluation.report import EvaluationReport
from lightning_speedups.evaluation.settings import LOOP_NAMES
from lightning_speedups.reporting import store, text
from lightning_speedups.reporting.sections import Fact, Section, Table

TITLE = "NoGradEvaluation"


def section(report: EvaluationReport) -> Section:
    """The report as a section of the shared page."""
    tables = [
        Table(
            "Loops",
            ("loop", "mode", "samples a batch", "why"),
            tuple(
                (LOOP_NAMES[loop], mode, text.count(report.eval_batch_sizes.get(loop)), report.reasons[loop])
                for loop, mode in report.modes.items()
            ),
            numeric=("samples a batch",),
        )
    ]
    if report.issues:
        rows = tuple((issue.kind, issue.where, issue.message) for issue in report.issues)
        tables.append(Table("Found", ("kind", "where", "what it means"), rows))
    return Section(
        title=TITLE,
        summary=_summary(report),
        facts=(
            Fact("Graph not kept", text.size_of(report.graph_bytes_avoided), "per evaluation batch"),
            Fact("Found", text.count(len(report.issues)), "see the table" if report.issues else ""),
        ),
        tables=tuple(tables),
    )


def write(report_dir: str | Path, report: EvaluationReport) -> None:
    """Write ``no_grad_evaluation.json`` and this report's part of ``report.html``."""
    store.write_report(report_dir, "no_grad_evaluation", report, section(report))


def _summary(report: EvaluationReport) -> str:
    if not report.modes:
        return "No evaluation ran."
    modes = "; ".join(f"{LOOP_NAMES[loop]} ran under {mode}" for loop, mode in report.modes.items())
    kinds = list(dict.fromkeys(issue.kind for issue in report.issues))
    found = f" Found: {', '.join(kinds)}." if kinds else " Nothing kept a graph, and nothing else was found."
    return f"{modes[0].upper()}{modes[1:]}.{found}"
