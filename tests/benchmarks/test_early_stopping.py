"""The parts of the early-stopping benchmark, on curves whose outcome is known."""

from __future__ import annotations

import dataclasses

import pytest
from stopping import stock
from stopping.curves import Curve, recipes, train
from stopping.replay import ON_ACCURACY, ON_LOSS, STOP_RULES, StopRule, replay
from stopping.show import kinds_table, plot_of, rules_table
from stopping.summary import by_kind, summarise

from lightning_speedups.reporting import terminal
from lightning_speedups.stopping.rules import Track

THREE = StopRule("patience", "3", (dataclasses.replace(ON_LOSS, patience=3),))


def curve(val_loss, val_acc=None, test_acc=None, **settings):
    flat = (0.5,) * len(val_loss)
    return Curve(
        **{"net": "made up", "noise": 0.0, "schedule": "constant", "seed": 0, "steps_per_epoch": 8, **settings},
        train_loss=tuple(1 / (epoch + 1) for epoch in range(len(val_loss))),
        val_loss=tuple(val_loss),
        val_acc=flat if val_acc is None else tuple(val_acc),
        test_acc=flat if test_acc is None else tuple(test_acc),
    )


LATE_BEST = curve([3, 2, 1, 4, 4, 4, 4, 0.5, 4, 4], test_acc=[0.1, 0.2, 0.5, 0.2, 0.2, 0.2, 0.2, 0.9, 0.2, 0.4])


def test_a_stop_before_a_late_best_gives_up_what_lies_between():
    outcome = replay(LATE_BEST, THREE)
    assert (outcome.restored_epoch, outcome.epochs_run, outcome.epochs_saved, outcome.steps_saved) == (2, 6, 4, 32)
    assert outcome.saved_pct == pytest.approx(40)
    assert outcome.val_loss_given_up_pct == pytest.approx(100)
    assert outcome.test_acc_given_up == pytest.approx(40)
    assert outcome.test_acc_given_up_to_last == pytest.approx(-10)


@pytest.mark.parametrize("rule", STOP_RULES, ids=lambda rule: rule.label)
def test_no_rule_stops_a_curve_that_improves_to_its_end(rule):
    improving = curve([1 / (epoch + 1) for epoch in range(60)], val_acc=[epoch / 60 for epoch in range(60)])
    outcome = replay(improving, rule)
    assert (outcome.epochs_saved, outcome.test_acc_given_up, outcome.restored_epoch) == (0, 0, 59)


def test_all_waits_for_the_accuracy():
    flat_loss = curve([1.0] * 12, val_acc=[0.1, 0.2, 0.3, 0.4, 0.5, *[0.5] * 7])
    metrics = (dataclasses.replace(ON_LOSS, patience=3), dataclasses.replace(ON_ACCURACY, patience=3))
    ran = {how: replay(flat_loss, StopRule("patience", "3", metrics, how)).epochs_run for how in ("any", "all")}
    assert ran == {"any": 4, "all": 8}


def test_at_least_thirty_different_curves_are_trained_and_each_comes_out_the_same_twice():
    chosen = recipes()
    assert len(set(chosen)) == len(chosen) >= 30
    assert train(chosen[0], 3) == train(chosen[0], 3)
    assert train(chosen[0], 3).val_loss != train(chosen[1], 3).val_loss


def test_the_engine_decides_as_stock_on_a_real_curve_and_a_difference_would_be_counted(monkeypatch):
    real = train(recipes()[0], 30)
    mismatches, compared = stock.engine_mismatches([real])
    assert (mismatches, compared > 300) == (0, True)

    class NeverStops(Track):
        def observe(self, *args, **kwargs):
            return dataclasses.replace(super().observe(*args, **kwargs), stop=False)

    monkeypatch.setattr(stock, "Track", NeverStops)
    assert stock.engine_mismatches([real])[0] > 0


def test_the_callback_ends_a_fit_as_stock_does():
    assert stock.trainer_mismatches([curve([3, 2, 1, 4, 4, 4, 4, 4, 4, 4])]) == (0, 2)


def test_tables_and_plot_show_every_rule():
    rows = [summarise(rule, [LATE_BEST, curve([1.0] * 10, noise=0.3)]) for rule in STOP_RULES]
    shown = terminal.render(rules_table(rows, epochs=10), width=120)
    assert all(rule.label in shown for rule in STOP_RULES)
    labels = {text.get_text() for text in plot_of(rows).axes[0].get_legend().get_texts()}
    assert labels == {rule.family for rule in STOP_RULES}
    kinds = by_kind(THREE, [LATE_BEST, curve([1.0] * 10, noise=0.3)])
    assert "constant, 30 %" in terminal.render(kinds_table(kinds))
