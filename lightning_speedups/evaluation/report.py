"""What the evaluation reports: the mode of each loop and why, what was found, what it saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lightning_speedups.evaluation.settings import LOOP_NAMES
from lightning_speedups.reporting import text
from lightning_speedups.reporting.records import Record

Kind: TypeAlias = Literal[
    "graph_kept",
    "needs_gradients",
    "inference_tensor",
    "train_mode",
    "grads_changed",
    "metric_changes_with_batch",
    "output_storage",
]

_NAMED = 4


@dataclass(frozen=True)
class EvaluationIssue(Record):
    """Something that an evaluation did, or would have done.

    Attributes:
        kind: what it is.
        where: the attribute, method, parameter or metric.
        message: what it means, and the next step.
    """

    kind: Kind
    where: str
    message: str


@dataclass(frozen=True)
class EvaluationReport(Record):
    """How evaluation ran with ``NoGradEvaluation``.

    Attributes:
        modes: for each loop that ran ("fit_validation", "sanity", "validate", "test", "predict") the mode that was
            really on: "grad", "no_grad" or "inference_mode".
        reasons: why, for the same loops.
        issues: what was found, loop by loop; each once.
        graph_bytes_avoided: what one training forward saved for backward, per sample, times the samples of the largest
            evaluation batch; None where no training step ran or it could not be read.
        eval_batch_sizes: samples in the largest batch of each loop.
    """

    modes: dict[str, str]
    reasons: dict[str, str]
    issues: tuple[EvaluationIssue, ...]
    graph_bytes_avoided: int | None
    eval_batch_sizes: dict[str, int]

    def __str__(self) -> str:
        lines = ["NoGradEvaluation: no evaluation ran" if not self.modes else "NoGradEvaluation:"]
        lines += [f"  {LOOP_NAMES[loop]}: {mode} ({self.reasons[loop]})" for loop, mode in self.modes.items()]
        if self.graph_bytes_avoided is not None:
            lines.append(f"  graph not kept, per evaluation batch: {text.size_of(self.graph_bytes_avoided)}")
        return "\n".join([*lines, *_alike_together(self.issues)])


def _alike_together(issues: tuple[EvaluationIssue, ...]) -> list[str]:
    """One line for issues that say the same of different places: a metric has several states."""
    places: dict[tuple[Kind, str], list[str]] = {}
    for issue in issues:
        said_of_it = issue.message.removeprefix(issue.where)
        # A message that does not begin with the place is about that place only.
        place = issue.where if said_of_it != issue.message else ""
        places.setdefault((issue.kind, said_of_it), []).append(place)
    lines = []
    for (kind, said_of_it), where in places.items():
        more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
        verb = said_of_it.replace(" was ", " were ", 1) if len(where) > 1 else said_of_it
        lines.append(f"  {kind}: {', '.join(where[:_NAMED])}{more}{verb}")
    return lines
