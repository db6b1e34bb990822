"""Samples' bytes in a folder that any number of processes read and fill at the same time, without locks.

Each process appends to two files of its own, ``<writer>.samples`` (the bytes) and ``<writer>.index`` (one record per
sample, written after its bytes: the record is the commit). No process ever writes to a file of another, a file is
opened for one write and closed again, and the files of a process that was killed stay as they are: what it committed
counts, and bytes or half a record behind that are never looked at. Readers map the files into memory, so that all
of them share one copy in the page cache. When every sample is there, the whole index is written aside as one array and
renamed into place, with ``complete.json`` after it: later readers map that and read no records.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from lightning_speedups.reporting.files import write_aside

_RECORD: Final = np.dtype([("index", "<i8"), ("at", "<i8"), ("nbytes", "<i8"), ("crc", "<u4"), ("check", "<u4")])
# Where a sample is: the number of its file plus one (0: nowhere), its offset, its length, its checksum.
_PLACE: Final = np.dtype([("file", "<i4"), ("crc", "<u4"), ("at", "<i8"), ("nbytes", "<i8")])
_COMPLETE: Final = "complete.json"
# Odd numbers without a pattern: a record of zeros, or of one repeated value, has another check than its own.
_MIX: Final = tuple(np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


class SampleStore:
    """The samples ``0 .. count - 1`` of one folder, as far as they are there.

    Pickles as its folder and count: whoever unpickles it maps the files anew. After a fork it reads through the
    maps that it inherited, and writes to files of its own.
    """

    _writer: _Writer | None

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self._begin()
        self.refresh()

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "count": self.count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
        self.refresh()

    @property
    def present(self) -> int:
        """How many samples were there when last looked."""
        return int(np.count_nonzero(self._places["file"]))

    def missing(self) -> list[int]:
        """The indices that were not there when last looked."""
        found: list[int] = np.flatnonzero(self._places["file"] == 0).tolist()
        return found

    def get(self, index: int) -> memoryview | None:
        """The bytes of a sample as a read-only view of the map; None if it is not there.

        Their checksum is looked at when this process reads them first: a machine that lost power may have kept a
        record and not its bytes. Such a sample counts as not there.
        """
        file, crc, start, nbytes = self._places[index].item()
        if not file:
            return None
        name, end = self._files[file - 1], start + nbytes
        payload = self._map(name, end)[start:end]
        if not self._read[index]:
            if len(payload) != nbytes or zlib.crc32(payload) != crc:
                self._damaged.add((name, start))
                self._forget()
                self._read_records()
                return self.get(index)
            self._read[index] = 1
        return payload

    def put(self, index: int, payload: bytes) -> None:
        """Add a sample. Two processes may add the same one: either copy serves.

        Raises:
            OSError: where the folder takes no more; what was written of this sample is taken back.
        """
        if self._writer is None or self._writer.pid != os.getpid():
            self._writer = _Writer(self.folder)
        self._writer.add(index, payload)

    def refresh(self) -> None:
        """Learn what other processes have added; if that was the last one, put the whole index in place."""
        if not self._whole and not self._read_complete():
            self._read_records()
            if self.present == self.count:
                # A folder that cannot be written to serves its samples all the same.
                with contextlib.suppress(OSError):
                    self._write_complete()

    def _begin(self) -> None:
        self._writer = None
        self._damaged: set[tuple[str, int]] = set()
        self._forget()

    def _forget(self) -> None:
        self._places = np.zeros(self.count, _PLACE)
        self._read = bytearray(self.count)
        self._files: list[str] = []
        self._consumed: dict[str, int] = {}
        self._maps: dict[str, memoryview] = {}
        self._whole = False

    def _map(self, name: str, end: int) -> memoryview:
        mapped = self._maps.get(name)
        if mapped is None or len(mapped) < end:
            content: Any = np.memmap(self.folder / f"{name}.samples", np.uint8, "r")
            mapped = self._maps[name] = memoryview(content)
        return mapped

    def _read_records(self) -> None:
        # In the order of their names, so that all processes prefer the same one of two copies.
        for path in sorted(self.folder.glob("*.index")):
            name, start = path.stem, self._consumed.get(path.stem, 0)
            if path.stat().st_size - start < _RECORD.itemsize:
                continue
            records = np.fromfile(path, _RECORD, offset=start)
            with contextlib.suppress(FileNotFoundError):
                # Over a network the bytes may come later than their record: it waits until they are there.
                size = (self.folder / f"{name}.samples").stat().st_size
                late = np.flatnonzero(records["at"] + records["nbytes"] > size)
                records = records[: late[0]] if len(late) else records
                self._consumed[name] = start + records.nbytes
                self._take(name, records)

    def _take(self, name: str, records: np.ndarray[Any, Any]) -> None:
        good = (records["check"] == _check(records)) & (records["index"] >= 0) & (records["index"] < self.count)
        for start in [at for damaged, at in self._damaged if damaged == name]:
            good &= records["at"] != start
        records = records[good]
        records = records[self._places["file"][records["index"]] == 0]
        if not len(records):
            return
        if name not in self._files:
            self._files.append(name)
        places = np.zeros(len(records), _PLACE)
        places["file"] = self._files.index(name) + 1
        for field in ("crc", "at", "nbytes"):
            places[field] = records[field]
        self._places[records["index"]] = places

    def _read_complete(self) -> bool:
        if self._damaged:
            return False
        try:
            told = json.loads((self.folder / _COMPLETE).read_bytes())
            places = np.load(self.folder / told["index"], mmap_mode="r")
        except FileNotFoundError:
            return False
        self._files, self._places, self._whole = told["files"], places, True
        return True

    def _write_complete(self) -> None:
        index = f"{secrets.token_hex(8)}.npy"
        whole = BytesIO()
        np.save(whole, self._places)
        write_aside(self.folder / index, whole.getvalue())
        write_aside(self.folder / _COMPLETE, json.dumps({"index": index, "files": self._files}).encode())
        self._whole = True


class _Writer:
    """The two files of one process. The lock is for its threads."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        name = f"{self.pid}-{secrets.token_hex(8)}"
        self._samples, self._index = folder / f"{name}.samples", folder / f"{name}.index"
        self._end = 0

    def add(self, index: int, payload: bytes) -> None:
        record = np.zeros(1, _RECORD)
        with self._lock:
            record["index"], record["at"], record["nbytes"] = index, self._end, len(payload)
            record["crc"] = zlib.crc32(payload)
            record["check"] = _check(record)
            _append(self._samples, self._end, payload)
            self._end += len(payload)
            size = self._index.stat().st_size if self._index.exists() else 0
            _append(self._index, size, record.tobytes())


def _append(path: Path, size: int, data: bytes) -> None:
    """Write ``data`` behind the first ``size`` bytes of a file; after an error or an interrupt it ends there."""
    with path.open("ab", buffering=0) as file:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        except BaseException:
            file.truncate(size)
            raise


def _check(records: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    mixed = records["crc"].astype(np.uint64) + np.uint64(1)
    for field, factor in zip(("index", "at", "nbytes"), _MIX, strict=True):
        mixed = (mixed ^ records[field].astype(np.uint64)) * factor
        mixed ^= mixed >> np.uint64(29)
    return (mixed >> np.uint64(32)).astype(np.uint32)
