"""How long the training step takes and how long it waits for data, in the steps that happen anyway."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from lightning_speedups.loading.steps import Step

WARM_UP = 3
MEASURED = 30
FEWEST = 4


@dataclass(frozen=True)
class Demand:
    """A step and the wait before it.

    Attributes:
        step: the step, as a loader sees it.
        gap_s: mean seconds from the end of a step to the start of the next: the wait for data and the loop's own work.
        gap_cpu_s: this process's CPU time in it.
        steps: how many were measured.
    """

    step: Step
    gap_s: float
    gap_cpu_s: float
    steps: int

    @property
    def period_s(self) -> float:
        """Seconds from step to step."""
        return self.step.wall_s + self.gap_s


class StepClock:
    """Times the first steps of an epoch; costs two readings of two clocks each, and waits for no device.

    On a GPU the time between two events on its stream is taken, read when all is over.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._seen = 0
        self._walls: list[float] = []
        self._cpus: list[float] = []
        self._gaps: list[tuple[float, float]] = []
        self._events: list[tuple[Any, Any]] = []
        self._started: tuple[float, float] | None = None
        self._ended: tuple[float, float] | None = None

    @property
    def full(self) -> bool:
        """Whether enough steps have been timed."""
        return len(self._walls) >= MEASURED

    def starts(self) -> None:
        """A step begins: its batch is there."""
        if self.full:
            return
        now = _clocks()
        if self._ended is not None and self._seen > WARM_UP:
            self._gaps.append((now[0] - self._ended[0], now[1] - self._ended[1]))
        self._started = now
        if self._device == "cuda":
            first, last = _event(), _event()
            first.record()
            self._events.append((first, last))

    def ends(self) -> None:
        """The step is over."""
        if self.full or self._started is None:
            return
        self._seen += 1
        self._ended = now = _clocks()
        if self._events:
            self._events[-1][1].record()
        if self._seen > WARM_UP:
            self._walls.append(now[0] - self._started[0])
            self._cpus.append(now[1] - self._started[1])
        self._started = None

    def interrupted(self) -> None:
        """Something else comes between two steps, such as a validation; that gap is no wait for data."""
        self._ended = None

    def demand(self) -> Demand | None:
        """What was measured; None where the steps were too few."""
        if len(self._walls) < FEWEST or not self._gaps:
            return None
        wall_s = statistics.median(self._device_times() or self._walls)
        step = Step.on(self._device, wall_s, statistics.median(self._cpus))
        gap_s, gap_cpu_s = (statistics.fmean(parts) for parts in zip(*self._gaps, strict=True))
        return Demand(step, gap_s, gap_cpu_s, len(self._walls))

    def _device_times(self) -> list[float]:
        if not self._events:
            return []
        torch.cuda.synchronize()
        return [first.elapsed_time(last) / 1e3 for first, last in self._events[WARM_UP : self._seen]]


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
