"""Epochs over the demo's JPEG files, decoded each time against read from a filled ``CachedDataset``.

Both give the same tensors for the same draws: the decoded image is augmented and turned into a tensor in either case.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from lightning_speedups.demo.program import BATCH_SIZE, INPUT_PX, augment
from lightning_speedups.loading.cached import CachedDataset
from lightning_speedups.measuring.paired import PairedResult, interleaved

Files = Sequence[tuple[Path, int]]


class Decoded(Dataset[Any]):
    """The images of some files, decoded and brought to the input size, with their labels; nothing random."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        path, label = self.files[index]
        with Image.open(path) as file:
            return file.resize((INPUT_PX, INPUT_PX), Image.Resampling.BILINEAR), label


class Prepared(Dataset[Any]):
    """A dataset of images with a function applied to each sample at access, as without a cache."""

    def __init__(self, dataset: Decoded, prepare: Any) -> None:
        self.dataset, self.prepare = dataset, prepare

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.prepare(self.dataset[index])


def prepared(sample: tuple[Image.Image, int], augmented: bool) -> tuple[torch.Tensor, int]:
    """What the net is given: the image, augmented or not, as a tensor, and its label."""
    image, label = sample
    pixels = np.array(augment(image) if augmented else image)
    return torch.from_numpy(pixels).unsqueeze(0).float() / 255, label


def decoding_against_cached(
    files: Files, cache_dir: Path, pairs: int, augmented: bool = True, workers: int = 0
) -> PairedResult:
    """Whole epochs of both, by turns; the first epoch of the cache, which fills it, is not among them.

    The ratio is cached over decoded: 0.2 is five times as fast.

    Args:
        files: path and label of each image, as ``lightning_speedups.demo.images.samples`` gives them.
        cache_dir: where the cache is made.
        pairs: how many pairs of epochs count.
        augmented: whether the random augmentation, which no cache can save, is part of the work.
        workers: of both loaders; they persist.
    """
    prepare = partial(prepared, augmented=augmented)
    cached = CachedDataset(Decoded(files), cache_dir, transform=prepare)
    cached.fill()
    both = [
        DataLoader(dataset, BATCH_SIZE, num_workers=workers, persistent_workers=workers > 0)
        for dataset in (Prepared(Decoded(files), prepare), cached)
    ]
    return interleaved(*(partial(_epoch_s, loader) for loader in both), pairs=pairs)


def _epoch_s(loader: DataLoader[Any]) -> float:
    started = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - started
