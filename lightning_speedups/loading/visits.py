"""One trial of one setting, in a child process: how long a batch takes in the steady state, how long the start."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from lightning_speedups import _torch
from lightning_speedups.loading.applying import copied
from lightning_speedups.loading.ending import end_quietly, keep_to_the_end
from lightning_speedups.loading.probe import make_private, reseed
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.loading.steps import Step
from lightning_speedups.measuring.memory import MIB

FEWEST_BURSTS = 2
_GROUPS = 5
_MOST_BATCHES = 20_000


@dataclass(frozen=True)
class Plan:
    """What to try: a setting, for about so long, with such a step, from such a seed."""

    settings: LoaderSettings
    window_s: float
    timeout_s: float
    step: Step
    seed: int


@dataclass(frozen=True)
class Visit:
    """What one trial showed.

    Attributes:
        settings: the setting tried.
        batch_s: seconds per batch, the step included, for a few stretches of the trial; empty where it failed.
        start_s: from asking for the first batch to having it; of whole epochs, no more than any other batch.
        waits_s: mean and 95th percentile of the wait for a batch.
        rss_mib: memory that the workers have to themselves, together; None where the system does not tell.
        threads: threads of all workers together; None where the system does not tell.
        error: why there is no result.
    """

    settings: LoaderSettings
    batch_s: tuple[float, ...] = ()
    start_s: float = 0.0
    waits_s: tuple[float, float] = (0.0, 0.0)
    rss_mib: float | None = None
    threads: int | None = None
    error: str | None = None


def visit(loader: Any, plan: Plan) -> Visit:
    """Iterate over a copy of ``loader`` with the planned setting. Run it in a child process.

    With workers, batches come in bursts of as many as there are workers, so stretches of whole bursts are timed. The
    first batches, as many as may be in flight, are left out: workers make them while others are still being started.
    Where an epoch is too short for that, whole epochs are timed, their start included.
    """
    # torch warns of more workers than CPUs, which is for the trial to find out.
    warnings.simplefilter("ignore")
    make_private(loader.dataset)
    workers = plan.settings.num_workers
    # Whether workers persist matters between epochs only, and a trial that starts a second one should not wait.
    tried = replace(plan.settings, persistent_workers=False)
    copy = copied(loader, tried, timeout=plan.timeout_s if workers else 0)
    burst, ramp = max(1, workers), max(1, plan.settings.in_flight)
    reseed(plan.seed)
    started = time.perf_counter()
    batches = iter(copy)
    keep_to_the_end(batches)
    if next(batches, None) is None:
        return Visit(plan.settings, error="the loader gave no batch")
    start_s = time.perf_counter() - started
    plan.step.take()
    ends, waits = _arrivals(batches, plan, ramp + FEWEST_BURSTS * burst, ramp)
    batch_s = _stretches(ends[ramp - 1 :], burst)
    if not batch_s:
        batch_s = _whole_epochs(copy, plan, [time.perf_counter() - started], len(ends))
        start_s = batch_s[0]
    waited = sorted(waits[ramp:] or waits) or [0.0]
    rss_mib, threads = _workers_cost(batches)
    end_quietly()
    late_s = waited[int(0.95 * (len(waited) - 1))]
    return Visit(plan.settings, batch_s, start_s, (sum(waited) / len(waited), late_s), rss_mib, threads)


def visits(loader: Any, plans: Sequence[Plan]) -> tuple[Visit, ...]:
    """Several trials in one process, for a start method under which each process costs seconds to start.

    Those without workers come last: they may open files that workers started later would share.
    """
    ordered = sorted(plans, key=lambda plan: plan.settings.num_workers == 0)
    found = []
    for plan in ordered:
        try:
            found.append(visit(loader, plan))
        except Exception as error:  # noqa: BLE001  a worker raises whatever the user's code does; the visit carries it
            found.append(Visit(plan.settings, error=f"{type(error).__name__}: {error}"))
    return tuple(found)


def _arrivals(batches: Iterator[Any], plan: Plan, fewest: int, ramp: int) -> tuple[list[float], list[float]]:
    """When the step of each batch was over, the first batch's included, and how long each later batch was awaited.

    It goes on for the planned time after the ramp, and to ``fewest`` batches at least.
    """
    ends: list[float] = [time.perf_counter()]
    waits: list[float] = []
    until = ends[0] + plan.window_s
    while len(ends) < _MOST_BATCHES and (len(ends) < fewest or ends[-1] < until):
        asked = time.perf_counter()
        if next(batches, None) is None:
            break
        waits.append(time.perf_counter() - asked)
        plan.step.take()
        ends.append(time.perf_counter())
        if len(ends) == ramp:
            until = ends[-1] + plan.window_s
        if ends[-1] > until + plan.timeout_s:
            break
    return ends, waits


def _stretches(ends: list[float], burst: int) -> tuple[float, ...]:
    """Seconds per batch for up to five stretches of whole bursts."""
    bursts = (len(ends) - 1) // burst
    if bursts < 1:
        return ()
    groups = min(_GROUPS, bursts)
    per_group = bursts // groups * burst
    return tuple((ends[(at + 1) * per_group] - ends[at * per_group]) / per_group for at in range(groups))


def _whole_epochs(copy: Any, plan: Plan, times: list[float], batches: int) -> tuple[float, ...]:
    """Seconds per batch of whole epochs, the one in ``times`` and more of them."""
    until = time.perf_counter() + plan.window_s
    while len(times) < 2 or (len(times) < _GROUPS and time.perf_counter() < until):
        started = time.perf_counter()
        iterator = iter(copy)
        keep_to_the_end(iterator)
        for _ in iterator:
            plan.step.take()
        times.append(time.perf_counter() - started)
    return tuple(seconds / batches for seconds in times)


def _workers_cost(batches: Any) -> tuple[float | None, int | None]:
    pids = _torch.live_worker_pids(batches)
    if not pids:
        return (0.0, 0)
    uss, threads = 0.0, 0
    try:
        for pid in pids:
            process = psutil.Process(pid)
            uss += process.memory_full_info().uss / MIB
            threads += process.num_threads()
    except (psutil.Error, NotImplementedError, AttributeError, OSError):
        return None, None
    return uss, threads
