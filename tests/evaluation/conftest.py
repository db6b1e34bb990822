"""What the tests of evaluation share: hearing what the callback says and warns."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator

import pytest


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


@pytest.fixture
def warned() -> Iterator[Callable[[], str]]:
    """Returns what NoGradEvaluation warned of so far, one message a line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: "\n".join(str(each.message) for each in caught if "NoGradEvaluation" in str(each.message))
