"""A dataset whose samples are made once, then read from memory-mapped files that all workers and ranks share."""

from __future__ import annotations

import json
import operator
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from lightning_speedups.loading.cacheable import DrawWatch, probe_indices, probed, refuse_kind
from lightning_speedups.loading.codec import decode, digest, encode
from lightning_speedups.loading.identity import Identity, identify, parts_of
from lightning_speedups.loading.sample_store import SampleStore
from lightning_speedups.reporting.files import write_aside
from lightning_speedups.reporting.text import size_of

_MANIFEST = "manifest.json"
# Samples vary, and a file system needs room of its own.
_RESERVE = 1.1


class StaleCacheError(ValueError):
    """A sample in the cache is not what the dataset gives now."""


class CacheSpaceError(OSError):
    """The cache would not fit."""


class CachedDataset(Dataset[Any]):
    """Keeps the samples of a map-style dataset decoded, so that from the second epoch on nothing is decoded again.

    A sample is made by the dataset when it is first asked for, and read from a memory-mapped file ever after, by every
    worker, rank and later run: one copy in the system's page cache serves them all. Best where decoding takes longer
    than copying the decoded bytes (JPEG, audio, parsing) and these fit on the disk, better in free memory.

    Samples are tensors, numpy arrays and scalars, PIL images, numbers, strings, bytes and None, and tuples, lists and
    dicts of them, each of its own shape; they come back equal bit for bit, as new objects that a transform may write
    to. An image opened from a file comes back as a plain loaded image.

    Only what is the same each time can be kept: at construction the first, middle and last sample are made twice under
    different random states, and every sample is watched for random draws when it is made. Give random augmentation as
    ``transform``: it is applied to the cached sample at each access.

    The cache is one folder per version of the dataset, named by its type and length, by the code and settings of
    it and its transforms, and by the bytes of the first, middle and last sample: anything of that changed means a new
    folder. It cannot see: a file changed behind another sample (``verify`` looks at more), private attributes and
    paths, and what lies in compiled extensions, in the environment, or in a newer version of a library, unless one of
    the samples looked at shows it.

    Args:
        dataset: with ``__getitem__`` and ``__len__``.
        dir: holds the folders of caches; made where missing. Nodes of a cluster should each have their own.
        transform: called with the whole sample at each access; may be random.
        verify: how many more of the cached samples, evenly spaced, are made again now and compared.
        free_bytes: the room that the cache may take; None is the free space of the disk.

    Raises:
        NotCacheableError: the dataset draws random numbers, or gives different bytes for one index.
        StaleCacheError: ``verify`` found a sample that has changed.
        CacheSpaceError: the samples need more room than there is.
        TypeError: for an ``IterableDataset``, or a sample of a type that cannot be kept.
        ValueError: for an empty dataset or a bad argument.

    Example:
        >>> import tempfile
        >>> class Squares(Dataset):
        ...     def __len__(self):
        ...         return 3
        ...     def __getitem__(self, index):
        ...         return torch.tensor(float(index)) ** 2, str(index)
        >>> data = CachedDataset(Squares(), tempfile.mkdtemp(), transform=lambda sample: sample[0] + 1)
        >>> [value.item() for value in data]
        [1.0, 2.0, 5.0]
        >>> data.cached
        3
    """

    def __init__(
        self,
        dataset: Any,
        dir: str | os.PathLike[str],
        *,
        transform: Callable[[Any], Any] | None = None,
        verify: int = 0,
        free_bytes: int | None = None,
    ) -> None:
        if isinstance(verify, bool) or not isinstance(verify, int) or verify < 0:
            raise ValueError(f"`verify` must be a number of samples, 0 or more, got {verify!r}")
        if transform is not None and not callable(transform):
            raise ValueError(f"`transform` must be callable with a sample, or None, got {transform!r}")
        refuse_kind(dataset)
        self.dataset, self.transform = dataset, transform
        self._count = len(dataset)
        parts = parts_of(dataset)
        payloads = probed(dataset, probe_indices(self._count))
        identity = identify(dataset, parts, payloads)
        self.folder = Path(dir).resolve() / f"{type(dataset).__name__}-{identity.key}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._store = SampleStore(self.folder, self._count)
        self._reset()
        self._compare(payloads, verify)
        self._require_room(payloads, free_bytes)
        _write_manifest(self.folder, identity)

    @property
    def cached(self) -> int:
        """How many samples are in the cache now."""
        self._store.refresh()
        return self._store.present

    def fill(self, num_workers: int = 0) -> None:
        """Make all samples that are not there yet, before training; it can be interrupted and goes on where it stopped.

        Args:
            num_workers: processes that make them; 0 makes them in this one.
        """
        self._store.refresh()
        # A generator of its own: a loader draws from the global stream otherwise.
        loader = DataLoader(
            _Filling(self),
            batch_size=None,
            sampler=self._store.missing(),
            num_workers=num_workers,
            generator=torch.Generator(),
        )
        for _ in loader:
            pass
        self._store.refresh()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Several samples at once; those not cached yet are asked for together where the dataset can do that."""
        wanted = [self._checked(index) for index in indices]
        payloads = self._payloads(wanted)
        samples = [decode(payloads[index]) for index in wanted]
        return samples if self.transform is None else [self.transform(sample) for sample in samples]

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("dataset", "transform", "folder", "_count", "_store")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._watch: DrawWatch | None = None
        self._takes_more = True

    def _checked(self, index: Any) -> int:
        number = operator.index(index)
        if not -self._count <= number < self._count:
            raise IndexError(f"index {number} is out of range for a dataset of {self._count}")
        return number % self._count

    def _payloads(self, wanted: Iterable[int]) -> dict[int, Any]:
        """The bytes of some samples; those that are not there are made, and brought into the cache."""
        found: dict[int, Any] = {index: self._store.get(index) for index in wanted}
        if missing := [index for index, payload in found.items() if payload is None]:
            # Another process may have made them meanwhile.
            self._store.refresh()
            found.update((index, self._store.get(index)) for index in missing)
        if missing := [index for index in missing if found[index] is None]:
            found.update(self._make(missing))
        return found

    def _make(self, missing: list[int]) -> dict[int, bytes]:
        if self._watch is None:
            self._watch = DrawWatch(self.dataset)
        together = len(missing) > 1 and callable(getattr(self.dataset, "__getitems__", None))
        samples, drew = self._watch.drawn_by(
            lambda: self.dataset.__getitems__(missing) if together else [self.dataset[index] for index in missing]
        )
        if drew:
            probed(self.dataset, missing)
        made = {index: encode(sample) for index, sample in zip(missing, samples, strict=True)}
        for index, payload in made.items():
            self._keep(index, payload)
        return made

    def _keep(self, index: int, payload: bytes) -> None:
        if not self._takes_more:
            return
        try:
            self._store.put(index, payload)
        except OSError as error:
            self._takes_more = False
            warnings.warn(
                f"CachedDataset: cannot write to {self.folder} ({error.strerror or error}); samples that are not cached"
                " yet are made anew each time. Make room there and start again: what is cached is kept",
                stacklevel=2,
            )

    def _compare(self, payloads: dict[int, bytes], verify: int) -> None:
        """Hold what is cached of the probed samples, and of ``verify`` more, against what the dataset gives now."""
        spaced = {at * self._count // min(verify, self._count) for at in range(min(verify, self._count))}
        for index in sorted({*payloads, *spaced}):
            cached = self._store.get(index)
            if cached is None:
                continue
            now = payloads.get(index) or probed(self.dataset, [index])[index]
            if digest(cached) != digest(now):
                raise StaleCacheError(
                    f"sample {index} in the cache {self.folder} is not what {type(self.dataset).__name__} gives now:"
                    " the data behind it has changed since it was cached. Delete that folder and run again"
                )

    def _require_room(self, payloads: dict[int, bytes], free_bytes: int | None) -> None:
        missing = self._count - self._store.present
        needed = int(missing * _RESERVE * sum(map(len, payloads.values())) / len(payloads))
        free = shutil.disk_usage(self.folder).free if free_bytes is None else free_bytes
        if needed > free:
            raise CacheSpaceError(
                f"caching {missing} samples of {type(self.dataset).__name__} needs about {needed} bytes"
                f" ({size_of(needed)}), and {self.folder.parent} has {free} bytes free ({size_of(free)}). Make the"
                " samples smaller before they are cached (resize, uint8 in place of float), or name a folder on a"
                " larger disk"
            )


class _Filling(Dataset[int]):
    """Brings each sample that is asked for into the cache, and gives back its index only."""

    def __init__(self, cached: CachedDataset) -> None:
        self._cached = cached

    def __len__(self) -> int:
        return len(self._cached)

    def __getitem__(self, index: int) -> int:
        self._cached._payloads([index])
        return index


def _write_manifest(folder: Path, identity: Identity) -> None:
    """For whoever looks into the folder: what the cache is of."""
    if not (folder / _MANIFEST).exists():
        told = {
            "type": identity.type,
            "length": identity.length,
            "samples": {str(index): found for index, found in identity.samples.items()},
            "parts": dict(identity.parts),
        }
        write_aside(folder / _MANIFEST, json.dumps(told, indent=1).encode())
