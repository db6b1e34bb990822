"""The decision engine: equal to the stock class where that is right, and right where it is not."""

import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_speedups.stopping.rules import Clock, Track, Verdict, combined
from lightning_speedups.stopping.settings import Settings
from tests.helpers import namespace

StockEarlyStopping = namespace().callbacks.EarlyStopping

ordinary = st.floats(-1e6, 1e6, width=32)
any_value = st.one_of(ordinary, st.sampled_from([math.nan, math.inf, -math.inf]))


def as_float32(value):
    return torch.tensor(value, dtype=torch.float32).item()


def judged(settings, curve, rounded=float, losses=None):
    """The verdicts on a curve, one check an epoch of ten steps."""
    track = Track(settings)
    losses = losses or [None] * len(curve)
    return [
        track.observe(value, Clock(index + 1.0, 10 * (index + 1), 100.0 * (index + 1)), loss, rounded)
        for index, (value, loss) in enumerate(zip(curve, losses, strict=True))
    ]


def first_stop(settings, curve, **how):
    stops = [index for index, verdict in enumerate(judged(settings, curve, **how)) if verdict.stop]
    return stops[0] if stops else None


def stock_stop(curve, **arguments):
    stock = StockEarlyStopping("metric", **arguments)
    for index, value in enumerate(curve):
        stop, _ = stock._evaluate_stopping_criteria(torch.tensor(value, dtype=torch.float32))
        if stop:
            return index
    return None


@given(
    curve=st.lists(any_value, min_size=1, max_size=40),
    mode=st.sampled_from(["min", "max"]),
    patience=st.integers(0, 6),
    min_delta=st.one_of(st.just(0.0), st.floats(0, 10)),
    check_finite=st.booleans(),
    stopping_threshold=st.one_of(st.none(), ordinary),
    divergence_threshold=st.one_of(st.none(), ordinary),
)
def test_stops_where_the_stock_class_stops(curve, mode, check_finite, **arguments):
    settings = Settings(mode=mode, nan_policy="stop" if check_finite else "count", **arguments)
    expected = stock_stop(curve, mode=mode, check_finite=check_finite, **arguments)
    assert first_stop(settings, curve, rounded=as_float32) == expected


@given(
    base=st.integers(-50, 50),
    steps=st.lists(st.integers(-3, 3), min_size=3, max_size=40),
    patience=st.integers(1, 5),
    min_delta=st.sampled_from([0.1, 0.2, 0.3, 0.7]),
    mode=st.sampled_from(["min", "max"]),
)
def test_stops_where_the_stock_class_stops_when_values_lie_on_the_bar(base, steps, patience, min_delta, mode):
    curve = [as_float32((base + sum(steps[:index])) / 10) for index in range(len(steps))]
    expected = stock_stop(curve, patience=patience, min_delta=min_delta, mode=mode)
    settings = Settings(patience=patience, min_delta=min_delta, mode=mode)
    assert first_stop(settings, curve, rounded=as_float32) == expected


@given(
    curve=st.lists(ordinary, min_size=1, max_size=40, unique=True), unit=st.sampled_from(["checks", "epochs", "steps"])
)
def test_an_improving_curve_never_stops_by_patience(curve, unit):
    for mode, ordered in (("min", sorted(curve, reverse=True)), ("max", sorted(curve))):
        assert first_stop(Settings(mode=mode, patience=1, patience_unit=unit), ordered) is None


@given(
    curve=st.lists(st.floats(-100, 100), min_size=1, max_size=40),
    exponent=st.integers(-20, 20),
    share=st.floats(0, 0.5),
    mode=st.sampled_from(["min", "max"]),
)
def test_a_relative_bar_does_not_depend_on_the_scale(curve, exponent, share, mode):
    settings = Settings(mode=mode, patience=2, min_delta=share, min_delta_mode="rel")
    scaled = [math.ldexp(value, exponent) for value in curve]
    assert [verdict.improved for verdict in judged(settings, curve)] == [
        verdict.improved for verdict in judged(settings, scaled)
    ]


@pytest.mark.parametrize(
    ("mode", "curve", "improved"),
    [
        ("min", [-10.0, -10.05, -10.2], [True, False, True]),
        ("max", [-10.0, -9.95, -9.8], [True, False, True]),
        ("min", [0.0, 0.0, -1e-12], [True, False, True]),
        ("max", [0.0, 0.0, 1e-12], [True, False, True]),
        ("min", [1e-7, 0.995e-7, 0.98e-7], [True, False, True]),
    ],
)
def test_a_relative_bar_is_right_for_negative_zero_and_small_metrics(mode, curve, improved):
    settings = Settings(mode=mode, min_delta=0.01, min_delta_mode="rel")
    assert [verdict.improved for verdict in judged(settings, curve)] == improved


@given(curve=st.lists(any_value, min_size=2, max_size=30), cut=st.integers(1, 29), data=st.data())
def test_going_on_from_saved_history_is_going_on(curve, cut, data):
    settings = Settings(
        patience=2,
        nan_policy=data.draw(st.sampled_from(["ignore", "count"])),
        smoothing=data.draw(st.one_of(st.none(), st.just(0.5))),
        rule=data.draw(st.sampled_from(["patience", "gl", "pq", "up"])),
        rule_strip=2,
        start_from=data.draw(st.one_of(st.none(), st.just(("epochs", 3)))),
    )
    whole, before, after = Track(settings), Track(settings), Track(settings)
    verdicts = []
    for index, value in enumerate(curve):
        at = Clock(index + 1.0, index + 1)
        verdicts.append(whole.observe(value, at, train_loss=1.0 / (index + 1)))
        if index == min(cut, len(curve) - 1):
            after.load_state_dict(before.state_dict())
        track = before if index < min(cut, len(curve) - 1) else after
        assert track.observe(value, at, train_loss=1.0 / (index + 1)) == verdicts[-1]
    assert repr(after.state_dict()) == repr(whole.state_dict())


def test_patience_counts_in_its_unit():
    curve = [1.0] + [2.0] * 20
    assert first_stop(Settings(patience=3), curve) == 3
    assert first_stop(Settings(patience=2.5, patience_unit="epochs"), curve) == 3
    assert first_stop(Settings(patience=45, patience_unit="steps"), curve) == 5
    assert first_stop(Settings(patience=650.0, patience_unit="seconds"), curve) == 7


def test_fractions_of_epochs_add_up():
    track = Track(Settings(patience=1, patience_unit="epochs"))
    stops = [track.observe(1.0, Clock(0.1 * (index + 1))).stop for index in range(12)]
    assert stops.index(True) == 10, "first value at 0.1, so one epoch later is the check at 1.1"


def test_nothing_is_judged_before_the_start():
    curve = [0.9, 1.2, 1.1, 1.05, 0.8, 0.7, 0.6]
    assert first_stop(Settings(patience=2), curve) == 2
    for start in (("epochs", 4), ("steps", 40)):
        settings = Settings(patience=2, start_from=start)
        assert first_stop(settings, curve) is None
        assert [verdict.improved for verdict in judged(settings, curve)] == [False] * 4 + [True] * 3


def test_patience_before_the_start_is_not_used_up():
    settings = Settings(patience=3, patience_unit="epochs", start_from=("epochs", 5), baseline=0.0)
    assert first_stop(settings, [1.0] * 20) == 7


def test_the_baseline_must_be_beaten_before_the_patience_runs_out():
    slow = [1.0, 0.9, 0.8, 0.7]
    assert first_stop(Settings(patience=3, baseline=0.5), slow) == 2
    assert first_stop(Settings(patience=3, baseline=0.85), slow) is None


def test_smoothing_judges_the_average():
    noisy = [1.0, 0.5, 0.9, 0.45, 0.85, 0.4, 0.8, 0.35]
    assert first_stop(Settings(patience=1), noisy) == 2
    assert first_stop(Settings(patience=2, smoothing=0.8), noisy) is None
    track = Track(Settings(smoothing=0.75))
    for index, value in enumerate([4.0, 0.0]):
        track.observe(value, Clock(index + 1.0))
    assert track.best == 3.0


def test_non_finite_values_by_policy():
    curve = [1.0, math.nan, math.nan, 0.5, math.inf, math.nan, math.nan]
    assert first_stop(Settings(), curve) == 1
    assert first_stop(Settings(nan_patience=2), curve) == 2
    assert first_stop(Settings(nan_policy="ignore", patience=1), curve) is None
    assert first_stop(Settings(nan_policy="ignore", nan_patience=3), curve) == 6
    assert first_stop(Settings(nan_policy="count", patience=3), curve) == 6


def test_a_value_that_is_not_counted_leaves_the_verdict_standing():
    curve = [1.0, 2.0, 2.0, math.nan, math.nan, 2.0, 0.5]
    verdicts = judged(Settings(nan_policy="ignore", patience=2), curve)
    assert [verdict.stop for verdict in verdicts] == [False, False, True, True, True, True, False]
    assert verdicts[4].message.count("not counted") == 1
    assert "wait 2/2" in verdicts[4].message


def test_numbers_of_numpy_and_tensors_are_numbers():
    given = Settings(patience=numpy.int64(2), min_delta=torch.tensor(0.1), divergence_threshold=numpy.float32(3.0))
    assert [type(each) for each in (given.patience, given.min_delta, given.divergence_threshold)] == [float] * 3
    assert first_stop(given, [1.0, 0.95, 0.93]) == 2
    assert first_stop(Settings(divergence_threshold=math.inf, patience=1), [1.0, 2.0]) == 1


def test_the_reason_tells_patience_from_non_finite():
    only_nan = judged(Settings(nan_policy="count", patience=2), [1.0, math.nan, math.nan])
    mixed = judged(Settings(nan_policy="count", patience=2), [1.0, 2.0, math.nan])
    assert only_nan[-1].reason == "non_finite"
    assert mixed[-1].reason == "patience"


def test_the_value_that_reaches_the_threshold_is_the_best():
    track = Track(Settings(stopping_threshold=0.2))
    track.observe(1.0, Clock(1.0))
    verdict = track.observe(0.1, Clock(2.0))
    assert (verdict.stop, verdict.reason, track.best) == (True, "threshold", 0.1)


def test_generalization_loss_is_prechelts():
    # Prechelt (1998), section 2.2: GL(t) = 100 * (E_va(t) / E_opt(t) - 1), stop when it exceeds alpha.
    curve = [2.0, 1.0, 1.04, 1.06]
    settings = Settings(rule="gl", rule_alpha=5.0)
    assert first_stop(settings, curve) == 3
    assert first_stop(Settings(rule="gl", rule_alpha=5.0, mode="max"), [-value for value in curve]) == 3


def test_the_progress_quotient_is_prechelts():
    # P_k(t) = 1000 * (sum of the strip's training errors / (k * their minimum) - 1); PQ = GL / P_k.
    losses, curve = [2.0, 1.0, 0.5, 0.4], [1.0, 1.0, 1.0, 1.1]
    progress = 1000 * ((0.5 + 0.4) / (2 * 0.4) - 1)
    quotient = 100 * (1.1 / 1.0 - 1) / progress
    just_below = Settings(rule="pq", rule_strip=2, rule_alpha=quotient * 0.999)
    just_above = Settings(rule="pq", rule_strip=2, rule_alpha=quotient * 1.001)
    assert first_stop(just_below, curve, losses=losses) == 3
    assert first_stop(just_above, curve, losses=losses) is None


def test_the_progress_quotient_needs_the_training_loss():
    with pytest.raises(ValueError, match="training loss"):
        judged(Settings(rule="pq"), [1.0])


def test_up_counts_rises_between_strip_ends():
    rising_ends = [9.0, 1.0, 9.0, 2.0, 0.0, 3.0, 9.0, 4.0]
    assert first_stop(Settings(rule="up", rule_strip=2, rule_alpha=3), rising_ends) == 7
    assert first_stop(Settings(rule="up", rule_strip=2, rule_alpha=4), rising_ends) is None
    assert first_stop(Settings(rule="up", rule_strip=1, rule_alpha=2), [1.0, 2.0, 1.0, 2.0, 3.0]) == 4


@given(curve=st.lists(ordinary, min_size=1, max_size=30, unique=True), rule=st.sampled_from(["gl", "pq", "up"]))
def test_an_improving_curve_never_stops_by_prechelts_rules(curve, rule):
    losses = [1.0] * len(curve)
    settings = Settings(rule=rule, rule_strip=2, rule_alpha=1)
    assert first_stop(settings, sorted(curve, reverse=True), losses=losses) is None


def test_the_message_says_what_the_next_value_must_beat():
    settings = Settings(name="val_loss", min_delta=0.01, min_delta_mode="rel")
    assert "needs < 4.95e-05 (1% below 5e-05)" in judged(settings, [5e-5])[0].message


@pytest.mark.parametrize(
    ("how", "stops", "expected"),
    [
        ("any", [True, False], True),
        ("all", [True, False], False),
        ("all", [True, True], True),
        ("any", [False] * 2, False),
    ],
)
def test_several_metrics_stop_on_any_or_on_all(how, stops, expected):
    verdicts = [Verdict(False, stop, "patience" if stop else "none", "m") for stop in stops]
    assert combined(verdicts, how).stop is expected


@pytest.mark.parametrize("reason", ["non_finite", "divergence"])
def test_a_broken_metric_ends_the_run_whatever_the_others_say(reason):
    verdicts = [Verdict(True, False, "none", "fine"), Verdict(False, True, reason, "broken")]
    assert combined(verdicts, "all") == Verdict(True, True, reason, "broken")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mode": "lower"}, "'min', 'max'"),
        ({"patience": -1}, "patience"),
        ({"patience": 1.5}, "whole number"),
        ({"patience": "3"}, "'3'"),
        ({"patience": True}, "True"),
        ({"patience": math.nan, "patience_unit": "epochs"}, "nan"),
        ({"patience_unit": "epoch"}, "'epochs'"),
        ({"min_delta": -0.1}, "min_delta"),
        ({"min_delta": math.inf}, "inf"),
        ({"min_delta_mode": "relative"}, "'rel'"),
        ({"min_delta": 1.0, "min_delta_mode": "rel"}, "min_delta=0.01"),
        ({"smoothing": 1.0}, "below 1"),
        ({"smoothing": 0.0}, "above 0"),
        ({"baseline": "0.5"}, "baseline"),
        ({"start_from": 5}, "('epochs', 5)"),
        ({"start_from": ("batches", 5)}, "'steps'"),
        ({"start_from": ("epochs", -1)}, "at least 0"),
        ({"rule": "GL"}, "'gl'"),
        ({"rule_alpha": 2.0}, "rule='patience'"),
        ({"rule": "gl", "rule_alpha": 0}, "above 0"),
        ({"rule": "up", "rule_alpha": 2.5}, "rising strips"),
        ({"rule": "up", "rule_strip": 0}, "rule_strip"),
        ({"stopping_threshold": math.nan}, "stopping_threshold"),
        ({"divergence_threshold": "high"}, "divergence_threshold"),
        ({"nan_policy": "skip"}, "'ignore'"),
        ({"nan_patience": 0}, "nan_patience"),
    ],
)
def test_a_wrong_setting_says_what_is_allowed(wrong, words):
    with pytest.raises(ValueError) as error:
        Settings(**wrong)
    assert words in str(error.value)
