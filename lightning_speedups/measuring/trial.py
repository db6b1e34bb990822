"""A function run in a child process with a hard time limit, after which nothing of it is left.

What a trial does to random streams, caches, open files and live worker processes stays in the child. The child
leads a process session of its own, so that whatever it starts can be found and ended by process id, even when the
child itself has died, and a thread in it ends all of them if the parent dies first.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar, cast

import psutil

from lightning_speedups.measuring import _trial_child, processes

T = TypeVar("T")

# Long enough for a child to flush and leave by itself, short beside any trial.
_LEAVE_S = 5.0
_LOOK_EVERY_S = 0.05

_SIGNAL_HINTS = {
    "SIGKILL": "as the kernel does when memory runs out",
    "SIGBUS": "as happens when /dev/shm is full",
    "SIGSEGV": "a crash in native code",
}


@dataclass(frozen=True)
class TrialOutcome(Generic[T]):
    """What came of a trial: either ``value``, or ``error`` in one sentence that says what went wrong.

    ``traceback_text`` is the child's traceback where the function raised. ``exitcode`` is the child's, negative
    for the signal that killed it, None where it never started. ``seconds_s`` runs from the start of the child,
    which is part of it, to its result or end.
    """

    value: T | None
    error: str | None
    traceback_text: str | None
    exitcode: int | None
    timed_out: bool
    seconds_s: float

    @property
    def ok(self) -> bool:
        """Whether the function returned; its value may still be None."""
        return self.error is None


def run_in_child(
    fn: Callable[..., T], *args: Any, timeout_s: float, start_method: str | None = "spawn"
) -> TrialOutcome[T]:
    """Run ``fn(*args)`` in a child process and return its result or, without raising, what went wrong.

    The child computes with one intra-op thread, as a loader's worker does. It is always ended, with everything
    that it has started, before this returns or raises, also on Ctrl-C. A process that made itself a daemon (a new
    session, its parent gone) cannot be found and is the one exception.

    Args:
        fn: a function at the top level of a module, unless the start method is ``"fork"``.
        args: its arguments; pickled by value, shared memory is not used.
        timeout_s: wall seconds for the start of the child and the function together.
        start_method: ``"spawn"`` starts a fresh interpreter, which imports the program's main script again, so
            that it must guard its own start with ``if __name__ == "__main__":``. ``"fork"`` copies this process
            with all that it has open. None takes Python's default for this system.

    Raises:
        ValueError: a timeout that is not above 0, or a start method that this system lacks.

    A daemonic process, such as a loader's worker, may have no children: there the outcome is an error that says so.

    Example:
        >>> import math
        >>> run_in_child(math.sqrt, 2.0, timeout_s=30).value
        1.4142135623730951
    """
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be above 0 seconds, got {timeout_s!r}")
    methods = multiprocessing.get_all_start_methods()
    if start_method is not None and start_method not in methods:
        raise ValueError(f"start_method must be None or one of {', '.join(methods)} here, got {start_method!r}")
    if multiprocessing.current_process().daemon:
        return _not_started("this is a daemonic process, which may have no children; run the trial in its parent")
    context = multiprocessing.get_context(start_method)
    if context.get_start_method() == "fork":
        return _Trial(context, fn, inherited=(fn, args)).outcome(timeout_s)
    try:
        work = pickle.dumps((fn, args))
    except Exception as error:  # noqa: BLE001  a user's __reduce__ may raise anything; the outcome carries it
        return _not_started(
            f"{_name(fn)} and its arguments cannot be pickled for the child process ({type(error).__name__}: {error});"
            " pass a function from the top level of a module and plain data"
        )
    return _Trial(context, fn, work=work).outcome(timeout_s)


class _Trial:
    """One child, from its start to its end."""

    def __init__(
        self, context: BaseContext, fn: Callable[..., Any], *, work: bytes | None = None, inherited: Any = None
    ) -> None:
        self._pipe, self._childs_end = context.Pipe()
        # typeshed knows Process on the contexts by name only.
        self._process: BaseProcess = cast("SpawnContext", context).Process(
            target=_trial_child.run, args=(self._childs_end, inherited), name=f"trial of {_name(fn)}"
        )
        self._fn_name = _name(fn)
        self._work = work
        self._message: bytes | None = None

    def outcome(self, timeout_s: float) -> TrialOutcome[Any]:
        started = time.monotonic()
        try:
            self._process.start()
            child = psutil.Process(self._process.pid)
        except (OSError, psutil.NoSuchProcess) as error:
            return _not_started(f"the child process could not be started ({error}); free memory or processes")
        finally:
            self._childs_end.close()
        talk = threading.Thread(target=self._talk, name="trial-talk", daemon=True)
        started_by_child: set[psutil.Process] = set()
        try:
            talk.start()
            timed_out = self._wait(talk, child, started + timeout_s)
            seconds_s = time.monotonic() - started
            if not talk.is_alive() and self._message is not None:
                started_by_child = self._let_leave(child)
        finally:
            ended = processes.end(child, started_by_child)
            self._process.join(_LEAVE_S)
            talk.join(_LEAVE_S)
            if not talk.is_alive():
                self._pipe.close()
        return self._judge(timeout_s if timed_out else None, ended, seconds_s)

    def _talk(self) -> None:
        """In a thread, because either call blocks for as long as the child keeps the other end waiting."""
        # Without a message it is the exit code that tells what happened.
        with contextlib.suppress(EOFError, OSError):
            if self._work is not None:
                self._pipe.send_bytes(self._work)
            self._message = self._pipe.recv_bytes()

    @staticmethod
    def _wait(talk: threading.Thread, child: psutil.Process, deadline: float) -> bool:
        """Wait for the report or the child's end; True if neither came in time."""
        while talk.is_alive() and processes.alive(child):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return True
            talk.join(min(left_s, _LOOK_EVERY_S))
        return False

    def _let_leave(self, child: psutil.Process) -> set[psutil.Process]:
        """Let a child that has reported exit by itself, after listing what it has started."""
        found = processes.started_by(child)
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(b"leave")
        deadline = time.monotonic() + _LEAVE_S
        while processes.alive(child) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S / 10)
        return found

    def _judge(self, timed_out_after_s: float | None, ended: int, seconds_s: float) -> TrialOutcome[Any]:
        exitcode = self._process.exitcode
        value, error, traceback_text = None, None, None
        if self._message is not None:
            value, error, traceback_text = self._read_message(self._message)
        elif timed_out_after_s is not None:
            others = f", with {ended} process(es) that it had started" if ended else ""
            error = f"{self._fn_name} gave no result within {timed_out_after_s:g} s; its process was ended{others}"
        else:
            error = f"{self._fn_name} gave no result: {_how_it_ended(exitcode)}"
        timed_out = timed_out_after_s is not None and self._message is None
        return TrialOutcome(value, error, traceback_text, exitcode, timed_out, seconds_s)

    def _read_message(self, message: bytes) -> tuple[Any, str | None, str | None]:
        report: _trial_child.Report = pickle.loads(message)
        if report.value is None:
            return None, report.error, report.traceback_text
        try:
            return pickle.loads(report.value), None, None
        except Exception as error:  # noqa: BLE001  a user's __setstate__ may raise anything; the outcome carries it
            return (
                None,
                f"the result of {self._fn_name} cannot be read in this process ({type(error).__name__}: {error})",
                "".join(traceback.format_exception(error)),
            )


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is None:
        return "its process ended and the system does not tell how"
    if exitcode >= 0:
        return (
            f"its process exited with code {exitcode} first, and its own output says why; with the start method"
            ' "spawn" the main script must guard its start with `if __name__ == "__main__":`'
        )
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = "unknown here"
    hint = f", {_SIGNAL_HINTS[name]}" if name in _SIGNAL_HINTS else ""
    return f"its process was killed by signal {-exitcode} ({name}){hint}"


def _not_started(error: str) -> TrialOutcome[Any]:
    return TrialOutcome(None, error, None, exitcode=None, timed_out=False, seconds_s=0.0)


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", None) or repr(fn))
