"""Augmentation whose random numbers depend on the sample and the epoch, not on which worker happens to load it."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from lightning_speedups.loading.streams import seeded, streams_of

_EPOCH, _SERVED, _TIMES_SET = range(3)


class PerSampleSeed(Dataset[Any]):
    """A dataset whose sample ``index`` draws the same random numbers whoever loads it, and in whatever order.

    Random augmentation draws from one stream per worker, so the number of workers changes every augmented sample:
    a run with other loader settings is another run, and ``seed_everything(workers=True)`` does not prevent it. Here
    the streams start anew for each sample from (seed, epoch, index): Python's, numpy's and torch's global one on
    the CPU, and every ``random.Random``, ``torch.Generator``, ``numpy.random.Generator`` and ``RandomState`` that the
    dataset or its transforms hold as attributes, in closures, or by name in their module. After each sample all of them
    stand where they stood, so nothing else in the process moves. The result is bit-equal for any number of workers,
    persistent or not, started by any method, on any number of ranks.

    Tell it the epoch, or each pass repeats the same augmentation (it warns): ``set_epoch`` **before** the loader is
    iterated. The epoch lies in shared memory, so persistent workers see it too. Lightning calls ``set_epoch`` of
    samplers only, and starts iterating before its first epoch hook; in a ``LightningModule``::

        def train_dataloader(self):
            self.train_set.set_epoch(self.trainer.fit_loop.epoch_progress.current.processed)
            return DataLoader(self.train_set, ...)

        def on_train_epoch_start(self):
            self.train_set.set_epoch(self.current_epoch)

    It settles what samples draw, not what the loader draws: torch's ``DataLoader`` takes a number from the global
    stream whenever it starts its workers, so ``persistent_workers=True`` alone changes shuffling and dropout from
    the second epoch on.

    Not reached: streams on a GPU, ``random.SystemRandom`` and other entropy of the operating system, generators inside
    C code, and numpy generators over bit generators that numpy does not ship.

    Args:
        dataset: a map-style dataset. Samples are asked for one by one: its ``__getitems__`` is not used.
        seed: of the augmentation; None takes the seed that torch's global stream was given last
            (``seed_everything``, ``torch.manual_seed``). Ranks that seed differently should pass one here.

    Raises:
        TypeError: for an ``IterableDataset``, or what cannot be indexed.
        ValueError: for a seed or an epoch that is no whole number.

    Example:
        >>> class Noise(Dataset):
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         return torch.rand(1).item()
        >>> data = PerSampleSeed(Noise(), seed=1)
        >>> first = [data[index] for index in range(4)]
        >>> [data[index] for index in (3, 2, 1, 0)] == first[::-1]
        True
        >>> data.set_epoch(1)
        >>> data[0] == first[0]
        False
    """

    def __init__(self, dataset: Any, seed: int | None = None) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__"):
            raise TypeError(
                f"PerSampleSeed needs a dataset with `__getitem__`, got {type(dataset).__name__}: a stream has no index"
                " to seed a sample by. Draw from a generator seeded by the record's own key inside its `__iter__`"
            )
        self.dataset = dataset
        self.seed = torch.initial_seed() if seed is None else _whole("seed", seed)
        self._shared = torch.zeros(3, dtype=torch.int64)
        self._attach()

    @property
    def epoch(self) -> int:
        """The epoch that samples are drawn for; the same in every worker of this process."""
        return int(self._cells[_EPOCH])

    def set_epoch(self, epoch: int) -> None:
        """Draw for this epoch from now on, in workers that already run too. Call it before iterating the loader."""
        self._cells[_EPOCH] = _whole("epoch", epoch)
        self._cells[_SERVED] = 0
        self._cells[_TIMES_SET] += 1

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        epoch, key = self.epoch, self._key(index)
        streams = self._streams(epoch)
        self._count()
        with seeded(streams, self.seed, epoch, key):
            return self.dataset[index]

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("dataset", "seed", "_shared")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

    def _attach(self) -> None:
        # What starts a worker passes shared memory on as such; a plain pickle or a copy carries the values only.
        self._shared.share_memory_()  # type: ignore[no-untyped-call]
        self._cells = self._shared.numpy()
        self._found: tuple[int, Mapping[str, Any]] | None = None
        self._warned = False

    def _streams(self, epoch: int) -> Mapping[str, Any]:
        """The streams to seed; looked for anew each epoch, since a program may give its transforms new generators."""
        if self._found is None or self._found[0] != epoch:
            self._found = (epoch, streams_of(self.dataset))
        return self._found[1]

    def _key(self, index: Any) -> int | str:
        if isinstance(index, str):
            return index
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(
                f"PerSampleSeed takes a whole number or a string as index, got {index!r} of type"
                f" {type(index).__name__}; a sample is seeded by its index"
            ) from None
        return number if number >= 0 else number + len(self)

    def _count(self) -> None:
        # Workers count without a lock: a lost count only delays the warning.
        self._cells[_SERVED] += 1
        if self._warned or self._cells[_TIMES_SET] or not hasattr(type(self.dataset), "__len__"):
            return
        if self._cells[_SERVED] > 2 * len(self):
            self._warned = True
            warnings.warn(
                f"PerSampleSeed: {self._cells[_SERVED]} samples of a dataset of {len(self)} were drawn and `set_epoch`"
                " was never called, so each pass repeats the same augmentation. Call `set_epoch(epoch)` before"
                " each pass; for a repetition that is meant, call `set_epoch(0)` once",
                stacklevel=3,
            )


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError(f"`{name}` must be a whole number, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"`{name}` must be a whole number, got {value!r} of type {type(value).__name__}") from None
    return number
