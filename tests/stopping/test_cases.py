"""Situations from public reports, ES-01 to ES-10: when training stops. Each with others of its kind."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import lightning_speedups as ls
from tests.helpers import ScriptedModule, loader, namespace, quiet_trainer

NAN, INF = math.nan, math.inf


def fit(callback: Any, val: Any, rows: int = 8, module: Any = None, **trainer: Any) -> Any:
    """Fit on the scripted ``val_loss`` (two batches an epoch unless ``rows`` says otherwise); returns the Trainer."""
    result = quiet_trainer(callbacks=callback if isinstance(callback, list) else [callback], **trainer)
    result.fit(ScriptedModule(val) if module is None else module, loader(rows), loader())
    return result


class TestStopsUnderAMinimum:
    """ES-01: a stop decided before ``min_epochs`` or ``min_steps`` is decided again until they are met."""

    def test_a_recovered_run_goes_on(self, said: Any) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=2)
        trainer = fit(stopping, [1, 2, 2, 2, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4], max_epochs=10, min_epochs=6)
        assert trainer.current_epoch == 10
        assert (stopping.wait_count, stopping.report.reason) == (0, "none")
        assert stopping.report.best_score == pytest.approx(0.4)
        assert "held by min_epochs=6" in said()
        assert "withdrawn" in said()

    def test_a_run_that_never_recovers_ends_exactly_at_min_epochs(self) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=2)
        trainer = fit(stopping, [1, 2], max_epochs=10, min_epochs=6)
        assert (trainer.current_epoch, stopping.report.reason) == (6, "patience")

    def test_min_steps_within_an_epoch_hold_as_well(self, said: Any) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=1)
        trainer = fit(stopping, [1, 2], rows=32, max_epochs=3, min_steps=13, val_check_interval=0.25)
        assert (trainer.global_step, stopping.report.reason) == (13, "patience")
        assert "held by min_epochs=1 and min_steps=13" in said()

    def test_a_stop_withdrawn_once_can_come_again(self) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=2)
        trainer = fit(stopping, [1, 2, 2, 0.5, 2, 2, 2, 2], max_epochs=20, min_epochs=4)
        assert (trainer.current_epoch, stopping.report.best_epoch) == (6, 3)

    @pytest.mark.parametrize("policy", [{"stopping_threshold": 0.5}, {"divergence_threshold": 3.0}, {}])
    def test_thresholds_and_nan_are_held_and_withdrawn_too(self, policy: dict[str, float]) -> None:
        passing = {"stopping_threshold": 0.4, "divergence_threshold": 9.0}.get(next(iter(policy), ""), NAN)
        stopping = ls.EarlyStopping("val_loss", patience=99, **policy)
        trainer = fit(stopping, [1, passing, 1, 1, 1, 1], max_epochs=6, min_epochs=4)
        assert (trainer.current_epoch, stopping.report.reason) == (6, "none")

    def test_one_callbacks_withdrawal_leaves_anothers_stop_alone(self) -> None:
        class StopsInEpochTwo(namespace().Callback):
            def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                trainer.should_stop = trainer.should_stop or trainer.current_epoch == 2

        stopping = ls.EarlyStopping("val_loss", patience=1)
        trainer = fit([StopsInEpochTwo(), stopping], [3, 4, 4, 2, 1, 0.5], max_epochs=10, min_epochs=5)
        assert trainer.current_epoch == 5


class TestPatienceInAUnit:
    """ES-02: patience is what the user means by it; checks by default, as stock."""

    VAL = (1.0, 1.1, 1.1, 1.1, 0.5)

    def test_checks_are_the_default_and_their_meaning_is_said(self, said: Any) -> None:
        trainer = fit(ls.EarlyStopping("val_loss"), self.VAL, rows=32, max_epochs=10, val_check_interval=0.25)
        assert trainer.global_step == 8
        assert "3 checks = 0.75 epochs = 6 steps" in said()

    @pytest.mark.parametrize(
        ("unit", "patience", "steps"),
        # The best value comes with the fifth check, at step 10; an epoch has 8 steps, a check comes every 2.
        [("epochs", 3, 34), ("epochs", 0.5, 6), ("steps", 20, 30), ("steps", 7, 18), ("seconds", 3600, 80)],
    )
    def test_other_units(self, unit: Any, patience: float, steps: int) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=patience, patience_unit=unit)
        trainer = fit(stopping, self.VAL, rows=32, max_epochs=10, val_check_interval=0.25)
        assert trainer.global_step == steps

    def test_epochs_are_epochs_where_validation_is_rare(self) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=3, patience_unit="epochs")
        trainer = fit(stopping, [1, 2], max_epochs=50, check_val_every_n_epoch=5)
        assert trainer.current_epoch == 10

    def test_steps_are_optimizer_steps_under_accumulation(self, said: Any) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=6, patience_unit="steps")
        trainer = fit(stopping, [1, 2], rows=32, max_epochs=10, accumulate_grad_batches=2)
        # The best value comes at step 4, the end of the first epoch; two more epochs bring 8 steps.
        assert trainer.global_step == 12
        assert "1.5 epochs" in said()

    def test_endless_epochs_are_checked_every_n_steps(self) -> None:
        stopping = ls.EarlyStopping("train_loss", mode="max", patience=2, check_every_n_steps=3, min_delta=1e9)
        trainer = fit(stopping, (), rows=64, max_epochs=5)
        assert trainer.global_step == 9


class TestNonFiniteValues:
    """ES-04: one NaN need not end the run, and never passes as lost patience."""

    @pytest.mark.parametrize("first", [[1, NAN], [INF], [NAN, INF, -INF]])
    def test_ignored_ones_cost_nothing(self, first: list[float]) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=1, nan_policy="ignore")
        trainer = fit(stopping, [*first, 0.5, 0.4, 0.3], max_epochs=len(first) + 3)
        assert trainer.current_epoch == len(first) + 3
        assert (stopping.report.best_score, stopping.report.reason) == (pytest.approx(0.3), "none")

    def test_counted_ones_end_the_run_under_their_own_reason(self) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=3, nan_policy="count")
        trainer = fit(stopping, [1, NAN, NAN, NAN, 0.3], max_epochs=5)
        assert (trainer.current_epoch, stopping.report.reason) == (4, "non_finite")
        assert stopping.stopping_reason.name == "NON_FINITE_METRIC"

    def test_nan_patience_counts_those_in_a_row(self) -> None:
        stopping = ls.EarlyStopping("val_loss", nan_policy="ignore", nan_patience=2)
        trainer = fit(stopping, [1, NAN, 0.9, NAN, INF, 0.8], max_epochs=6)
        assert (trainer.current_epoch, stopping.report.reason) == (5, "non_finite")

    def test_the_default_is_stock(self) -> None:
        stopping = ls.EarlyStopping("val_loss")
        trainer = fit(stopping, [1, NAN, 0.5], max_epochs=5)
        assert (trainer.current_epoch, stopping.report.reason) == (2, "non_finite")

    def test_a_finite_loss_beside_it_is_an_undefined_metric(self) -> None:
        stopping = ls.EarlyStopping("val_loss")
        fit(stopping, [1, NAN], max_epochs=5)
        assert "undefined" in stopping.report.message

    def test_a_diverged_loss_beside_it_is_said_to_be_one(self) -> None:
        class Diverging(ScriptedModule):
            def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                return super().training_step(batch, batch_idx) * (NAN if self.current_epoch else 1.0)

        stopping = ls.EarlyStopping("val_loss")
        fit(stopping, (), module=Diverging([1, NAN]), max_epochs=5)
        assert "undefined" not in stopping.report.message
        assert "loss" in stopping.report.message.removeprefix("val_loss")


class TestRelativeDelta:
    """ES-08: ``min_delta`` as a share of the best, for metrics of any scale and sign."""

    @pytest.mark.parametrize("scale", [1.0, 1e-4, 1e-12, 1e6])
    def test_halving_is_an_improvement_at_every_scale(self, scale: float) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=2, min_delta=0.01, min_delta_mode="rel")
        trainer = fit(stopping, [scale * 0.5**i for i in range(6)], max_epochs=6)
        assert (trainer.current_epoch, stopping.report.best_epoch) == (6, 5)

    def test_the_bar_is_said(self, said: Any) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=2, min_delta=0.01, min_delta_mode="rel", verbose=True)
        fit(stopping, [5e-5, 4.99e-5], max_epochs=2)
        assert "needs < 4.95e-05 (1% below 5e-05)" in said()

    @pytest.mark.parametrize(
        ("mode", "val", "epochs"),
        [
            ("min", [-10, -10.05, -10.09, -11], 3),
            ("min", [-10, -10.2, -10.4, -10.6, -10.8], 5),
            ("max", [-1.0, -0.995, -0.992, -0.5], 3),
            ("max", [-1.0, -0.98, -0.96, -0.94, -0.92], 5),
            ("min", [0.0, 1.0, 1.0, 1.0], 3),
            ("min", [0.0, -1e-9, -2e-9, -3e-9, -4e-9], 5),
        ],
    )
    def test_negative_and_zero_metrics(self, mode: str, val: list[float], epochs: int) -> None:
        stopping = ls.EarlyStopping("val_loss", mode=mode, patience=2, min_delta=0.01, min_delta_mode="rel")
        assert fit(stopping, val, max_epochs=5).current_epoch == epochs

    def test_an_absolute_delta_is_the_default_and_stock(self) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=2, min_delta=0.01)
        trainer = fit(stopping, [1e-4 * 0.5**i for i in range(6)], max_epochs=6)
        assert trainer.current_epoch == 3


class TwoMetrics(ScriptedModule):
    """Logs ``a`` and ``b`` from two scripts."""

    def __init__(self, a: list[float], b: list[float]) -> None:
        super().__init__()
        self.scripts = {"a": a, "b": b}

    def on_validation_epoch_end(self) -> None:
        for name, script in self.scripts.items():
            self.log(name, float(script[min(self.checks, len(script) - 1)]))
        self.checks += 1


class TestSeveralMetrics:
    """ES-10: one callback over several metrics stops when any, or when all of them are flat."""

    FALLING = tuple(1 / (k + 1) for k in range(10))

    @pytest.mark.parametrize(("combine", "epochs"), [("all", 10), ("any", 3)])
    def test_all_waits_for_the_metric_that_still_improves(self, combine: Any, epochs: int) -> None:
        stopping = ls.EarlyStopping([("a", "max"), ("b", "min")], patience=2, combine=combine)
        trainer = fit(stopping, (), module=TwoMetrics([1.0], list(self.FALLING)), max_epochs=10)
        assert trainer.current_epoch == epochs

    def test_the_first_metric_decides_what_is_best(self) -> None:
        stopping = ls.EarlyStopping([("a", "max"), ("b", "min")], patience=2, combine="all")
        trainer = fit(stopping, (), module=TwoMetrics([1, 5, 2, 2], [4, 3, 2, 2]), max_epochs=10)
        assert (trainer.current_epoch, stopping.report.best_epoch, stopping.report.best_score) == (5, 1, 5)
        assert stopping.report.history[1].values == (5.0, 3.0)

    def test_all_stops_once_both_are_flat_at_the_same_time(self) -> None:
        stopping = ls.EarlyStopping([("a", "min"), ("b", "min")], patience=2, combine="all")
        module = TwoMetrics([1, 1, 1, 0.5, 0.5, 0.5], [1, 0.9, 0.8, 0.8, 0.8, 0.8])
        # b is flat from the fourth check on, but a has just improved then: both are flat with the sixth.
        assert fit(stopping, (), module=module, max_epochs=10).current_epoch == 6

    def test_a_metric_that_breaks_ends_the_run_either_way(self) -> None:
        stopping = ls.EarlyStopping([("a", "min"), ("b", "min")], patience=2, combine="all")
        trainer = fit(stopping, (), module=TwoMetrics([1, NAN], list(self.FALLING)), max_epochs=10)
        assert (trainer.current_epoch, stopping.report.reason) == (2, "non_finite")
