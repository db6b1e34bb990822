"""The child's side of a trial. It imports no torch of its own: a function that needs none starts faster."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import psutil

from lightning_speedups.measuring import processes


class Report(NamedTuple):
    """What the child sends back, once."""

    value: bytes | None
    error: str | None = None
    traceback_text: str | None = None


def run(pipe: Connection, inherited: tuple[Callable[..., Any], tuple[Any, ...]] | None) -> None:
    """The child's main function: take the work, do it, report, and leave when told to.

    Args:
        pipe: where the report goes and, unless ``inherited``, where the pickled work comes from.
        inherited: the function and its arguments, in a forked child.
    """
    if hasattr(os, "setsid"):
        os.setsid()
    # A forked child would else answer with the parent's handler, which may be Lightning's.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    pipe.send_bytes(pickle.dumps(_report(pipe, inherited)))
    # Until the parent has listed what was started here, an exit would orphan it.
    pipe.recv_bytes()


def _report(pipe: Connection, inherited: tuple[Callable[..., Any], tuple[Any, ...]] | None) -> Report:
    # Each of the three runs code of the user's, which may raise anything, SystemExit included: it all goes into
    # the report, and the parent decides.
    try:
        fn, args = inherited or pickle.loads(pipe.recv_bytes())
    except BaseException as error:  # noqa: BLE001
        return _failed(
            f"the function could not be loaded in the child process ({_text(error)}); define it in a module file"
            " that can be imported, not in a notebook or prompt",
            error,
        )
    _one_thread()
    try:
        value = fn(*args)
    except BaseException as error:  # noqa: BLE001
        return _failed(_text(error), error)
    try:
        return Report(pickle.dumps(value))
    except BaseException as error:  # noqa: BLE001
        return _failed(
            f"the result, of type {type(value).__name__}, cannot be pickled for the parent process ({_text(error)});"
            " return plain data",
            error,
        )


def _failed(message: str, error: BaseException) -> Report:
    return Report(None, message, "".join(traceback.format_exception(error)))


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _one_thread() -> None:
    """One intra-op thread also where torch was loaded before the environment could say so."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        processes.end(psutil.Process(), spare_leader=True)
        os._exit(1)
