"""What the trials' children run. At the top level of a module of its own, without heavy imports, so that a spawned
interpreter starts fast.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_SLEEPER = "import time; time.sleep(600)"
_STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"


def double(x):
    return 2 * x


def fail(message):
    raise ValueError(message)


def leave(code):
    raise SystemExit(code)


def exit_at_once(code):
    os._exit(code)


def kill_itself(number):
    os.kill(os.getpid(), number)


def sleep_forever(pid_file):
    Path(pid_file).write_text(str(os.getpid()))
    time.sleep(600)


def big(size):
    return b"x" * size


def length(data):
    return len(data)


def torch_threads():
    import torch

    return torch.get_num_threads()


def identity():
    return os.getpid(), os.getsid(0), os.environ["OMP_NUM_THREADS"]


def unpicklable_result():
    return threading.Lock()


class Unreadable:
    """Pickles, and fails where it is read."""

    def __reduce__(self):
        return fail, ("cannot be rebuilt",)


def unreadable_result():
    return Unreadable()


def start_others(pid_file, then, stubborn=False, detached=False):
    """Start a process that starts another, write down all three ids, then return, crash or hang."""
    command = [sys.executable, "-c", _STUBBORN if stubborn else _SLEEPER]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=detached)
    if stubborn:
        first.stdout.readline()
    # Ends at once, so that what it starts is an orphan by the time its id is written down.
    nested = f"""
import subprocess, sys
quiet = subprocess.DEVNULL
print(subprocess.Popen([sys.executable, "-c", {_SLEEPER!r}], stdout=quiet, stderr=quiet).pid)
"""
    parent = subprocess.run([sys.executable, "-c", nested], capture_output=True, text=True, check=True, timeout=60)
    Path(pid_file).write_text(f"{os.getpid()} {first.pid} {parent.stdout}")
    if then == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if then == "hang":
        time.sleep(600)
    return "done"


def trial_that_hangs(pid_file):
    """In a parent of its own: a trial that never ends by itself, with processes of its own."""
    from lightning_speedups.measuring.trial import run_in_child

    run_in_child(start_others, pid_file, "hang", timeout_s=300)
