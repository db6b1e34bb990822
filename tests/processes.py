"""Which processes a test may leave running, and how those that it should not have left are ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil

GRACE_S = 2.0
# Python's own helper processes: one of each per program, ended by Python itself.
PYTHONS_OWN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

_shared: set[int] = set()


def share(pid: int) -> None:
    """Say that a process outlives the test that starts it, and that a fixture ends it."""
    _shared.add(pid)


def family(pid: int | None = None) -> list[psutil.Process]:
    """All descendants of a process; of this one unless told otherwise."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _may_stay(process: psutil.Process) -> bool:
    try:
        lineage = {process.pid, *(ancestor.pid for ancestor in process.parents())}
        command = " ".join(process.cmdline())
    except psutil.Error:
        return True
    return bool(lineage & _shared) or any(own in command for own in PYTHONS_OWN)


def leftovers(before: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Descendants of this process that were not there before and are still there after a moment of grace."""
    new = [process for process in set(family()) - set(before) if not _may_stay(process)]
    _, alive = psutil.wait_procs(new, timeout=GRACE_S)
    return alive


def end(processes: Iterable[psutil.Process]) -> None:
    """End processes and all that they started, each by its id: politely, then for good."""
    doomed = {member for process in processes for member in (process, *family(process.pid))}
    for signal_name in ("terminate", "kill"):
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(process, signal_name)()
        _, alive = psutil.wait_procs(doomed, timeout=GRACE_S)
        doomed = set(alive)
