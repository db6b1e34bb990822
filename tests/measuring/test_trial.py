from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lightning_speedups.measuring.trial import run_in_child
from tests.measuring import children

TIMEOUT_S = 60
METHODS = [method for method in ("spawn", "fork") if method in multiprocessing.get_all_start_methods()]
posix_only = pytest.mark.skipif(not hasattr(os, "setsid"), reason="process sessions exist on POSIX systems only")


def run(fn, *args, timeout_s=TIMEOUT_S, **kw):
    return run_in_child(fn, *args, timeout_s=timeout_s, **kw)


def written_pids(path, timeout_s=TIMEOUT_S):
    deadline = time.monotonic() + timeout_s
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline, "the child never wrote its process ids"
        time.sleep(0.02)
    return [int(word) for word in path.read_text().split()]


def running(pids):
    """Those of ``pids`` that still run or wait as a zombie; what init is about to collect gets a moment."""
    deadline = time.monotonic() + 5
    while (left := [pid for pid in pids if psutil.pid_exists(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.fixture(autouse=True)
def _no_child_is_left():
    def ours():
        started = psutil.Process().children(recursive=True)
        # Python starts its resource tracker with the first spawned process and keeps it until the program ends.
        return {child for child in started if "resource_tracker" not in str(child.cmdline())}

    before = ours()
    yield
    assert ours() <= before


@pytest.mark.parametrize("method", METHODS)
def test_a_result_comes_back(method):
    outcome = run(children.double, 21, start_method=method)

    assert outcome.ok
    assert outcome.value == 42
    assert (outcome.error, outcome.traceback_text, outcome.exitcode, outcome.timed_out) == (None, None, 0, False)
    assert outcome.seconds_s > 0


def test_the_start_method_of_the_system_serves_too():
    assert run(children.double, 21, start_method=None).value == 42


@pytest.mark.skipif("fork" not in METHODS, reason="this system cannot fork")
def test_a_forked_child_takes_a_function_that_cannot_be_pickled():
    base = 40
    assert run(lambda x: base + x, 2, start_method="fork").value == 42


@pytest.mark.parametrize("method", METHODS)
def test_the_child_computes_with_one_thread(method):
    import torch

    before = torch.get_num_threads()
    assert run(children.torch_threads, start_method=method).value == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("method", METHODS)
def test_the_child_is_another_process_and_the_parents_environment_stays(method, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    pid, session, threads = run(children.identity, start_method=method).value

    assert pid != os.getpid()
    assert session == pid
    assert threads == "1"
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize("method", METHODS)
def test_large_arguments_and_results_do_not_deadlock(method):
    size = 64 * 2**20
    assert run(children.length, b"x" * size, start_method=method).value == size
    assert len(run(children.big, size, start_method=method).value) == size


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_comes_back_as_text(method):
    outcome = run(children.fail, "no such file", start_method=method)

    assert not outcome.ok
    assert outcome.error == "ValueError: no such file"
    assert "in fail" in outcome.traceback_text
    assert not outcome.timed_out


def test_leaving_through_system_exit_is_an_error_not_a_result():
    outcome = run(children.leave, 0)

    assert outcome.error == "SystemExit: 0"
    assert outcome.value is None


def test_an_exit_without_a_word_says_the_code_and_the_usual_cause():
    outcome = run(children.exit_at_once, 3)

    assert outcome.exitcode == 3
    assert "exited with code 3" in outcome.error
    assert '__name__ == "__main__"' in outcome.error


@posix_only
@pytest.mark.parametrize(("number", "hint"), [(signal.SIGKILL, "memory runs out"), (signal.SIGBUS, "/dev/shm is full")])
def test_a_deadly_signal_is_named_with_its_usual_cause(number, hint):
    outcome = run(children.kill_itself, int(number))

    assert outcome.exitcode == -number
    assert f"killed by signal {int(number)} ({number.name})" in outcome.error
    assert hint in outcome.error
    assert not outcome.timed_out


@pytest.mark.parametrize("method", METHODS)
def test_a_child_that_hangs_is_ended_at_the_time_limit(method, tmp_path):
    pid_file = tmp_path / "pid"
    outcome = run(children.sleep_forever, str(pid_file), timeout_s=3, start_method=method)

    assert outcome.timed_out
    assert outcome.value is None
    assert "sleep_forever gave no result within 3 s" in outcome.error
    assert running(written_pids(pid_file)) == []


@posix_only
@pytest.mark.slow
@pytest.mark.parametrize("stubborn", [False, True], ids=["listening", "ignoring_sigterm"])
@pytest.mark.parametrize("then", ["return", "crash", "hang"])
def test_whatever_the_child_started_is_ended_with_it(then, stubborn, tmp_path):
    pid_file = tmp_path / "pids"
    outcome = run(children.start_others, str(pid_file), then, stubborn, timeout_s=15 if then == "hang" else TIMEOUT_S)

    assert outcome.ok == (then == "return")
    assert outcome.timed_out == (then == "hang")
    pids = written_pids(pid_file)
    assert len(pids) == 3
    assert running(pids) == []
    if then == "hang":
        assert "with 2 process(es) that it had started" in outcome.error


@posix_only
def test_a_process_in_a_session_of_its_own_is_ended_while_its_parent_lives(tmp_path):
    pid_file = tmp_path / "pids"
    run(children.start_others, str(pid_file), "return", False, True)

    assert running(written_pids(pid_file)) == []


@posix_only
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_parent_is_interrupted_or_dies(number, tmp_path):
    pid_file = tmp_path / "pids"
    code = f"from tests.measuring.children import trial_that_hangs; trial_that_hangs({str(pid_file)!r})"
    command, root = [sys.executable, "-c", code], Path(__file__).parents[2]
    parent = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True)
    try:
        pids = written_pids(pid_file)
        parent.send_signal(number)
        _, printed = parent.communicate(timeout=TIMEOUT_S)
    finally:
        parent.kill()
        parent.wait(TIMEOUT_S)

    assert running(pids) == []
    assert ("KeyboardInterrupt" in printed) == (number == signal.SIGINT)


def test_a_function_that_cannot_be_pickled_is_an_error_that_says_what_to_pass():
    outcome = run(lambda: 1)

    assert "<lambda> and its arguments cannot be pickled" in outcome.error
    assert "top level of a module" in outcome.error
    assert outcome.exitcode is None


def test_a_result_that_cannot_be_pickled_is_named_by_its_type():
    outcome = run(children.unpicklable_result)

    assert "the result, of type lock, cannot be pickled" in outcome.error
    assert outcome.traceback_text


def test_a_result_that_cannot_be_read_here_is_an_error_too():
    outcome = run(children.unreadable_result)

    assert "the result of unreadable_result cannot be read in this process" in outcome.error
    assert "cannot be rebuilt" in outcome.error


def test_arguments_that_cannot_be_loaded_in_the_child_say_where_to_define_them():
    outcome = run(children.double, children.Unreadable())

    assert "could not be loaded in the child process" in outcome.error
    assert "cannot be rebuilt" in outcome.error


def _trial_in_a_daemon(results):
    results.put(run(children.double, 1).error)


@pytest.mark.skipif("fork" not in METHODS, reason="the daemon is forked, to keep the test short")
def test_a_daemonic_process_is_told_that_it_may_have_no_children():
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    daemon = context.Process(target=_trial_in_a_daemon, args=(results,), daemon=True)
    daemon.start()
    try:
        daemon.join(TIMEOUT_S)
        assert "daemonic process, which may have no children" in results.get()
    finally:
        daemon.kill()
        daemon.join()


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_a_time_limit_must_be_above_zero(timeout_s):
    with pytest.raises(ValueError, match=f"above 0 seconds, got {timeout_s}"):
        run(children.double, 1, timeout_s=timeout_s)


def test_an_unknown_start_method_is_refused_with_those_that_exist():
    with pytest.raises(ValueError, match=r"one of .*spawn.* here, got 'spoon'"):
        run(children.double, 1, start_method="spoon")


def test_random_streams_of_the_parent_do_not_move():
    from lightning_speedups.measuring import rng

    before = rng.fingerprint()
    run(children.double, 1)
    assert rng.fingerprint() == before
