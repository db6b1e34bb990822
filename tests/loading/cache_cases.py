"""Datasets and small programs for the tests of caching and of seeds per sample; importable in a started process."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_speedups.loading import sample_store
from lightning_speedups.loading.cached import CachedDataset


class Rows(Dataset[Any]):
    """Sample ``i`` is (a ragged tensor, ``i``, a name), the same each time; ``asked`` lists what was asked for."""

    def __init__(self, count: int = 20, scale: float = 1.0) -> None:
        self.count, self.scale = count, scale
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.count:
            raise IndexError(index)
        self.asked.append(index)
        return row(index, self.scale)


def row(index: int, scale: float = 1.0) -> Any:
    values = torch.randn(3 + index % 4, 2, generator=torch.Generator().manual_seed(index))
    return values * scale, index, f"row {index}"


class Even(Rows):
    """Rows of one shape, for a default collate."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0][:3], index


class Noisy(Dataset[Any]):
    """Each sample draws from every kind of stream.

    Without a ``torch_rng`` of its own it can go to a worker that is not forked: torch's generators cannot.
    """

    def __init__(self, count: int = 24, torch_rng: torch.Generator | None = None) -> None:
        self.count = count
        self.torch_rng = torch_rng
        self.numpy_rng = np.random.default_rng(0)
        self.python_rng = random.Random(0)
        self.legacy_rng = np.random.RandomState(0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [
            random.random(),
            np.random.rand(),
            np.random.randn(),
            torch.rand(()).item(),
            torch.rand((), generator=self.torch_rng).item(),
            self.numpy_rng.random(),
            self.python_rng.gauss(0, 1),
            self.legacy_rng.randn(),
        ]
        return torch.tensor([float(index), *drawn], dtype=torch.float64)


def add_noise(sample: Any) -> Any:
    return sample[0] + torch.rand(()), sample[1]


def spoil(sample: Any) -> Any:
    """A transform that writes to what it is given."""
    sample[0].fill_(-1.0)
    return sample


def as_is(sample: Any) -> Any:
    """A collate function that leaves tuples what they are."""
    return sample


def same(one: Any, other: Any) -> bool:
    """Whether two samples are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def fill(folder: str, workers: str, count: str) -> None:
    """Program: read all of a cache through a loader."""
    data = CachedDataset(Rows(int(count)), folder)
    for sample in DataLoader(data, batch_size=None, collate_fn=as_is, num_workers=int(workers)):
        assert same(sample, row(sample[1])), sample[1]


def killed_while_writing(folder: str, suffix: str, share: str) -> None:
    """Program: killed in the middle of the 9th write to the file with ``suffix``, after ``share`` of its bytes."""
    whole, writes = sample_store._append, []

    def half(path: Path, size: int, data: bytes) -> None:
        if path.suffix == suffix:
            writes.append(path)
        if len(writes) < 9:
            return whole(path, size, data)
        with path.open("ab", buffering=0) as file:
            file.write(data[: int(len(data) * float(share))])
        os.kill(os.getpid(), signal.SIGKILL)

    sample_store._append = half
    data = CachedDataset(Rows(), folder)
    for index in range(len(data)):
        data[index]


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"fill": fill, "killed": killed_while_writing}[sys.argv[1]](*sys.argv[2:])
