"""The only place that touches torch's private parts, each with a test in ``tests/test_torch_canaries.py``.

Checked on torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def scheduler_parts(scheduler: Any) -> Iterator[Any]:
    """The schedulers inside a ``SequentialLR`` or ``ChainedScheduler``, or the scheduler itself."""
    inner = getattr(scheduler, "_schedulers", None)
    if inner is None:
        yield scheduler
        return
    for part in inner:
        yield from scheduler_parts(part)
