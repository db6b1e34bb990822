"""Two ways of doing one thing, compared pair by pair in one process, beside the noise of the machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from lightning_speedups.measuring.stats import Estimate, fewest_for, median_interval, ratio_interval

Timed = Callable[[], object]


@dataclass(frozen=True)
class PairedResult:
    """What interleaved pairs of A and B showed; ``noise`` is the same ratio for A against itself, if measured."""

    a_s: Estimate
    b_s: Estimate
    ratio: Estimate
    difference_s: Estimate
    noise: Estimate | None

    @property
    def distinguishable(self) -> bool:
        """Whether B differs from A by more than this machine's noise.

        The interval of the ratio must exclude 1, must not overlap that of A against A, and must rest on enough
        pairs to have an interval at all (6).
        """
        if self.ratio.n < fewest_for():
            return False
        return self.ratio.excludes(1.0) and not (self.noise and self.ratio.overlaps(self.noise))

    def __str__(self) -> str:
        noise = f"; A/A {self.noise}" if self.noise else ""
        if not self.distinguishable:
            return f"no difference: B/A {self.ratio}{noise}"
        return f"B takes {self.ratio.median:.3g} times as long as A: B/A {self.ratio}{noise}"


def interleaved(a: Timed, b: Timed, *, pairs: int, warm_up: int = 1, a_a: bool = False) -> PairedResult:
    """Run ``a`` and ``b`` by turns and compare their durations within each pair.

    The order turns round from pair to pair (A B, B A, A B, ...), so that a drift of the machine, or an advantage
    of coming second, falls on both alike.

    Args:
        a: the baseline, called without arguments. A ``float`` that it returns is taken for its duration in
            seconds, for work whose set-up should not count; anything else that it returns is dropped and the
            call is timed. A callable that happens to return a float for another reason must be wrapped.
        b: what is compared with it, under the same convention.
        pairs: how many pairs count; fewer than 6 never show a difference, 20 are usual.
        warm_up: how many pairs are run first and dropped.
        a_a: also run as many pairs of A against itself, interleaved with the others, for the noise band.

    Raises:
        ValueError: fewer than one pair, a negative warm-up, or a returned duration that is not above 0.

    Example:
        >>> result = interleaved(lambda: 0.2, lambda: 0.1, pairs=10)
        >>> str(result)
        'B takes 0.5 times as long as A: B/A 0.5 [0.5, 0.5], n=10'
    """
    if pairs < 1:
        raise ValueError(f"pairs must be 1 or more, got {pairs}; 20 are usual")
    if warm_up < 0:
        raise ValueError(f"warm_up must be 0 or more, got {warm_up}")
    compared: list[tuple[float, float]] = []
    same: list[tuple[float, float]] = []
    for index in range(-warm_up, pairs):
        compared_pair = _pair(a, b, swapped=index % 2 == 1)
        same_pair = _pair(a, a, swapped=index % 2 == 1) if a_a else None
        if index >= 0:
            compared.append(compared_pair)
            same += [same_pair] if same_pair else []
    return PairedResult(
        a_s=median_interval(first for first, _ in compared),
        b_s=median_interval(second for _, second in compared),
        ratio=ratio_interval(compared),
        difference_s=median_interval(second - first for first, second in compared),
        noise=ratio_interval(same) if same else None,
    )


def _pair(first: Timed, second: Timed, *, swapped: bool) -> tuple[float, float]:
    """The durations of ``first`` and ``second``, in this order, whichever of them ran first."""
    if swapped:
        late = _duration_s(second)
        return _duration_s(first), late
    return _duration_s(first), _duration_s(second)


def _duration_s(run: Timed) -> float:
    started = time.perf_counter()
    reported = run()
    timed = time.perf_counter() - started
    if not isinstance(reported, float):
        return timed
    if not (math.isfinite(reported) and reported > 0):
        raise ValueError(f"{run!r} returned {reported!r} as its duration; return seconds above 0, or no float")
    return reported
