"""The runs of the demo from outside: started one after the other, watched, and ended by process id."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import psutil

from lightning_speedups.demo.errors import DemoError
from lightning_speedups.demo.measures import EpochPoint, RunResult, RunSettings, point_from_json, result_from_json
from lightning_speedups.measuring import processes
from lightning_speedups.measuring.memory import MemorySampler

# An epoch takes about two seconds on two cores, and importing torch about five; a machine thirty times as slow passes.
START_LIMIT_S = 300.0
EPOCH_LIMIT_S = 60.0

# One look costs the run about 8 ms, so one a second is under 1 % of it, the same in both runs.
_MEMORY_EVERY_S = 1.0
_LEAVE_S = 10.0


@dataclasses.dataclass
class Progress:
    """Where a run is: ``epochs`` done, fractions included, and the points so far."""

    epochs: float = 0.0
    points: list[EpochPoint] = dataclasses.field(default_factory=list)


def run_in_process(
    settings: RunSettings,
    log: Path,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    *,
    timeout_s: float | None = None,
    command: tuple[str, ...] = (sys.executable, "-m", "lightning_speedups.demo.child"),
) -> RunResult:
    """Do one run in a new process and wait for its result.

    The process, and every worker that it has started, is gone when this returns or raises.

    Args:
        settings: what to run.
        log: the file that takes what the run prints.
        on_progress: called often, with what is known by then.
        timeout_s: the whole process's limit; by default ``START_LIMIT_S`` and ``EPOCH_LIMIT_S`` an epoch.
        command: the program that gets the settings as its last argument.

    Raises:
        DemoError: the run failed or took too long; the log's last line is quoted.
    """
    limit_s = START_LIMIT_S + EPOCH_LIMIT_S * settings.epochs if timeout_s is None else timeout_s
    told = json.dumps(dataclasses.asdict(settings))
    # A folder of its own: checkpoints go there, and no file of the user's can stand in for an imported module.
    with tempfile.TemporaryDirectory(prefix="lightning-speedups-") as scratch, log.open("wb") as printed:
        child = subprocess.Popen(
            [*command, told], stdout=subprocess.PIPE, stderr=printed, cwd=scratch, start_new_session=True
        )
        leader = psutil.Process(child.pid)
        try:
            with MemorySampler(child.pid, _MEMORY_EVERY_S) as memory:
                result = _follow(child, time.monotonic() + limit_s, on_progress)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_LEAVE_S)
        except queue.Empty:
            raise DemoError(
                f"the run was ended after {limit_s:.0f} s without a result; what it printed is in {log}"
            ) from None
        finally:
            processes.end(leader)
            child.wait()
            _events_of(child).close()
    if result is None:
        raise DemoError(_failure(child.returncode, log))
    peak = memory.peak
    return dataclasses.replace(result, peak_rss_mib=peak.rss_mib, peak_uss_mib=peak.uss_mib, processes=peak.processes)


def _follow(
    child: subprocess.Popen[bytes], deadline: float, on_progress: Callable[[Progress], None]
) -> RunResult | None:
    """The run's result; None where its process ended without one.

    Raises:
        queue.Empty: at the deadline.
    """
    lines: queue.Queue[bytes | None] = queue.Queue()
    threading.Thread(target=_read, args=(_events_of(child), lines), name="demo-events", daemon=True).start()
    progress = Progress()
    while (line := lines.get(timeout=max(deadline - time.monotonic(), 0.01))) is not None:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "result":
            return result_from_json(event["result"])
        if event["event"] == "epoch":
            progress.points.append(point_from_json(event["point"]))
            progress.epochs = float(len(progress.points))
        else:
            progress.epochs = event["epochs"]
        on_progress(progress)
    return None


def _events_of(child: subprocess.Popen[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", child.stdout)


def _read(stream: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _failure(returncode: int, log: Path) -> str:
    printed = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    how = f"was killed by signal {-returncode}" if returncode < 0 else f"ended with exit code {returncode}"
    return (
        f"the run {how} before it had a result; its last line was {printed[-1] if printed else ''!r}, all is in {log}"
    )
