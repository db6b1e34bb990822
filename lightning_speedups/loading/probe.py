"""What is measured of a loader without workers, in a child process: time, bytes, randomness, state."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, TensorDataset

from lightning_speedups.loading import samples, state
from lightning_speedups.loading.applying import copied
from lightning_speedups.loading.graph import walk
from lightning_speedups.loading.settings import LoaderSettings

# Long enough for a rate to within a few percent, short beside any trial.
_LONG_ENOUGH_S = 0.3
_MOST_BATCHES = 64
_COMPARED = 3
_RECORDS = 64
_RECORDS_S = 0.25
# A stream is shared out by workers or it is not: seen best where it is read to its end.
_STREAM_S = 0.6
_BATCHED_ROWS = 256


@dataclass(frozen=True)
class Probe:
    """A loader without workers.

    Attributes:
        batch_s: seconds to load one batch; None where the loader gave none.
        cpu_s: seconds of CPU time in it: the rest is waiting.
        samples_per_batch: how many samples a batch has on average.
        batch_bytes: the bytes of its tensors.
        tensors: how many they are.
        unpinnable: the batch type that pinning does not look into.
        deterministic: whether one index gives the same bytes twice under different random states; None: not told.
        changed: what of the dataset loading has changed: the paths, with a word on each that has one.
        records: digests of samples by index, or in order for an iterable dataset, to compare with what workers give.
        exhausted: whether ``records`` are all that there are.
        iterable: whether it is an ``IterableDataset``.
        batched_gain: how much faster one indexing with many rows is than one by one; None where it was not tried.
    """

    batch_s: float | None
    cpu_s: float
    samples_per_batch: float
    batch_bytes: int
    tensors: int
    unpinnable: str | None
    deterministic: bool | None
    changed: tuple[tuple[str, str], ...]
    records: tuple[tuple[Any, str], ...] = field(repr=False)
    exhausted: bool
    iterable: bool
    batched_gain: float | None


def probe(loader: Any, seed: int) -> Probe:
    """Measure ``loader`` without workers. Run it in a child process: it loads samples."""
    make_private(loader.dataset)
    alone = copied(loader, LoaderSettings(), timeout=0)
    reseed(seed)
    dataset, name = loader.dataset, type(loader.dataset).__name__
    batches = iter(alone)
    first = next(batches, None)
    if first is None:
        return Probe(None, 0.0, 0.0, 0, 0, None, None, (), (), True, isinstance(dataset, IterableDataset), None)
    # What is opened at the first use is open now; what changes from here on changes at every use.
    before = state.record(dataset, name)
    batch_s, cpu_s = _timed(alone, batches)
    iterable = isinstance(dataset, IterableDataset)
    deterministic, records, exhausted = _records_of_stream(dataset) if iterable else _records(alone, seed)
    after = state.record(dataset, name)
    changed = tuple((path, state.describe(path, after)) for path in state.changes(before, after))
    return Probe(
        batch_s=batch_s,
        cpu_s=cpu_s,
        samples_per_batch=_samples_per_batch(alone, seed),
        batch_bytes=samples.size_bytes(first),
        tensors=len(samples.tensors(first)),
        unpinnable=samples.unpinnable(first),
        deterministic=deterministic,
        changed=changed,
        records=records,
        exhausted=exhausted,
        iterable=iterable,
        batched_gain=None if iterable else _batched_gain(dataset),
    )


def reseed(seed: int) -> None:
    """Set the global random streams of this process, so that each trial reads the same records."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def make_private(dataset: Any) -> None:
    """Give the shared tensors that a dataset holds memory of their own, in this process only."""
    for _, value in walk(dataset, ""):
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.is_shared():  # type: ignore[no-untyped-call]
            value.data = value.detach().clone()


def index_lists(loader: Any) -> Iterator[Any]:
    """What the loader's sampler gives: a list of indices for each batch, or the index that is a batch by itself."""
    return iter(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)


def _timed(alone: Any, batches: Iterator[Any]) -> tuple[float, float]:
    """Wall and CPU seconds per batch, the first batch having been taken already."""
    started, cpu_started, count = time.perf_counter(), time.process_time(), 0
    restarted = False
    while count < _MOST_BATCHES and time.perf_counter() - started < _LONG_ENOUGH_S:
        if next(batches, None) is not None:
            count += 1
        elif restarted:
            break
        else:
            batches, restarted = iter(alone), count == 0
    if not count:
        return 0.0, 0.0
    return (time.perf_counter() - started) / count, (time.process_time() - cpu_started) / count


def _samples_per_batch(alone: Any, seed: int) -> float:
    if isinstance(alone.dataset, IterableDataset):
        return float(alone.batch_size or 1)
    reseed(seed)
    sizes = [len(indices) if isinstance(indices, list) else 1 for indices in itertools.islice(index_lists(alone), 64)]
    return float(np.mean(sizes)) if sizes else 1.0


def _records(alone: Any, seed: int) -> tuple[bool | None, tuple[tuple[Any, str], ...], bool]:
    """Digests of some samples, and whether they came out the same twice."""
    reseed(seed)
    indices = []
    for entry in itertools.islice(index_lists(alone), 4):
        indices += entry if isinstance(entry, list) else [entry]
    same: bool | None = None
    records: list[tuple[Any, str]] = []
    started = time.perf_counter()
    for count, index in enumerate(indices[:_RECORDS]):
        if count >= _COMPARED and time.perf_counter() - started > _RECORDS_S:
            break
        reseed(seed + 1)
        first = samples.digest(alone.dataset[index])
        if first is None:
            return None, (), False
        records.append((index, first))
        if count < _COMPARED:
            reseed(seed + 2)
            same = same is not False and samples.digest(alone.dataset[index]) == first
    return same, tuple(records) if same else (), False


def _records_of_stream(dataset: Any) -> tuple[bool | None, tuple[tuple[Any, str], ...], bool]:
    first, exhausted = _prefix(dataset)
    second, _ = _prefix(dataset)
    if None in first or None in second:
        return None, (), False
    length = min(len(first), len(second))
    # A second pass that gives nothing, or something else, has used the stream up or shuffled it.
    same = bool(length) and first[:length] == second[:length] and (not exhausted or len(first) == len(second))
    return same, tuple(enumerate(str(record) for record in first)) if same else (), exhausted


def _prefix(dataset: Any) -> tuple[list[str | None], bool]:
    started, found = time.perf_counter(), []
    for sample in dataset:
        found.append(samples.digest(sample))
        if len(found) >= 4 * _RECORDS or (len(found) >= 8 and time.perf_counter() - started > _STREAM_S):
            return found, False
    return found, True


def _batched_gain(dataset: Any) -> float | None:
    """What one indexing with many rows saves, for data that lies in memory as tensors."""
    if not isinstance(dataset, TensorDataset):
        return None
    rows = torch.arange(min(_BATCHED_ROWS, len(dataset)))
    if len(rows) < 2:
        return None
    one_by_one = _fastest_s(lambda: [dataset[int(row)] for row in rows])
    at_once = _fastest_s(lambda: [tensor[rows] for tensor in dataset.tensors])
    return one_by_one / at_once if at_once > 0 else None


def _fastest_s(work: Any) -> float:
    best = float("inf")
    with contextlib.suppress(StopIteration):
        for _ in range(3):
            started = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - started)
    return best
