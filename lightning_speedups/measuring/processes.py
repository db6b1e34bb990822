"""Everything that a process has started: found and ended, one process id at a time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

import psutil

# A polite end takes milliseconds; what has not ended by then does not listen.
GRACE_S = 2.0
_KILL_ROUNDS = 20
_ROUND_S = 0.5


def alive(process: psutil.Process) -> bool:
    """Whether the process still runs; a zombie, which only waits to be collected, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def started_by(leader: psutil.Process) -> set[psutil.Process]:
    """The living descendants of ``leader``, and the members of its session, whose own parents may have ended."""
    found: set[psutil.Process] = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        found.update(leader.children(recursive=True))
    for pid in psutil.pids() if hasattr(os, "getsid") else ():
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            if os.getsid(pid) == leader.pid:
                found.add(psutil.Process(pid))
    return {process for process in found - {leader} if alive(process)}


def end(leader: psutil.Process, known: Iterable[psutil.Process] = (), *, spare_leader: bool = False) -> int:
    """End ``leader``, all that it has started, and ``known``; asked first, then killed.

    It collects no exit status, so that whoever started ``leader`` still can, and must.

    Returns:
        How many processes beside the leader were still running.
    """
    known = set(known)
    others = _left(leader, known, spare_leader=True)
    _each(_left(leader, known, spare_leader=spare_leader), "terminate", GRACE_S)
    for _ in range(_KILL_ROUNDS):
        left = _left(leader, known, spare_leader=spare_leader)
        if not left:
            break
        _each(left, "kill", _ROUND_S)
    return len(others)


def _left(leader: psutil.Process, known: set[psutil.Process], *, spare_leader: bool) -> set[psutil.Process]:
    everyone = {leader, *known, *started_by(leader)} - ({leader} if spare_leader else set())
    return {process for process in everyone if alive(process)}


def _each(processes: set[psutil.Process], action: str, wait_s: float) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            getattr(process, action)()
    deadline = time.monotonic() + wait_s
    while any(alive(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.01)
