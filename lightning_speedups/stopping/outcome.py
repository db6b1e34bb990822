"""What a fit planned and what came of it: filled while it runs, read by the report. Plain numbers only."""

from __future__ import annotations

import math
import time

from lightning_speedups.stopping.judge import Judge
from lightning_speedups.stopping.report import EarlyStoppingReport
from lightning_speedups.stopping.settings import Reason


class Outcome:
    """The course of one fit.

    Args:
        planned_epochs: ``inf`` where nothing limits them.
        planned_steps: optimizer steps; ``inf`` where nothing limits them.
        first_step: optimizer steps that were done before this fit.
        seconds_before: seconds trained before this fit, in the run that it goes on with.
    """

    def __init__(
        self,
        planned_epochs: float = math.inf,
        planned_steps: float = math.inf,
        first_step: int = 0,
        seconds_before: float = 0.0,
    ) -> None:
        self.checked_at_step = first_step
        self.restored = False
        self._planned_epochs, self._planned_steps = planned_epochs, planned_steps
        self._first_step, self._seconds_before = first_step, seconds_before
        self._began = time.monotonic()
        self._seconds_at_end: float | None = None
        self._epochs_done, self._steps_done = 0.0, first_step
        self._reason: Reason = "none"
        self._stopped_epoch: int | None = None
        self._stopped_step: int | None = None

    @property
    def seconds(self) -> float:
        """Seconds trained so far, those before a resume included."""
        if self._seconds_at_end is not None:
            return self._seconds_at_end
        return self._seconds_before + time.monotonic() - self._began

    @property
    def stopped(self) -> bool:
        """Whether the stop has been asked for."""
        return self._stopped_step is not None

    def stop(self, reason: Reason, epoch: int, step: int) -> None:
        """The Trainer has been asked to stop."""
        self._reason, self._stopped_epoch, self._stopped_step = reason, epoch, step

    def advance(self, epochs_done: float, steps_done: int) -> None:
        """So much has been trained."""
        self._epochs_done, self._steps_done = epochs_done, steps_done

    def end(self) -> None:
        """The fit is over: its clock stands still."""
        self._seconds_at_end = self.seconds

    def report(self, judge: Judge, message: str | None) -> EarlyStoppingReport:
        """The course so far as a report."""
        epochs, steps, seconds = self._saved()
        return EarlyStoppingReport(
            reason=self._reason,
            message=message or "not stopped",
            best_score=judge.best,
            best_epoch=judge.best_epoch,
            best_step=judge.best_step,
            stopped_epoch=self._stopped_epoch,
            stopped_step=self._stopped_step,
            epochs_saved=epochs,
            steps_saved=steps,
            seconds_saved=seconds,
            restored=self.restored,
            history=tuple(judge.history),
        )

    def _saved(self) -> tuple[float | None, float | None, float | None]:
        if not self.stopped:
            return None, None, None
        epochs = max(self._planned_epochs - self._epochs_done, 0.0) if math.isfinite(self._planned_epochs) else None
        if math.isinf(self._planned_steps):
            return epochs, None, None
        steps = max(self._planned_steps - self._steps_done, 0.0)
        trained = self._steps_done - self._first_step
        seconds = (self.seconds - self._seconds_before) / trained * steps if trained else None
        return epochs, steps, seconds
