"""What every test runs under: one thread, quiet logging, a folder of its own, and no process left behind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests import processes

# Programs and cases that other processes run; collecting doctests would import them into this one.
collect_ignore_glob = ["namespace_programs/*", "distributed_cases/*"]
torch.set_num_threads(1)
# What Lightning says at every fit, whatever happens; the pack speaks through the same loggers and is to be heard.
_NOISE = ("GPU available", "TPU available", "HPU available", "💡 Tip", "`Trainer.fit` stopped", "Restor", "Seed set")
for _framework in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(f"{_framework}.utilities.rank_zero").addFilter(
        lambda record: not record.getMessage().startswith(_NOISE)
    )


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a fresh folder, so that what a Trainer or a report writes by default lands there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _no_process_left_behind() -> Iterator[None]:
    """End, by id, what a test started and left running; and fail the test that left it."""
    before = processes.family()
    yield
    left = processes.leftovers(before)
    described = [f"{process.pid}: {' '.join(process.cmdline())[:200]}" for process in left if process.is_running()]
    processes.end(left)
    if described:
        pytest.fail("the test left processes running, now ended: " + "; ".join(described), pytrace=False)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def said() -> Iterator[Callable[[], str]]:
    """Returns everything that went to Lightning's log so far, one message a line."""
    # Lightning has pointed this module's logger at its own by the time that a Trainer exists.
    from lightning_utilities.core import rank_zero

    handler, log = _Lines(), rank_zero.log
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield lambda: "\n".join(handler.lines)
    log.removeHandler(handler)
    log.setLevel(before)
