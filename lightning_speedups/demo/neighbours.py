"""How much of the machine other programs took while a run was timed."""

from __future__ import annotations

import contextlib

import psutil


class OthersCpu:
    """The CPU time that this process and its children did not use, from construction on.

    Other programs change what a run measures, and on a shared machine nothing else tells that they were there.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._began = self._look()

    def pct(self) -> float:
        """Percent of all CPUs of the machine that others kept busy; time that a hypervisor took is theirs."""
        whole, busy, own = (now - began for now, began in zip(self._look(), self._began, strict=True))
        return 100 * min(max(busy - own, 0.0) / whole, 1.0) if whole > 0 else 0.0

    def _look(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()._asdict()
        # A guest's time is in "user" and "nice" already.
        whole = sum(seconds for name, seconds in times.items() if not name.startswith("guest"))
        idle = times["idle"] + times.get("iowait", 0.0)
        own = sum(_cpu_s(process) for process in (self._process, *self._process.children(recursive=True)))
        return whole, whole - idle, own


def _cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return float(sum(process.cpu_times()[:4]))
    return 0.0
