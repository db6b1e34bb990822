"""Cases on several ranks: processes that are started once per world size, run many cases, and are ended by their id.

The parent (``Ranks``) writes the name of a case to each worker's stdin; each worker runs it in the process group that
they share and writes ``<case number>.<rank>.json``. A case that fails or hangs costs its group: the workers
are ended, and the next case starts new ones.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import pkgutil
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from tests import processes

REPOSITORY = Path(__file__).parents[1]
GROUP_TIMEOUT_S = 60
START_TIMEOUT_S = 90
CASE_TIMEOUT_S = 90
# What the other ranks get to finish, or to notice, once one has failed.
GRACE_S = 5.0
POLL_S = 0.01


@dataclass(frozen=True)
class Case:
    """A function that every rank of a group runs."""

    name: str
    function: Callable[[], None]
    world_size: int


_cases: dict[str, Case] = {}


def distributed_case(
    function: Callable[[], None] | None = None, *, world_size: int = 2, name: str | None = None
) -> Callable[..., Any]:
    """Register a function that every rank of a group of ``world_size`` gloo processes runs; ``name`` for a partial."""
    if function is None:
        return functools.partial(distributed_case, world_size=world_size, name=name)
    known_as = name or f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    if known_as in _cases:
        raise ValueError(f"two distributed cases are named {known_as!r}")
    _cases[known_as] = Case(known_as, function, world_size)
    return function


def all_cases() -> dict[str, Case]:
    """Every case of the modules in ``tests/distributed_cases``, by name."""
    package = importlib.import_module("tests.distributed_cases")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(_cases)


def ddp_trainer(**settings: Any) -> Any:
    """A quiet Trainer for the ranks of the running case."""
    import torch.distributed as dist

    from tests.helpers import quiet_trainer

    return quiet_trainer(**{"strategy": "ddp", "devices": dist.get_world_size(), **settings})


def on_every_rank(value: Any) -> list[Any]:
    """The values of all ranks, in the order of the ranks."""
    import torch.distributed as dist

    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


class Ranks:
    """The workers of one world size; they start with the first case and stay for the next ones."""

    def __init__(self, world_size: int, folder: Path) -> None:
        self.world_size = world_size
        self.folder = folder
        self.workers: list[subprocess.Popen[str]] = []
        self.groups = self.cases = 0

    def run(self, name: str, timeout_s: float = CASE_TIMEOUT_S) -> list[str]:
        """Run a case on all ranks and give back what went wrong on each: an empty string for nothing."""
        self.cases += 1
        if not self.workers:
            self._start()
        files = [self.folder / f"{self.cases}.{rank}.json" for rank in range(self.world_size)]
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{self.cases} {name}\n")
            worker.stdin.flush()
        deadline = time.monotonic() + timeout_s
        failed = False
        while time.monotonic() < deadline and not all(file.exists() for file in files):
            if not failed and (self._any_dead() or any(_problem(file) for file in files)):
                failed = True
                deadline = min(deadline, time.monotonic() + GRACE_S)
            time.sleep(POLL_S)
        problems = [_problem(file) for file in files]
        for rank, file in enumerate(files):
            if not file.exists():
                problems[rank] = self._silence(rank, timeout_s)
        if any(problems):
            self.end()
        return problems

    def _start(self) -> None:
        self.groups += 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in range(self.world_size):
            environment = {
                **os.environ,
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
            }
            numbers = str(self.world_size), str(self.groups)
            command = [sys.executable, "-m", "tests.distributed", *numbers, str(self.folder)]
            with self._log(rank).open("w") as log:
                worker = subprocess.Popen(
                    command, cwd=REPOSITORY, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
                )
            processes.share(worker.pid)
            self.workers.append(worker)
        deadline = time.monotonic() + START_TIMEOUT_S
        joined = [self.folder / f"{self.groups}.{rank}.joined" for rank in range(self.world_size)]
        while not all(file.exists() for file in joined):
            if self._any_dead() or time.monotonic() > deadline:
                logs = "\n".join(self._log(rank).read_text()[-3000:] for rank in range(self.world_size))
                self.end()
                raise RuntimeError(f"no group of {self.world_size} came up within {START_TIMEOUT_S} s:\n{logs}")
            time.sleep(POLL_S)

    def _log(self, rank: int) -> Path:
        return self.folder / f"group{self.groups}.rank{rank}.log"

    def _any_dead(self) -> bool:
        return any(worker.poll() is not None for worker in self.workers)

    def _silence(self, rank: int, timeout_s: float) -> str:
        code = self.workers[rank].poll()
        what = (
            f"ended with exit code {code}"
            if code is not None
            else f"had no result (limit {timeout_s} s), and was ended"
        )
        return f"rank {rank} {what}; it printed last:\n{self._log(rank).read_text()[-3000:]}"

    def end(self) -> None:
        """End the workers and all that they started."""
        processes.end([psutil.Process(worker.pid) for worker in self.workers if worker.poll() is None])
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait(timeout=GRACE_S)
        self.workers = []


def _problem(file: Path) -> str:
    return str(json.loads(file.read_text())["problem"]) if file.exists() else ""


def _work(world_size: int, group: int, folder: Path) -> None:
    """What a worker does: join the group, then run the cases whose names come in, until there are no more."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["LOCAL_RANK"])
    torch.set_num_threads(1)
    timeout = timedelta(seconds=GROUP_TIMEOUT_S)
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world_size, timeout=timeout)
    cases = all_cases()
    (folder / f"{group}.{rank}.joined").touch()
    for line in sys.stdin:
        number, _, name = line.strip().partition(" ")
        problem = ""
        try:
            cases[name].function()
            dist.barrier()
        except BaseException:  # noqa: BLE001 - whatever ends a case is its result, and the parent's to judge
            problem = f"rank {rank}:\n{traceback.format_exc()}"
        aside = folder / f"{number}.{rank}.part"
        aside.write_text(json.dumps({"problem": problem}))
        aside.rename(folder / f"{number}.{rank}.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    # The cases register with the module under its own name, which is not the one of the program that runs.
    importlib.import_module("tests.distributed")._work(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
