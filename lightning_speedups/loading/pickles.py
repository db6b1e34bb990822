"""Whether a loader's parts can be sent to a worker that is not forked, and which attribute stands in the way."""

from __future__ import annotations

import io
import pickle
import types
from typing import Any

from lightning_speedups.loading.graph import attributes

_PARTS = ("dataset", "collate_fn", "worker_init_fn", "sampler", "batch_sampler")
_DEEPEST = 6
_MOST_CHILDREN = 50


class TooLarge(Exception):
    """A pickle grew over its limit."""


def unpicklable_part(loader: Any, most_bytes: int | None = None) -> tuple[str, str] | None:
    """The first part of a loader that cannot be pickled, with the reason; None where all can.

    Args:
        loader: the loader; its parts are pickled as torch would do for its workers.
        most_bytes: stop where a pickle grows larger.

    Raises:
        TooLarge: it grew larger than ``most_bytes``.
    """
    for part in _PARTS:
        value = getattr(loader, part, None)
        error = _error(value, most_bytes)
        if error is not None:
            path, culprit = _deepest(part, value)
            return path, _described(culprit) or error
    return None


def _error(value: Any, most_bytes: int | None = None) -> str | None:
    try:
        pickle.Pickler(_Counter(most_bytes), protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except TooLarge:
        raise
    except Exception as error:  # noqa: BLE001  a user's __reduce__ may raise anything; the caller reports it
        return f"{type(error).__name__}: {error}"
    return None


class _Counter(io.RawIOBase):
    """A file that keeps nothing and refuses to grow without end."""

    def __init__(self, most_bytes: int | None) -> None:
        self._left = most_bytes

    def write(self, data: Any) -> int:
        size = len(data)
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                raise TooLarge
        return size


def _deepest(path: str, value: Any) -> tuple[str, Any]:
    """Follow the failing attribute down to the one that has none that fails."""
    for _ in range(_DEEPEST):
        failing = next(((name, child) for name, child in _children(path, value) if _error(child)), None)
        if failing is None:
            break
        path, value = failing
    return path, value


def _children(path: str, value: Any) -> list[tuple[str, Any]]:
    found = list(attributes(path, value))
    if isinstance(value, dict):
        found += [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple, set)):
        found += [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    return found[:_MOST_CHILDREN]


def _described(value: Any) -> str | None:
    """A function by its place in the program, which is what a reader has to change."""
    if not isinstance(value, types.FunctionType):
        return None
    code = value.__code__
    kind = "a lambda" if code.co_name == "<lambda>" else f"the local function {value.__qualname__}"
    owner = value.__qualname__.partition(".<locals>")[0]
    inside = f" in {owner}()" if "<locals>" in value.__qualname__ else ""
    return f"{kind}{inside} ({code.co_filename}:{code.co_firstlineno}), which cannot be pickled"
