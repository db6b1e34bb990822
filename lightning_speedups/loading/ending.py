"""How a child process that has iterated over a loader ends without waiting for its workers."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

_kept: list[Any] = []


def keep_to_the_end(iterator: Any) -> None:
    """Hold a loader's iterator until the process ends.

    Its destructor would wait for batches that no one needs any more, and seconds for a worker that hangs. A child that
    has reported is ended with all its workers instead.
    """
    _kept.append(iterator)


def end_quietly() -> None:
    """Workers are about to be ended with this process; torch would raise here for each that is."""
    if hasattr(signal, "SIGCHLD"):
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
