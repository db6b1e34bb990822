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
            ("loop", "mode", "batch", "why"),
            tuple(
                (LOOP_NAMES[loop], _words(mode), text.count(report.eval_batch_sizes.get(loop)), report.reasons[loop])
                for loop, mode in report.modes.items()
            ),
            numeric=("batch",),
        )
    ]
    if report.issues:
        rows = tuple((_words(issue.kind), issue.where, issue.message) for issue in report.issues)
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
    by_mode: dict[str, list[str]] = {}
    for loop, mode in report.modes.items():
        by_mode.setdefault(mode, []).append(LOOP_NAMES[loop])
    modes = "; ".join(f"under {mode}: {', '.join(loops)}" for mode, loops in by_mode.items())
    kinds = [_words(kind) for kind in dict.fromkeys(issue.kind for issue in report.issues)]
    found = f" Found: {', '.join(kinds)}." if kinds else " Nothing kept a graph, and nothing else was found."
    return f"U{modes[1:]}.{found}"


def _words(name: str) -> str:
    """A name as words, which a narrow column can break between."""
    return name.replace("_", " ")
