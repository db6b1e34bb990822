"""A run's process is watched, and gone afterwards with all that it started, however it ends."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

from lightning_speedups.demo.errors import DemoError
from lightning_speedups.demo.measures import RunResult
from lightning_speedups.demo.runs import Progress, run_in_process
from lightning_speedups.measuring import processes
from tests.demo.results import SETTINGS, result


def _run(tmp_path: Path, program: str, timeout_s: float = 60.0, seen: list[Progress] | None = None) -> RunResult:
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(program))
    follow = (lambda progress: None) if seen is None else seen.append
    return run_in_process(
        SETTINGS, tmp_path / "run.log", follow, timeout_s=timeout_s, command=(sys.executable, str(script))
    )


def _ended(pid_file: Path) -> bool:
    """Whether the process is over; it may still wait, as a zombie, for the system to collect it."""
    pid = int(pid_file.read_text())
    return not psutil.pid_exists(pid) or not processes.alive(psutil.Process(pid))


def test_events_arrive_while_it_runs_and_the_result_at_its_end(tmp_path: Path) -> None:
    expected = result()
    seen: list[Progress] = []
    found = _run(
        tmp_path,
        f"""
        import json
        result = json.loads({json.dumps(json.dumps(expected.to_dict()))})
        print(json.dumps({{"event": "progress", "epochs": 0.5}}))
        print(json.dumps({{"event": "epoch", "point": result["curve"][0]}}))
        print(json.dumps({{"event": "result", "result": result}}))
        """,
        seen=seen,
    )
    assert len(seen) == 2
    assert seen[-1].points == [expected.curve[0]]
    assert found.curve == expected.curve
    assert found.peak_rss_mib is not None
    assert found.peak_rss_mib != expected.peak_rss_mib


def test_the_settings_reach_it_and_it_runs_in_an_empty_folder_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"exit code 3 .* last line was '10 \[\]', all is in .*run\.log"):
        _run(
            tmp_path,
            """
            import json, os, sys
            print(json.loads(sys.argv[1])["epochs"], os.listdir("."), file=sys.stderr)
            sys.exit(3)
            """,
        )


def test_a_killed_run_says_which_signal(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="killed by signal 9"):
        _run(tmp_path, "import os; os.kill(os.getpid(), 9)")


def test_a_run_that_hangs_is_ended_with_its_workers(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="ended after 2 s without a result"):
        _run(
            tmp_path,
            f"""
            import pathlib, signal, subprocess, sys, time
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            pathlib.Path({str(tmp_path / "worker")!r}).write_text(str(worker.pid))
            time.sleep(600)
            """,
            timeout_s=2.0,
        )
    assert _ended(tmp_path / "worker")


def test_workers_left_behind_by_a_run_that_ended_well_are_ended(tmp_path: Path) -> None:
    _run(
        tmp_path,
        f"""
        import json, pathlib, subprocess, sys
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL)
        pathlib.Path({str(tmp_path / "worker")!r}).write_text(str(worker.pid))
        result = json.loads({json.dumps(json.dumps(result().to_dict()))})
        print(json.dumps({{"event": "result", "result": result}}))
        """,
    )
    assert _ended(tmp_path / "worker")
    assert "demo-events" not in {thread.name for thread in threading.enumerate() if thread.is_alive()}
