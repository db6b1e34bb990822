"""Datasets for the tests of the tuner: top level, so that they pickle, and slow in a known way."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Waits(Dataset[torch.Tensor]):
    """Samples that take a known time and no CPU, as reads over a network do."""

    def __init__(self, seconds: float = 0.004, n: int = 512, features: int = 8) -> None:
        self.seconds, self.n, self.features = seconds, n, features

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.full((self.features,), float(index))


class Augments(Waits):
    """Random samples."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + torch.rand(())


class Ram(Waits):
    """Samples that are there already."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.features,), float(index))


class OwnGenerator(Waits):
    """Augmentation from a generator of the dataset's own, which each forked worker would copy."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + torch.rand((), generator=self.generator)


class FillsItsCache(Waits):
    """Keeps what it has made, in the process that has made it."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]


class Counts(Waits):
    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return super().__getitem__(index)


class EagerFile(Dataset[Any]):
    """Reads records through a handle that it opened at construction: forked workers share its position."""

    def __init__(self, path: Path, n: int = 512, seconds: float = 0.004) -> None:
        self.n, self.seconds = n, seconds
        path.write_bytes(b"".join(struct.pack("<q", index) for index in range(n)))
        self.h = path.open("rb", buffering=0)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        self.h.seek(8 * index)
        return torch.tensor(float(struct.unpack("<q", self.h.read(8))[0])).expand(8).clone()


class LazyFile(EagerFile):
    """Opens its file at the first read in each process."""

    def __init__(self, path: Path, n: int = 512, seconds: float = 0.004) -> None:
        super().__init__(path, n, seconds)
        self.h.close()
        self.path: Path = path
        self.h, self.pid = None, 0  # type: ignore[assignment]

    def __getitem__(self, index: int) -> Any:
        if self.pid != os.getpid():
            self.h, self.pid = self.path.open("rb", buffering=0), os.getpid()
        return super().__getitem__(index)


class WrongInWorkers(Waits):
    """Gives other records in a worker, for a reason that no scan can see."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + (100.0 if get_worker_info() is not None and index % 3 == 0 else 0.0)


class Stream(IterableDataset[Any]):
    """Every worker gives every sample."""

    def __init__(self, n: int = 256, seconds: float = 0.002) -> None:
        self.n, self.seconds = n, seconds

    def indices(self) -> Any:
        return range(self.n)

    def __iter__(self) -> Iterator[Any]:
        for index in self.indices():
            time.sleep(self.seconds)
            yield torch.full((8,), float(index))


class ShardedStream(Stream):
    """Workers take turns."""

    def indices(self) -> Any:
        worker = get_worker_info()
        return range(self.n) if worker is None else range(worker.id, self.n, worker.num_workers)


class BlockStream(Stream):
    """Each worker gives a block of its own."""

    def indices(self) -> Any:
        worker = get_worker_info()
        if worker is None:
            return range(self.n)
        size = -(-self.n // worker.num_workers)
        return range(worker.id * size, min(self.n, (worker.id + 1) * size))


class LossyStream(Stream):
    """The second worker gives nothing."""

    def indices(self) -> Any:
        worker = get_worker_info()
        return (
            range(self.n) if worker is None else range(worker.id, self.n if worker.id == 0 else 0, worker.num_workers)
        )


class OneShot(IterableDataset[Any]):
    """A generator that is used up once for all."""

    def __init__(self, n: int = 256) -> None:
        self.items = iter([torch.full((8,), float(index)) for index in range(n)])

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            time.sleep(0.002)
            yield item


class Dies(Waits):
    """A worker ends by a signal as soon as it has to load."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            os.kill(os.getpid(), self.number)
        return super().__getitem__(index)


class Raises(Waits):
    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            raise RuntimeError("not in a worker")
        return super().__getitem__(index)


class Hangs(Waits):
    """A worker never answers, as after a fork in a process that held a lock."""

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            time.sleep(3600)
        return super().__getitem__(index)


SIGNALS = [signal.SIGKILL, getattr(signal, "SIGBUS", signal.SIGKILL)]
