"""The training step as a loader sees it: so long it computes on a CPU, so long it waits for a device. Pure."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A step to emulate in a trial.

    Args:
        busy_s: seconds of one CPU's time, which the loader's workers then cannot have.
        idle_s: seconds in which the step waits for a device and the CPUs are free.

    Example:
        >>> Step.on("cuda", 0.03)
        Step(busy_s=0.0, idle_s=0.03)
    """

    busy_s: float = 0.0
    idle_s: float = 0.0

    @classmethod
    def on(cls, device: str, wall_s: float, cpu_s: float | None = None) -> Step:
        """The step that takes ``wall_s`` on a device of this type, and ``cpu_s`` of CPU time where that was measured.

        On an accelerator the CPU only spins while it waits, which yields to no one and yet needs no worker's time.
        """
        if device != "cpu":
            return cls(idle_s=wall_s)
        busy_s = wall_s if cpu_s is None else min(cpu_s, wall_s)
        return cls(busy_s=busy_s, idle_s=wall_s - busy_s)

    @property
    def wall_s(self) -> float:
        """How long the step takes where nothing disturbs it."""
        return self.busy_s + self.idle_s

    def take(self) -> None:
        """Take as long as the step; longer, where others compete for the CPU."""
        until = time.thread_time() + self.busy_s
        while time.thread_time() < until:
            pass
        if self.idle_s:
            time.sleep(self.idle_s)
