"""What a test leaves running is found, ended with all that it started, and held against the test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import processes

REPOSITORY = Path(__file__).parents[1]
SLEEPS = "import time; time.sleep(300)"
PARENT_OF_ONE = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', '{SLEEPS}']); time.sleep(300)"


def wait_for_a_child(process: psutil.Process) -> psutil.Process:
    for _ in range(1000):
        for child in process.children():
            return child
        psutil.wait_procs([process], timeout=0.02)
    raise AssertionError(f"{process} started no child")


def test_a_process_and_its_children_are_found_and_ended() -> None:
    before = processes.family()
    started = subprocess.Popen([sys.executable, "-c", PARENT_OF_ONE])
    child = wait_for_a_child(psutil.Process(started.pid))

    left = processes.leftovers(before)
    processes.end(left)

    assert {process.pid for process in left} == {started.pid, child.pid}
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in (*left, child))


def test_a_shared_process_may_stay() -> None:
    before = processes.family()
    started = subprocess.Popen([sys.executable, "-c", SLEEPS])
    processes.share(started.pid)

    assert processes.leftovers(before) == []
    processes.end([psutil.Process(started.pid)])


@pytest.mark.slow
def test_the_test_that_left_a_process_fails_and_names_it(tmp_path: Path) -> None:
    test = tmp_path / "test_leaves.py"
    test.write_text(
        "import subprocess, sys\n"
        f"def test_leaves():\n    subprocess.Popen([sys.executable, '-c', '{SLEEPS}'])\n"
        "def test_leaves_nothing():\n    subprocess.run([sys.executable, '-c', ''])\n"
    )
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-q"]

    run = subprocess.run(
        [sys.executable, "-m", "pytest", str(test), *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert run.returncode == 1
    assert "the test left processes running, now ended" in run.stdout
    assert "2 passed, 1 error" in run.stdout
