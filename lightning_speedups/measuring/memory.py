"""The peak memory of a process and everything it has started, sampled from a thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType

import psutil

MIB = 2**20


@dataclass(frozen=True)
class PeakMemory:
    """The highest sums seen over a process and its descendants.

    ``rss_mib`` counts a page that several of the processes share once for each of them; ``uss_mib`` counts only
    what each has to itself, and is None where the system does not tell (it needs smaps on Linux). The two peaks may
    fall at different moments. ``processes`` is the most that were alive at once; ``samples`` how often was looked.
    """

    rss_mib: float
    uss_mib: float | None
    processes: int
    samples: int


class MemorySampler:
    """Watches memory for the length of a ``with`` block; ``peak`` is readable during it and after.

    A peak shorter than the interval can be missed. One look at the unique memory of a torch process costs about
    8 ms of the kernel's time in that process's address space (measured on Linux, 230 MiB), so that the default
    interval costs the watched process under 4 %; watch a child from its parent, and do not time what is watched.

    Args:
        pid: the process to watch with its descendants; this one if None.
        interval_s: seconds between two looks, above 0.

    Raises:
        ValueError: an interval that is not above 0.

    Example:
        >>> with MemorySampler() as sampler:
        ...     block = bytearray(64 * 2**20)
        >>> sampler.peak.rss_mib > 64
        True
    """

    def __init__(self, pid: int | None = None, interval_s: float = 0.25) -> None:
        if not interval_s > 0:
            raise ValueError(f"interval_s must be above 0, got {interval_s!r}; 0.25 is the default")
        self._process = psutil.Process(pid)
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-sampler", daemon=True)
        self.peak = PeakMemory(rss_mib=0.0, uss_mib=None, processes=0, samples=0)

    def __enter__(self) -> MemorySampler:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._look()

    def _look(self) -> None:
        usages = [usage for process in _with_descendants(self._process) if (usage := _usage_mib(process))]
        if not usages:
            return
        rss = sum(rss for rss, _ in usages)
        uss_parts = [uss for _, uss in usages]
        uss = None if None in uss_parts else sum(part for part in uss_parts if part is not None)
        before = self.peak
        self.peak = PeakMemory(
            rss_mib=max(before.rss_mib, rss),
            uss_mib=before.uss_mib if uss is None else max(before.uss_mib or 0.0, uss),
            processes=max(before.processes, len(usages)),
            samples=before.samples + 1,
        )


def _with_descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _usage_mib(process: psutil.Process) -> tuple[float, float | None] | None:
    """RSS and USS of one process; None for one that has ended meanwhile."""
    try:
        rss = process.memory_info().rss / MIB
    except psutil.NoSuchProcess:
        return None
    try:
        return rss, process.memory_full_info().uss / MIB
    except psutil.NoSuchProcess:
        return None
    except (psutil.AccessDenied, AttributeError, NotImplementedError):
        return rss, None
