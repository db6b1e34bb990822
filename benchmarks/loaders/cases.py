"""Real loaders of the kinds that people have: each with the step that it has to feed."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from lightning_speedups.demo import images
from lightning_speedups.demo.program import DigitImages, augment

FEATURES = 64
ROWS = 40_000


@dataclass(frozen=True)
class Case:
    """A loader to tune.

    Args:
        name: what the table calls it.
        dataset: makes the dataset.
        batch_size: samples in a batch.
        step_s: seconds of CPU time in a training step.
        workers: the worker counts of the exhaustive grid.
        waits: whether loading mostly waits, so that many workers are expected to help.
    """

    name: str
    dataset: Callable[[Path], Any]
    batch_size: int
    step_s: float
    workers: tuple[int, ...] = (0, 1, 2, 3, 4)
    waits: bool = False


class Reads(Dataset[Any]):
    """Rows that take a known time to come, as over a network."""

    def __init__(self, seconds: float, n: int) -> None:
        self.seconds, self.n = seconds, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.full((FEATURES,), float(index % 7)), 0


class Records(Dataset[Any]):
    """Records in one file, opened at the first read in each process, and decompressed by hand: costs some CPU."""

    size = FEATURES * 4

    def __init__(self, path: Path, n: int) -> None:
        self.path, self.n, self.file = path, n, None
        if not path.exists():
            path.write_bytes(b"".join(struct.pack(f"<{FEATURES}f", *([float(row % 7)] * FEATURES)) for row in range(n)))

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = self.path.open("rb")
        self.file.seek(index * self.size)
        row = struct.unpack(f"<{FEATURES}f", self.file.read(self.size))
        value = 0.0
        for _ in range(40):
            value += sum(row)
        return torch.tensor(row) + 0 * value, 0


class InH5(Dataset[Any]):
    """Rows of an HDF5 file, opened at the first read in each process."""

    def __init__(self, path: Path, n: int) -> None:
        import h5py

        self.path, self.n, self.file = path, n, None
        if not path.exists():
            with h5py.File(path, "w") as file:
                file["rows"] = torch.arange(n * FEATURES).reshape(n, FEATURES).remainder(7).float().numpy()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return torch.from_numpy(self.file["rows"][index]), 0


def jpeg(folder: Path, count: int = 10_000) -> Any:
    """The demo's images, decoded and augmented; each several times, as there are fewer of them."""
    files = images.samples(images.prepare(images.default_cache_dir()))
    return DigitImages((files * (count // len(files) + 1))[:count], augment)


def in_memory(folder: Path) -> Any:
    """Rows of tensors."""
    return TensorDataset(torch.randn(60_000, FEATURES), torch.zeros(60_000))


def in_file(folder: Path) -> Any:
    """Rows of a file that each process opens for itself: HDF5 where h5py is installed, else plain records."""
    try:
        import h5py  # noqa: F401
    except ImportError:
        return Records(folder / "records.bin", ROWS)
    return InH5(folder / "rows.h5", ROWS)


CASES = (
    Case("JPEG, decode + augment", jpeg, 32, 0.03),
    Case(
        "tensors in RAM", lambda folder: TensorDataset(torch.randn(60_000, FEATURES), torch.zeros(60_000)), 64, 0.0005
    ),
    Case("reads of 5 ms", lambda folder: Reads(0.005, 1600), 16, 0.005, (0, 1, 2, 4, 8, 16, 32), waits=True),
    Case("reads of 20 ms", lambda folder: Reads(0.02, 480), 8, 0.005, (0, 1, 2, 4, 8, 16, 32), waits=True),
    Case("file opened lazily", in_file, 64, 0.01),
    Case("step slower than loader", lambda folder: Reads(0.0001, 640), 8, 0.06),
    Case("tiny, 1-second epochs", lambda folder: jpeg(folder, 192), 32, 0.05),
)
QUICK = (
    CASES[1],
    Case("reads of 5 ms", lambda folder: Reads(0.005, 640), 16, 0.005, (0, 2, 4, 8), waits=True),
)
