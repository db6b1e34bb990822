"""Replays the stop rules of ``lightning_speedups.stopping`` over recorded training curves, one check per epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lightning_speedups.stopping.rules import Clock, Combine, Track, combined
from lightning_speedups.stopping.settings import Settings
from stopping.curves import Curve

ON_LOSS = Settings(name="val_loss")
ON_ACCURACY = Settings(name="val_acc", mode="max")


@dataclass(frozen=True)
class StopRule:
    """A rule as a row of the table: its family, its parameter, settings per metric, and how metrics are combined."""

    family: str
    parameter: str
    metrics: tuple[Settings, ...]
    combine: Combine = "any"

    @property
    def label(self) -> str:
        """Its name: the parameter stands behind the first word of the family."""
        head, _, variant = self.family.partition(" ")
        return f"{head} {self.parameter} {variant}".rstrip()


def _patience(patience: int, family: str = "patience", **settings: object) -> StopRule:
    return StopRule(family, str(patience), (replace(ON_LOSS, patience=patience, **settings),))


def _prechelt(rule: str, alpha: float) -> StopRule:
    return StopRule(rule.upper(), f"{alpha:g}", (replace(ON_LOSS, rule=rule, rule_alpha=alpha),))


TEN_CHECKS = (replace(ON_LOSS, patience=10), replace(ON_ACCURACY, patience=10))

STOP_RULES = (
    *(_patience(patience) for patience in (3, 5, 10, 20)),
    *(_patience(n, "patience rel", min_delta=0.01, min_delta_mode="rel") for n in (3, 5, 10)),
    *(_patience(n, "patience ema", smoothing=0.6) for n in (3, 5, 10)),
    StopRule("patience acc", "10", TEN_CHECKS[1:]),
    StopRule("patience all", "10", TEN_CHECKS, "all"),
    *(_prechelt("gl", alpha) for alpha in (1, 2, 3, 5)),
    *(_prechelt("pq", alpha) for alpha in (0.5, 0.75, 1, 2, 3)),
    *(_prechelt("up", strips) for strips in (2, 3, 4, 6, 8)),
)
"""Patience and Prechelt's rules on the validation loss: ``rel`` asks for 1 % better, ``ema`` smooths it by 0.6; ``acc``
judges the accuracy instead, ``all`` waits for the two."""


@dataclass(frozen=True)
class Outcome:
    """Where a rule ended a curve, in epochs counted from 0, and what that saved and cost against the full run.

    What is given up is positive where the stopped run is worse; accuracies are in points.
    """

    restored_epoch: int
    epochs_run: int
    epochs_saved: int
    steps_saved: int
    saved_pct: float
    val_loss_given_up_pct: float
    val_acc_given_up: float
    test_acc_given_up: float
    test_acc_given_up_to_last: float


def values_of(curve: Curve, settings: Settings) -> tuple[float, ...]:
    """The curve of the metric that ``settings`` judge."""
    return curve.val_loss if settings.name == ON_LOSS.name else curve.val_acc


def float32(value: float) -> float:
    """Rounds as the metric's own type does; Lightning logs values as 32-bit tensors."""
    return float(np.float32(value))


def replay(curve: Curve, rule: StopRule) -> Outcome:
    """Run ``rule`` over ``curve`` until it stops, then go back to the epoch that it held for the best."""
    tracks = [Track(settings) for settings in rule.metrics]
    epochs_run = curve.epochs
    for epoch in range(curve.epochs):
        clock = Clock(epoch + 1, (epoch + 1) * curve.steps_per_epoch, 0.0)
        verdicts = [
            track.observe(values_of(curve, track.settings)[epoch], clock, curve.train_loss[epoch], float32)
            for track in tracks
        ]
        if combined(verdicts, rule.combine).stop:
            epochs_run = epoch + 1
            break
    best_at = tracks[0].best_at
    restored = epochs_run - 1 if best_at is None else round(best_at.epoch) - 1
    return _compared(curve, restored, epochs_run)


def _compared(curve: Curve, restored: int, epochs_run: int) -> Outcome:
    best = int(np.argmin(curve.val_loss))
    saved = curve.epochs - epochs_run
    return Outcome(
        restored_epoch=restored,
        epochs_run=epochs_run,
        epochs_saved=saved,
        steps_saved=saved * curve.steps_per_epoch,
        saved_pct=100 * saved / curve.epochs,
        val_loss_given_up_pct=100 * (curve.val_loss[restored] / curve.val_loss[best] - 1),
        val_acc_given_up=100 * (curve.val_acc[best] - curve.val_acc[restored]),
        test_acc_given_up=100 * (curve.test_acc[best] - curve.test_acc[restored]),
        test_acc_given_up_to_last=100 * (curve.test_acc[-1] - curve.test_acc[restored]),
    )
