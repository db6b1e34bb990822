"""What a patience means in this run: how often checks come, and what would go wrong. Pure: numbers in, words out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_speedups.stopping.settings import Settings


@dataclass(frozen=True)
class Schedule:
    """How often the monitored value is checked in a run.

    Args:
        batches_per_epoch: training batches on this rank in an epoch; ``inf`` where the length is not known.
        accumulation: batches per optimizer step.
        batches_between: batches from one check to the next inside an epoch; None for one check an epoch.
        epochs_between: a check comes only in every so many epochs.
        across_epochs: ``batches_between`` is counted over epoch boundaries.
        max_epochs: planned epochs, ``inf`` for no limit.
        max_steps: planned optimizer steps, ``inf`` for no limit.
        steps_known: whether an accumulation window is one step; under manual optimization it need not be.
    """

    batches_per_epoch: float
    accumulation: int = 1
    batches_between: float | None = None
    epochs_between: int = 1
    across_epochs: bool = False
    max_epochs: float = math.inf
    max_steps: float = math.inf
    steps_known: bool = True

    @property
    def steps_per_epoch(self) -> float:
        """Optimizer steps in an epoch; a short last accumulation window counts as one."""
        if math.isinf(self.batches_per_epoch) or not self.steps_known:
            return math.inf
        return math.ceil(self.batches_per_epoch / self.accumulation)

    @property
    def checks_per_epoch(self) -> float:
        """Checks per epoch on average; 0 where none ever comes, NaN where it is not known."""
        if self.batches_between is None or math.isinf(self.batches_between):
            return 1 / self.epochs_between
        if math.isinf(self.batches_per_epoch):
            return math.nan
        if self.across_epochs:
            return self.batches_per_epoch / self.batches_between
        return (self.batches_per_epoch // self.batches_between) / self.epochs_between

    @property
    def planned_steps(self) -> float:
        """Optimizer steps of the whole run, ``inf`` where nothing limits it."""
        by_epochs = math.inf if math.isinf(self.max_epochs) else self.max_epochs * self.steps_per_epoch
        return min(by_epochs, self.max_steps)

    def steps_of(self, settings: Settings) -> float:
        """The patience in optimizer steps; NaN where it cannot be known."""
        patience, unit = settings.patience, settings.patience_unit
        if unit == "steps":
            return patience
        if unit == "seconds":
            return math.nan
        if unit == "checks":
            if self.batches_between is not None and self.across_epochs and self.steps_known:
                return patience * self.batches_between / self.accumulation
            rate = self.checks_per_epoch
            patience = patience / rate if rate else math.inf
        steps = patience * self.steps_per_epoch
        return math.nan if math.isinf(steps) else steps

    def translated(self, settings: Settings) -> str:
        """The patience in every unit that can be known, such as ``3 checks = 0.75 epochs = 6 steps``.

        For the rules that know no patience: how often they look.
        """
        rate, steps = self.checks_per_epoch, self.steps_of(settings)
        if settings.rule != "patience":
            return "the time between checks is not known" if math.isnan(rate) else f"{rate:.4g} checks an epoch"
        own = f"{settings.patience:g} {settings.patience_unit}"
        if settings.patience_unit == "seconds":
            often = "" if math.isnan(rate) else f", looked at {rate:g} times an epoch"
            return f"{own}{often}"
        epochs = math.nan if math.isinf(self.steps_per_epoch) else steps / self.steps_per_epoch
        if settings.patience_unit == "epochs":
            epochs = settings.patience
        spans = {
            "checks": settings.patience if settings.patience_unit == "checks" else epochs * rate,
            "epochs": settings.patience / rate if settings.patience_unit == "checks" and rate else epochs,
            "steps": steps,
        }
        others = [
            f"{value:.4g} {unit}"
            for unit, value in spans.items()
            if unit != settings.patience_unit and math.isfinite(value)
        ]
        return " = ".join([own, *others])

    def why_no_check(self) -> str | None:
        """Why no check can ever happen, or None where one can."""
        if self.checks_per_epoch == 0:
            return (
                f"a check comes every {self.batches_between:g} batches, and an epoch has {self.batches_per_epoch:g};"
                " the count starts anew with each epoch"
            )
        if self.epochs_between > self.max_epochs:
            return f"a check comes every {self.epochs_between} epochs, and max_epochs={self.max_epochs:g}"
        if self.batches_between is None or math.isinf(self.batches_between):
            return None
        first_step = self.batches_between / self.accumulation
        if not self.across_epochs and math.isfinite(self.steps_per_epoch):
            first_step += (self.epochs_between - 1) * self.steps_per_epoch
        if first_step > self.planned_steps:
            return f"the first check would come at step {first_step:g}, and the run ends at step {self.planned_steps:g}"
        return None


def plateau_warning(earliest_step: float, theirs_steps: float, ours: str, theirs: str) -> str | None:
    """A warning where training would stop before ``ReduceLROnPlateau`` had lowered the rate once."""
    if math.isnan(earliest_step) or math.isnan(theirs_steps) or theirs_steps < earliest_step:
        return None
    return (
        f"the patience ({ours}) runs out before ReduceLROnPlateau ({theirs}) lowers the learning rate even once."
        " Give early stopping more patience than the scheduler"
    )


def cut_short_warning(name: str, end_step: float, earliest_step: float, planned_steps: float) -> str | None:
    """A warning where a schedule that ends with the run, or before, could be cut short by a stop."""
    if math.isnan(earliest_step) or earliest_step >= end_step or end_step > planned_steps:
        return None
    return (
        f"{name} anneals the learning rate until step {end_step:g}, and a stop could come from step {earliest_step:g}"
        " on: the run would end at a learning rate that was meant to fall further. Start judging later"
        f" (start_from=('steps', {end_step:g})) or plan a shorter schedule"
    )
