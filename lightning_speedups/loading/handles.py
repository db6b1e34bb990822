"""Finds what a dataset holds that must not be shared with a forked worker, or changed by a trial. Calls no user code.

A file opened before the fork has one offset for all processes: two workers that seek and read in turns get each
other's records, without an error. Comparing records seldom shows it, so the object graph is searched instead.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import Any

from lightning_speedups.loading.graph import walk

# By name, so that nothing is imported: (root package, class). Readers that keep a position, a connection or a
# cursor in the process; the classes that have a public ``fileno`` are found by it instead.
_BY_NAME = {
    ("av", "InputContainer"),
    ("cv2", "VideoCapture"),
    ("decord", "VideoReader"),
    ("duckdb", "DuckDBPyConnection"),
    ("h5py", "Dataset"),
    ("h5py", "File"),
    ("h5py", "Group"),
    ("leveldb", "LevelDB"),
    ("lmdb", "Cursor"),
    ("lmdb", "Environment"),
    ("lmdb", "Transaction"),
    ("netCDF4", "Dataset"),
    ("plyvel", "DB"),
    ("psycopg", "Connection"),
    ("psycopg2", "connection"),
    ("pymongo", "MongoClient"),
    ("pymysql", "Connection"),
    ("pysam", "AlignmentFile"),
    ("rasterio", "DatasetReader"),
    ("redis", "Redis"),
    ("sqlite3", "Connection"),
    ("sqlite3", "Cursor"),
    ("tables", "File"),
    ("zmq", "Socket"),
}
_SHARED_STATE = ("multiprocessing.sharedctypes", "multiprocessing.managers", "multiprocessing.shared_memory")
_DESCRIPTOR_NAME = re.compile(r"(^|[._])(fd|fileno|file_descriptor)s?$")


def shared_handles(root: Any, name: str) -> Iterator[tuple[str, str]]:
    """The open files, sockets and database connections that ``root`` reaches: where each is, and what it is.

    Standard streams and files that are only written (a log) are none: no record is read from them.
    """
    reported: list[str] = []
    for path, value in walk(root, name):
        what = _handle(path, value)
        # What lies inside a handle is the same handle again.
        if what is not None and not any(path.startswith(f"{outer}.") for outer in reported):
            reported.append(path)
            yield path, what


def shared_state(root: Any, name: str) -> Iterator[tuple[str, str]]:
    """What ``root`` shares with other processes on purpose: a trial that changed it would change it in the run."""
    for path, value in walk(root, name):
        if type(value).__module__ in _SHARED_STATE:
            yield path, f"{type(value).__name__} of {type(value).__module__}"


def _handle(path: str, value: Any) -> str | None:
    cls = type(value)
    if isinstance(value, int):
        return _descriptor(value) if _DESCRIPTOR_NAME.search(path) and not isinstance(value, bool) else None
    if inspect.getattr_static(cls, "fileno", None) is not None:
        return _open_file(value) if _is_open(value) else None
    for base in cls.__mro__:
        if (base.__module__.partition(".")[0], base.__name__) in _BY_NAME or _is_lmdb(base):
            return None if _says_closed(value) else f"{_an(base.__name__)} of {base.__module__.partition('.')[0]}"
    return None


def _is_open(value: Any) -> bool:
    try:
        number = value.fileno()
    # ValueError: a closed file. OSError: no file at all, as with io.BytesIO. A foreign class may raise anything.
    except Exception:  # noqa: BLE001
        return False
    return isinstance(number, int) and number > 2 and _readable(value)


def _readable(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        with contextlib.suppress(ValueError):
            return value.readable()
    return True


def _open_file(value: Any) -> str:
    kind = "an open file" if isinstance(value, io.IOBase) else f"an open {type(value).__name__}"
    named = getattr(value, "name", None)
    return f"{kind} ({named})" if isinstance(named, str) and isinstance(value, io.IOBase) else kind


def _descriptor(number: int) -> str | None:
    if number <= 2:
        return None
    try:
        mode = os.fstat(number).st_mode
    except (OSError, OverflowError):
        return None
    return f"an open file descriptor ({number})" if stat.S_ISREG(mode) or stat.S_ISSOCK(mode) else None


def _says_closed(value: Any) -> bool:
    # h5py objects are falsy once closed; the others do not say.
    return type(value).__module__.startswith("h5py") and not value


def _is_lmdb(base: type) -> bool:
    # lmdb's C types carry no module name.
    return base.__module__ == "builtins" and base.__name__ in ("Environment", "Transaction") and "lmdb" in sys.modules


def _an(word: str) -> str:
    return f"an {word}" if word[0] in "AEIOUaeiou" else f"a {word}"
