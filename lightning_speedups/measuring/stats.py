"""Robust statistics of repeated measurements: medians with intervals, paired ratios, trends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A median with its interval, from ``n`` values."""

    median: float
    low: float
    high: float
    n: int

    def excludes(self, value: float) -> bool:
        """Whether ``value`` lies outside the interval."""
        return not self.low <= value <= self.high

    def overlaps(self, other: Estimate) -> bool:
        """Whether the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        return f"{self.median:.4g} [{self.low:.4g}, {self.high:.4g}], n={self.n}"


def median_interval(values: Iterable[float], confidence: float = CONFIDENCE) -> Estimate:
    """The median and an interval that holds the true median with at least the given confidence.

    The interval is made of two order statistics (the sign test turned round), so that it assumes no
    distribution, needs no resampling and is exact: timings are skewed and have outliers, and a bootstrap of
    five or ten of them is too narrow. The price is that few values support no interval at all: with fewer
    than ``fewest_for(confidence)`` of them (6 at 95 %) the whole range is given, which holds the median with
    probability ``1 - 2 ** (1 - n)`` only.

    Args:
        values: at least one finite number.
        confidence: between 0 and 1, both excluded.

    Raises:
        ValueError: no values, a value that is not finite, or a confidence outside its range.

    Example:
        >>> str(median_interval([1.0, 1.1, 0.9, 1.0, 1.2, 5.0, 1.1]))
        '1.1 [0.9, 5], n=7'
    """
    _check_confidence(confidence)
    ordered = np.sort(_finite(values, "values"))
    n = len(ordered)
    outside = _order_statistic(n, confidence)
    return Estimate(float(np.median(ordered)), float(ordered[outside]), float(ordered[n - 1 - outside]), n)


def fewest_for(confidence: float = CONFIDENCE) -> int:
    """How many values an interval of this confidence needs; with fewer, no difference can be told from noise."""
    _check_confidence(confidence)
    return 1 + math.ceil(-math.log2(1 - confidence))


def ratio_interval(pairs: Iterable[tuple[float, float]], confidence: float = CONFIDENCE) -> Estimate:
    """The median of ``second / first`` over pairs measured side by side, with its interval.

    A ratio is taken within each pair before the median, so that whatever slows both members of a pair, such
    as another job on the machine, cancels.

    Raises:
        ValueError: no pairs, or a member that is not a finite number above 0.
    """
    array = _finite((side for pair in pairs for side in pair), "pairs").reshape(-1, 2)
    if (array <= 0).any():
        raise ValueError(f"pairs must hold numbers above 0 to form ratios, got {float(array.min())!r}")
    return median_interval(array[:, 1] / array[:, 0], confidence)


def spread_pct(values: Iterable[float]) -> float:
    """The interquartile range in percent of the median: how far apart repeats of one measurement lie.

    Raises:
        ValueError: no values, a value that is not finite, or a median of 0.
    """
    low, median, high = (float(q) for q in np.quantile(_finite(values, "values"), [0.25, 0.5, 0.75]))
    if median == 0:
        raise ValueError("the spread in percent of a median of 0 is undefined; look at the values themselves")
    return 100 * (high - low) / abs(median)


def theil_sen(xs: Iterable[float], ys: Iterable[float]) -> float:
    """The median slope over all pairs of points: a trend that up to 29 % of outliers do not move.

    Costs time and memory with the square of the number of points; a few hundred are enough for a trend.

    Raises:
        ValueError: different lengths, fewer than two different ``xs``, or a number that is not finite.
    """
    x, y = _finite(xs, "xs"), _finite(ys, "ys")
    if len(x) != len(y):
        raise ValueError(f"xs and ys must have the same length, got {len(x)} and {len(y)}")
    left, right = np.triu_indices(len(x), k=1)
    run, rise = x[right] - x[left], y[right] - y[left]
    if not run.any():
        raise ValueError(f"a slope needs at least two different xs, got {len(x)} point(s) at {float(x[0])!r}")
    return float(np.median(rise[run != 0] / run[run != 0]))


def warm_up_dropped(values: Sequence[float], warm_up: int = 1) -> tuple[float, ...]:
    """``values`` without the first ``warm_up``, in which caches, allocators and workers are still filling.

    Raises:
        ValueError: a negative ``warm_up``, or nothing left.
    """
    if warm_up < 0:
        raise ValueError(f"warm_up must be 0 or more, got {warm_up}")
    if len(values) <= warm_up:
        raise ValueError(f"{len(values)} value(s) leave nothing after a warm-up of {warm_up}; measure more")
    return tuple(values[warm_up:])


def _order_statistic(n: int, confidence: float) -> int:
    """How many of ``n`` sorted values may lie outside each end of the interval; 0 means the whole range."""
    allowed = math.floor((1 - Fraction(confidence)) / 2 * 2**n)
    outside, ways, tail = 0, 1, 1
    while True:
        ways = ways * (n - outside) // (outside + 1)
        tail += ways
        if tail > allowed:
            return outside
        outside += 1


def _finite(values: Iterable[float], name: str) -> NDArray[np.float64]:
    array = np.asarray(list(values), dtype=np.float64)
    if not array.size:
        raise ValueError(f"{name} must hold at least one number, got none")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {float(array[~np.isfinite(array)][0])!r}")
    return array


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, both excluded, got {confidence!r}; 0.95 is usual")
