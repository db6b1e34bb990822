"""Which worker counts are worth a trial, and whether trying is worth its time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Processes that only wait still cost memory, files and their start.
MOST_WORKERS = 64
# The share of the time it can save that tuning may take, with room below the 5 % that it promises.
WORTH_SHARE = 0.04
# The share of a run that finding out whether fewer workers would do may take.
SHRINK_SHARE = 0.005
# Batches that take no longer come from memory: handing one over from a worker takes about as long.
CHEAP_BATCH_S = 2e-3
VERDICT_S = 1.5
VERDICT_SHARE = 0.25
# What a run of unknown length is taken for.
EPOCHS_ASSUMED = 20.0


@dataclass(frozen=True)
class Costs:
    """What loading costs without workers, and the step that it should hide behind.

    Args:
        batch_s: seconds to load a batch in one process.
        cpu_s: seconds of CPU time in it.
        step_s: seconds of a step; None where not known yet.
    """

    batch_s: float
    cpu_s: float
    step_s: float | None = None

    @property
    def cpu_share(self) -> float:
        """The share of loading in which it computes."""
        return min(1.0, self.cpu_s / self.batch_s) if self.batch_s > 0 else 1.0


def most_workers(costs: Costs, cpus: int) -> int:
    """The ceiling for worker counts: as many as the CPUs can feed, which is more than CPUs where loading waits.

    Example:
        >>> most_workers(Costs(batch_s=0.1, cpu_s=0.1), 4), most_workers(Costs(batch_s=0.1, cpu_s=0.04), 4)
        (4, 10)
    """
    if costs.cpu_share * MOST_WORKERS <= cpus:
        return max(cpus, MOST_WORKERS)
    return max(cpus, math.floor(cpus / costs.cpu_share + 0.25))


def wanted(costs: Costs) -> tuple[int, ...]:
    """The counts that the step calls for, likeliest first; none while it is not known.

    One more than the mean calls for comes first, because workers do not finish in step.
    """
    if not costs.step_s:
        return ()
    fewest = math.ceil(costs.batch_s / costs.step_s)
    return fewest + 1, fewest


def thinned(counts: Sequence[int], first: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many of the counts, but two at least: those of ``first``, then others evenly spread over all.

    Example:
        >>> thinned((0, 1, 2, 4, 8, 16), first=(0,), most=3), thinned((0, 1, 2, 4, 5, 6), first=(0, 5), most=2)
        ((0, 2, 16), (0, 5))
    """
    most = max(2, most)
    kept = [count for count in dict.fromkeys(first) if count in counts][:most]
    ends = [counts[round(index * (len(counts) - 1) / (most - 1))] for index in range(most)]
    for count in (*reversed(ends), *counts):
        if len(kept) < most and count not in kept:
            kept.append(count)
    return tuple(sorted(kept))


def candidates(costs: Costs, cpus: int, current: int, capped_at: int | None = None) -> tuple[int, ...]:
    """The worker counts to try, ascending: none, the current count, powers of two, and what the step calls for.

    Args:
        costs: what loading costs.
        cpus: usable CPUs.
        current: the loader's own count, which is always among them.
        capped_at: no other count above this one.

    Example:
        >>> candidates(Costs(batch_s=0.32, cpu_s=0.001, step_s=0.04), cpus=2, current=0)
        (0, 1, 2, 4, 8, 9, 16)
    """
    most = most_workers(costs, cpus)
    if capped_at is not None:
        most = min(most, capped_at)
    counts = {2**power for power in range(MOST_WORKERS.bit_length())} | {most}
    called_for = wanted(costs)
    if called_for:
        counts |= set(called_for)
        most = min(most, max(2 * min(called_for), 2))
    return tuple(sorted({0, current} | {count for count in counts if count <= most}))


def hides(costs: Costs, tolerance: float) -> bool:
    """Whether loading without workers costs so little beside the step that nothing could be gained."""
    return costs.step_s is not None and costs.step_s > 0 and costs.batch_s <= tolerance * costs.step_s


def worth_s(costs: Costs, cpus: int, batches: float, epochs: float) -> float:
    """Seconds that tuning may take: a share of what workers could save in so many epochs, were they free of cost.

    What can be saved is the part of loading that other processes take over: all but a share of one worker among as
    many as help, and never more than what a step does not already cover.
    """
    helpers = max(2, most_workers(costs, cpus))
    spared = costs.batch_s * (1 - 1 / helpers)
    if costs.step_s is not None:
        spared = min(spared, max(costs.batch_s, costs.step_s))
    return WORTH_SHARE * spared * batches * min(epochs, 10 * EPOCHS_ASSUMED)


def worth_again_s(gap_s: float, period_s: float, steps: float) -> float:
    """Seconds that a second decision may take: a share of the waits that are left, or little for fewer workers."""
    return max(WORTH_SHARE * gap_s, SHRINK_SHARE * period_s) * steps


def verdict_s(costs: Costs, batches: float, epochs: float) -> float:
    """Seconds that may go into showing that workers do not help, where samples are so cheap that they hardly can."""
    if costs.batch_s > CHEAP_BATCH_S:
        return 0.0
    return min(VERDICT_S, VERDICT_SHARE * costs.batch_s * batches * epochs)


def still_climbs(rates: list[float], least_gain: float = 1.05) -> bool:
    """Whether the last of these rates, by ascending worker count, is one more reason to try the next.

    Two counts in a row that gain nothing end the climb: one may be noise, or a step from none to one worker, which
    gains nothing by itself.

    Example:
        >>> still_climbs([100, 100, 190]), still_climbs([100, 90, 80]), still_climbs([100, 95])
        (True, False, True)
    """
    if len(rates) < 3:
        return True
    best = max(rates[:-2])
    return max(rates[-2:]) > least_gain * best
