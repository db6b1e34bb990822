"""Sums up what each stop rule does over many curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_speedups.measuring.stats import Estimate, median_interval
from stopping.curves import Curve
from stopping.replay import StopRule, replay


@dataclass(frozen=True)
class Row:
    """One rule over all curves. What is given up is positive where the stopped run is worse; accuracies in points."""

    rule: StopRule
    stopped: int
    curves: int
    saved_pct: Estimate
    saved_mean_pct: float
    saved_quartiles_pct: tuple[float, float]
    steps_saved: float
    val_loss_p90_pct: float
    test_mean: float
    test_range: tuple[float, float]
    test_worst: float
    test_mean_to_last: float


def summarise(rule: StopRule, curves: Sequence[Curve]) -> Row:
    """Replay ``rule`` over all curves."""
    outcomes = [replay(curve, rule) for curve in curves]

    def column(name: str) -> np.ndarray:
        return np.array([getattr(outcome, name) for outcome in outcomes], dtype=float)

    saved, test = column("saved_pct"), column("test_acc_given_up")
    return Row(
        rule=rule,
        stopped=int((saved > 0).sum()),
        curves=len(outcomes),
        saved_pct=median_interval(saved),
        saved_mean_pct=float(saved.mean()),
        saved_quartiles_pct=(float(np.quantile(saved, 0.25)), float(np.quantile(saved, 0.75))),
        steps_saved=float(np.median(column("steps_saved"))),
        val_loss_p90_pct=float(np.quantile(column("val_loss_given_up_pct"), 0.9)),
        test_mean=float(test.mean()),
        test_range=(float(np.quantile(test, 0.1)), float(np.quantile(test, 0.9))),
        test_worst=float(test.max()),
        test_mean_to_last=float(column("test_acc_given_up_to_last").mean()),
    )


def by_kind(rule: StopRule, curves: Sequence[Curve]) -> dict[str, Row]:
    """``rule`` over the curves of each kind."""
    kinds: dict[str, list[Curve]] = {}
    for curve in curves:
        kinds.setdefault(f"{curve.schedule}, {100 * curve.noise:.0f} %", []).append(curve)
    return {kind: summarise(rule, members) for kind, members in sorted(kinds.items())}
