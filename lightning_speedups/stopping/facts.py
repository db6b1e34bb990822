"""What early stopping reads from a Trainer: how often checks come, whether it may stop, which schedules run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch.optim import lr_scheduler

from lightning_speedups._torch import scheduler_parts
from lightning_speedups.stopping.schedule import Schedule, cut_short_warning, plateau_warning
from lightning_speedups.stopping.settings import Settings


def schedule_of(trainer: Any, on_train_epoch_end: bool, every_n_steps: int | None) -> Schedule:
    """How often the checks of this run come. Call it once the Trainer has its training loader."""
    accumulation = trainer.accumulate_grad_batches
    between: float | None = None
    epochs_between, across = 1, False
    if every_n_steps is not None:
        between, across = every_n_steps * accumulation, True
    elif not on_train_epoch_end:
        epochs_between, across = trainer.check_val_every_n_epoch or 1, trainer.check_val_every_n_epoch is None
        # Validation by wall time has no interval in batches.
        between = math.nan if trainer.val_check_batch is None else trainer.val_check_batch
        if not across and between >= trainer.num_training_batches:
            between = None
    return Schedule(
        batches_per_epoch=trainer.num_training_batches,
        accumulation=accumulation,
        batches_between=between,
        epochs_between=epochs_between,
        across_epochs=across,
        max_epochs=_limit(trainer.max_epochs),
        max_steps=_limit(trainer.max_steps),
        steps_known=trainer.lightning_module.automatic_optimization,
    )


def validates_once_an_epoch(trainer: Any) -> bool:
    """Whether validation runs exactly once an epoch; then a check at the epoch's end sees training metrics as well."""
    # A Trainer that validates by the clock has no interval at all.
    return getattr(trainer, "val_check_interval", None) == 1.0 and trainer.check_val_every_n_epoch == 1


def may_stop(trainer: Any) -> bool:
    """Whether ``min_epochs`` and ``min_steps`` are met."""
    epochs_met = not trainer.min_epochs or trainer.fit_loop.epoch_progress.current.processed >= trainer.min_epochs
    return epochs_met and (not trainer.min_steps or trainer.global_step >= trainer.min_steps)


def held_by(trainer: Any) -> str:
    """The Trainer's minimums that are not met yet; where only ``min_steps`` is given, it sets ``min_epochs`` to 1."""
    unmet = []
    if trainer.min_epochs and trainer.fit_loop.epoch_progress.current.processed < trainer.min_epochs:
        unmet.append(f"min_epochs={trainer.min_epochs}")
    if trainer.min_steps and trainer.global_step < trainer.min_steps:
        unmet.append(f"min_steps={trainer.min_steps}")
    return " and ".join(unmet)


def epochs_done(trainer: Any) -> float:
    """Epochs finished, the running one as a fraction; whole ones where its length is not known."""
    batches, progress = trainer.num_training_batches, trainer.fit_loop.epoch_loop.batch_progress
    whole: int = trainer.fit_loop.epoch_progress.current.ready - 1
    if math.isinf(batches) or not batches:
        return float(whole + progress.is_last_batch)
    return whole + min(float(progress.current.ready / batches), 1.0)


def warnings(
    trainer: Any,
    settings: Settings,
    monitors: tuple[str, ...],
    schedule: Schedule,
    after_validation: bool,
    restores: bool,
) -> Iterator[str]:
    """What stands against stopping early in this run: no check at all, a learning-rate schedule, another's weights."""
    if restores and any(type(callback).__name__ == "StochasticWeightAveraging" for callback in trainer.callbacks):
        yield (
            "restore_best puts the best validated weights in the place of StochasticWeightAveraging's average, which no"
            " validation has seen. Leave one of the two out"
        )
    never = schedule.why_no_check()
    if after_validation and not trainer.enable_validation:
        never = (
            "checks come after validation, and the run has none (no validation_step, no loader or limit_val_batches=0)."
            " Set check_on_train_epoch_end=True for a metric of training"
        )
    if never is not None:
        yield f"no check can ever happen under this Trainer, so it will not stop: {never}"
        return
    yield from _schedule_warnings(trainer, settings, monitors, schedule)


def _schedule_warnings(
    trainer: Any, settings: Settings, monitors: tuple[str, ...], schedule: Schedule
) -> Iterator[str]:
    if settings.rule != "patience":
        return
    earliest = _earliest_stop(trainer, settings, schedule)
    if earliest >= schedule.planned_steps:
        return
    words = schedule.translated(settings)
    for config in trainer.lr_scheduler_configs:
        to_steps = 1 if config.interval == "step" else schedule.steps_per_epoch
        to_steps *= config.frequency
        for part in scheduler_parts(config.scheduler):
            found = None
            if isinstance(part, lr_scheduler.ReduceLROnPlateau) and config.monitor in monitors:
                found = plateau_warning(earliest, part.patience * to_steps, words, f"patience={part.patience}")
            elif (length := _length(part)) is not None:
                found = cut_short_warning(type(part).__name__, length * to_steps, earliest, schedule.planned_steps)
            if found is not None:
                yield found


def _limit(value: int | None) -> float:
    return math.inf if value is None or value < 0 else value


def _length(scheduler: Any) -> float | None:
    if isinstance(scheduler, lr_scheduler.OneCycleLR):
        return scheduler.total_steps
    if isinstance(scheduler, lr_scheduler.CosineAnnealingLR):
        return scheduler.T_max
    return None


def _earliest_stop(trainer: Any, settings: Settings, schedule: Schedule) -> float:
    """The step before which no stop by patience can come; NaN where it cannot be known."""
    start = 0.0
    if settings.start_from is not None:
        unit, count = settings.start_from
        start = count if unit == "steps" else count * schedule.steps_per_epoch
    least = [trainer.min_steps or 0, trainer.min_epochs * schedule.steps_per_epoch if trainer.min_epochs else 0]
    earliest = start + schedule.steps_of(settings)
    return math.nan if math.isnan(earliest) else max(earliest, *least)
