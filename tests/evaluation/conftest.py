"""What the tests of evaluation share: hearing what the callback warns of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def warned() -> Iterator[Callable[[], str]]:
    """Returns what NoGradEvaluation warned of so far, one message a line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: "\n".join(str(each.message) for each in caught if "NoGradEvaluation" in str(each.message))
