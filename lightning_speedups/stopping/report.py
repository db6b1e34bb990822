"""What early stopping reports: why it stopped, what was best, what it saved."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_speedups.reporting import text
from lightning_speedups.reporting.records import Record
from lightning_speedups.stopping.settings import Reason


@dataclass(frozen=True)
class Check(Record):
    """One look at the monitored metrics.

    Attributes:
        epoch: index of the epoch in which it was taken, from 0.
        step: optimizer steps done by then.
        values: one value per monitored metric; None for a metric that was not logged again.
        improved: whether the first metric improved.
    """

    epoch: int
    step: int
    values: tuple[float | None, ...]
    improved: bool


@dataclass(frozen=True)
class EarlyStoppingReport(Record):
    """What ``EarlyStopping`` did in a fit.

    Attributes:
        reason: "none", "patience", "threshold", "divergence", "non_finite", "gl", "pq" or "up".
        message: the reason in words, with the figures that it rests on.
        best_score: best value of the first metric (smoothed, where smoothing is on); None before any.
        best_epoch: index of the epoch of the best check, from 0.
        best_step: optimizer steps done at the best check.
        stopped_epoch: index of the epoch in which the stop was asked for; None without a stop.
        stopped_step: optimizer steps done by then; None without a stop.
        epochs_saved: planned epochs that were not run; None where the plan has no end, or without a stop.
        steps_saved: the same in optimizer steps.
        seconds_saved: ``steps_saved`` at this fit's mean seconds per step.
        restored: whether the best weights are back in the module.
        history: every check that was counted, first to last.
    """

    reason: Reason
    message: str
    best_score: float | None
    best_epoch: int | None
    best_step: int | None
    stopped_epoch: int | None
    stopped_step: int | None
    epochs_saved: float | None
    steps_saved: float | None
    seconds_saved: float | None
    restored: bool
    history: tuple[Check, ...]

    def __str__(self) -> str:
        best = "no value yet"
        if self.best_score is not None:
            where = (
                "before the resume" if self.best_step is None else f"epoch {self.best_epoch} (step {self.best_step})"
            )
            best = f"best {self.best_score:.6g} at {where}".replace("at before", "before")
        lines = [f"EarlyStopping: {self.message}", f"  {best}, {len(self.history)} checks"]
        if self.stopped_step is not None:
            parts = [
                "" if self.epochs_saved is None else f"{self.epochs_saved:.4g} epochs",
                "" if self.steps_saved is None else f"{self.steps_saved:.0f} steps",
                "" if self.seconds_saved is None else f"about {text.seconds(self.seconds_saved)}",
            ]
            known = ", ".join(part for part in parts if part)
            saved = f"saved {known}" if known else "saved: the plan had no end"
            lines.append(f"  stopped in epoch {self.stopped_epoch} (step {self.stopped_step}); {saved}")
        if self.restored:
            lines.append("  the best weights are back in the module")
        return "\n".join(lines)
