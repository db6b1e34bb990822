from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_speedups.measuring.paired import interleaved
from lightning_speedups.measuring.stats import Estimate


class Script:
    """Reports scripted durations, and notes in a shared list who ran."""

    def __init__(self, name, order, durations):
        self.name, self.order, self.durations, self.calls = name, order, durations, 0

    def __call__(self):
        self.order.append(self.name)
        self.calls += 1
        return self.durations(self.calls)


def constant(seconds):
    return lambda _: seconds


def scripts(a_s, b_s):
    order = []
    return Script("a", order, a_s), Script("b", order, b_s), order


def test_the_order_turns_round_from_pair_to_pair():
    a, b, order = scripts(constant(1.0), constant(1.0))
    interleaved(a, b, pairs=4, warm_up=0)

    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_pairs_of_a_with_itself_come_between_the_others():
    a, b, order = scripts(constant(1.0), constant(1.0))
    interleaved(a, b, pairs=2, warm_up=0, a_a=True)

    assert order == ["a", "b", "a", "a", "b", "a", "a", "a"]


def test_the_warm_up_runs_and_does_not_count():
    a, b, order = scripts(lambda call: 100.0 if call <= 2 else 1.0, constant(2.0))
    result = interleaved(a, b, pairs=6, warm_up=2)

    assert len(order) == 16
    assert result.a_s == Estimate(1.0, 1.0, 1.0, 6)
    assert result.ratio == Estimate(2.0, 2.0, 2.0, 6)
    assert result.difference_s == Estimate(1.0, 1.0, 1.0, 6)


def test_a_drift_of_the_machine_is_no_difference():
    calls = [0]

    def drifting():
        calls[0] += 1
        return 1.0 + 0.05 * calls[0]

    result = interleaved(lambda: drifting(), lambda: drifting(), pairs=20, a_a=True)

    assert not result.distinguishable
    assert str(result).startswith("no difference: B/A ")


@pytest.mark.parametrize(("b_s", "direction"), [(1.3, "1.3 times"), (0.7, "0.7 times")])
def test_a_real_difference_is_told_with_its_direction(b_s, direction):
    noise = random.Random(0)
    result = interleaved(lambda: noise.uniform(0.97, 1.03), lambda: b_s * noise.uniform(0.97, 1.03), pairs=20, a_a=True)

    assert result.distinguishable
    assert not result.noise.excludes(1.0)
    assert f"B takes {result.ratio.median:.3g} times as long" in str(result)
    assert result.ratio.median == pytest.approx(b_s, rel=0.05)


def test_a_shift_that_a_against_itself_shows_too_is_no_difference():
    # The second run of each pair is slower, whichever it is: the shift belongs to the harness, not to B.
    calls = [0]

    def later_is_slower():
        calls[0] += 1
        return 1.0 if calls[0] % 2 else 1.1

    result = interleaved(later_is_slower, later_is_slower, pairs=21, a_a=True)

    assert not result.distinguishable


def test_few_pairs_never_show_a_difference():
    assert not interleaved(lambda: 1.0, lambda: 9.0, pairs=5).distinguishable
    assert interleaved(lambda: 1.0, lambda: 9.0, pairs=6).distinguishable


@settings(max_examples=50)
@given(st.integers(6, 30), st.floats(0.01, 100.0), st.floats(1.01, 50.0))
def test_swapping_the_two_turns_the_ratio_over(pairs, a_s, factor):
    forth = interleaved(lambda: a_s, lambda: a_s * factor, pairs=pairs)
    back = interleaved(lambda: a_s * factor, lambda: a_s, pairs=pairs)

    assert forth.ratio.median == pytest.approx(1 / back.ratio.median)
    assert forth.distinguishable
    assert back.distinguishable


def test_what_reports_no_duration_is_timed():
    result = interleaved(lambda: sum(range(100)), lambda: None, pairs=3)

    assert result.a_s.median > 0
    assert result.b_s.median > 0
    assert result.noise is None


@pytest.mark.parametrize("duration", [0.0, -1.0, math.nan, math.inf])
def test_a_reported_duration_must_be_above_zero(duration):
    with pytest.raises(ValueError, match=f"returned {duration} as its duration"):
        interleaved(lambda: 1.0, lambda: duration, pairs=1)


@pytest.mark.parametrize(
    ("settings", "says"), [({"pairs": 0}, "pairs must be 1 or more, got 0"), ({"pairs": 1, "warm_up": -1}, "got -1")]
)
def test_settings_out_of_range_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        interleaved(lambda: 1.0, lambda: 1.0, **settings)
