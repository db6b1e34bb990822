from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from lightning_speedups.measuring import stats

finite = st.floats(min_value=-1e6, max_value=1e6)
positive = st.floats(min_value=1e-3, max_value=1e3)


@given(st.lists(finite, min_size=6, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_median_interval_is_scipys_sign_test_interval(values, confidence):
    ours = stats.median_interval(values, confidence)
    theirs = scipy.stats.quantile_test(values, p=0.5).confidence_interval(confidence)

    assert ours.median == np.median(values)
    if len(values) >= stats.fewest_for(confidence):
        assert (ours.low, ours.high) == (theirs.low, theirs.high)
    else:
        assert (ours.low, ours.high) == (min(values), max(values))


@given(st.lists(finite, min_size=1, max_size=60))
def test_the_interval_holds_the_median_and_lies_within_the_values(values):
    estimate = stats.median_interval(values)

    assert min(values) <= estimate.low <= estimate.median <= estimate.high <= max(values)
    assert estimate.n == len(values)


@given(st.lists(finite, min_size=1, max_size=60))
def test_more_confidence_never_gives_a_narrower_interval(values):
    loose, strict = stats.median_interval(values, 0.8), stats.median_interval(values, 0.99)

    assert strict.low <= loose.low
    assert strict.high >= loose.high


def test_the_interval_covers_the_true_median_as_often_as_it_claims():
    rng = np.random.default_rng(0)
    samples = rng.lognormal(size=(2000, 12))
    covered = [not stats.median_interval(row).excludes(1.0) for row in samples]

    assert np.mean(covered) >= 0.95


@pytest.mark.parametrize(("confidence", "fewest"), [(0.5, 2), (0.95, 6), (0.99, 8)])
def test_fewest_values_is_where_the_range_first_reaches_the_confidence(confidence, fewest):
    assert stats.fewest_for(confidence) == fewest
    assert 1 - 2 ** (1 - fewest) >= confidence > 1 - 2 ** (2 - fewest)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=40), positive)
def test_a_ratio_does_not_change_when_the_machine_slows_both_members_of_each_pair(pairs, factor):
    plain = stats.ratio_interval(pairs)
    slowed = stats.ratio_interval([(a * factor, b * factor) for a, b in pairs])

    assert slowed.median == pytest.approx(plain.median)
    assert slowed.low == pytest.approx(plain.low)
    assert slowed.high == pytest.approx(plain.high)


def test_a_ratio_is_the_second_over_the_first():
    assert stats.ratio_interval([(2.0, 3.0)] * 7).median == 1.5


@pytest.mark.filterwarnings("ignore:invalid value encountered in sqrt:RuntimeWarning:scipy")
@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-1000, 1000)), min_size=2, max_size=40))
def test_theil_sen_equals_scipys(points):
    xs, ys = zip(*points, strict=True)
    if len(set(xs)) < 2:
        with pytest.raises(ValueError, match="two different xs"):
            stats.theil_sen(xs, ys)
        return

    assert stats.theil_sen(xs, ys) == pytest.approx(scipy.stats.theilslopes(ys, xs).slope)


def test_theil_sen_ignores_a_few_wild_points():
    ys = [3.0 * x + 1 for x in range(20)]
    ys[4], ys[11] = 1e9, -1e9

    assert stats.theil_sen(range(20), ys) == pytest.approx(3.0)


def test_the_spread_is_the_interquartile_range_in_percent_of_the_median():
    values = [8.0, 9.0, 10.0, 11.0, 12.0]

    assert stats.spread_pct(values) == pytest.approx(100 * scipy.stats.iqr(values) / 10)
    assert stats.spread_pct([4.0, 4.0]) == 0


def test_warm_up_is_dropped_from_the_front():
    assert stats.warm_up_dropped([9.0, 1.0, 2.0]) == (1.0, 2.0)
    assert stats.warm_up_dropped([9.0, 1.0], warm_up=0) == (9.0, 1.0)


def test_estimates_compare_by_their_intervals():
    low, high = stats.Estimate(1.0, 0.9, 1.1, 9), stats.Estimate(1.2, 1.15, 1.3, 9)

    assert low.overlaps(stats.Estimate(1.2, 1.1, 1.3, 9))
    assert not low.overlaps(high)
    assert high.excludes(1.0)
    assert not low.excludes(1.0)
    assert str(low) == "1 [0.9, 1.1], n=9"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "function",
    [
        stats.median_interval,
        stats.spread_pct,
        lambda values: stats.ratio_interval([(1.0, value) for value in values]),
        lambda values: stats.theil_sen(range(len(values)), values),
    ],
)
def test_what_is_not_finite_is_refused_by_value(function, bad):
    with pytest.raises(ValueError, match=str(bad)):
        function([1.0, bad, 2.0])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: stats.median_interval([]), "at least one number, got none"),
        (lambda: stats.ratio_interval([]), "at least one number, got none"),
        (lambda: stats.spread_pct([]), "at least one number, got none"),
        (lambda: stats.theil_sen([], []), "at least one number, got none"),
        (lambda: stats.theil_sen([1.0, 2.0], [1.0]), "same length, got 2 and 1"),
        (lambda: stats.theil_sen([1.0], [1.0]), "two different xs, got 1 point"),
        (lambda: stats.ratio_interval([(1.0, 0.0)]), "above 0 to form ratios, got 0.0"),
        (lambda: stats.spread_pct([-1.0, 0.0, 1.0]), "median of 0 is undefined"),
        (lambda: stats.median_interval([1.0], confidence=1.0), "between 0 and 1, both excluded, got 1.0"),
        (lambda: stats.fewest_for(0.0), "between 0 and 1, both excluded, got 0.0"),
        (lambda: stats.warm_up_dropped([1.0], 1), "leave nothing after a warm-up of 1"),
        (lambda: stats.warm_up_dropped([1.0], -1), "must be 0 or more, got -1"),
    ],
)
def test_errors_say_what_was_received(call, says):
    with pytest.raises(ValueError, match=says):
        call()
