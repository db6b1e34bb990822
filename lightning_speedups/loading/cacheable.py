"""Whether samples may be kept: the same index twice, under different random states, gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from lightning_speedups.loading import streams
from lightning_speedups.loading.codec import encode
from lightning_speedups.loading.graph import walk
from lightning_speedups.loading.per_sample_seed import PerSampleSeed

_SPLIT = (
    "Take the random part out of the dataset and pass it as `transform`, which is applied to the cached sample at each"
    " access: CachedDataset(dataset_without_augmentation, dir, transform=augment)"
)


class NotCacheableError(ValueError):
    """A dataset whose samples are not the same each time; the message says why and how to split its transform."""


class DrawWatch:
    """Notices random numbers that are drawn while a sample is made, from any stream that can be reached."""

    def __init__(self, dataset: object) -> None:
        self._streams: Mapping[str, Any] = streams.streams_of(dataset)

    def drawn_by(self, make: Callable[[], Any]) -> tuple[Any, bool]:
        """What ``make()`` gives, and whether any stream was moved."""
        before = streams.states(self._streams)
        made = make()
        return made, bool(streams.moved(self._streams, before))

    def twice(self, dataset: Any, index: int) -> tuple[bytes, bytes, list[str]]:
        """The bytes of one sample under two random states, and the streams drawn from; all streams are put back.

        A sample that seeds a stream itself leaves it at the same place both times, and has drawn nothing of ours.
        """
        ends, moved, payloads = [], set(), []
        for attempt in range(2):
            with streams.seeded(self._streams, "probe", attempt):
                before = streams.states(self._streams)
                payloads.append(encode(dataset[index]))
                moved.update(streams.moved(self._streams, before))
                ends.append(streams.states(self._streams))
                if attempt:
                    moved.intersection_update(streams.moved(self._streams, ends[0]))
        return payloads[0], payloads[1], [name for name in self._streams if name in moved]


def probe_indices(count: int) -> tuple[int, ...]:
    """First, middle and last index."""
    return tuple(sorted({0, count // 2, count - 1}))


def probed(dataset: Any, indices: Iterable[int]) -> dict[int, bytes]:
    """The bytes of some samples, each made twice.

    Raises:
        NotCacheableError: a sample differs, or draws random numbers: an augmentation that is seldom applied
            draws each time, and would hardly show in the bytes.
        UnsupportedSampleError: a sample holds what cannot be kept.
    """
    watch = DrawWatch(dataset)
    payloads = {}
    for index in indices:
        first, second, drawn = watch.twice(dataset, index)
        if drawn:
            raise NotCacheableError(
                f"sample {index} of {type(dataset).__name__} draws random numbers (from {', '.join(drawn)}): a cached"
                f" copy would repeat one draw for ever. {_SPLIT}"
            )
        if first != second:
            raise NotCacheableError(
                f"sample {index} of {type(dataset).__name__} differs between two accesses, though it draws from no"
                f" generator that can be seen: it cannot be cached. {_SPLIT}"
            )
        payloads[index] = first
    return payloads


def refuse_kind(dataset: Any) -> None:
    """Raise for what has no samples that an index names.

    Raises:
        TypeError: for a stream, or what has no length or cannot be indexed.
        ValueError: for an empty dataset.
        NotCacheableError: for a dataset seeded per sample, whose samples change with the epoch.
    """
    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise TypeError(
            f"CachedDataset needs a map-style dataset, got the IterableDataset {name}: its samples have no index to be"
            " found by again. Write the decoded records to files once and read those"
        )
    lacking = [method for method in ("__getitem__", "__len__") if not hasattr(type(dataset), method)]
    if lacking:
        raise TypeError(f"CachedDataset needs a dataset with `__getitem__` and `__len__`; {name} has no {lacking[0]}")
    if any(isinstance(value, PerSampleSeed) for _, value in walk(dataset, "dataset")):
        raise NotCacheableError(
            "CachedDataset got a PerSampleSeed inside, whose samples change with the epoch. Put it outside:"
            " PerSampleSeed(CachedDataset(dataset, dir, transform=augment))"
        )
    if not len(dataset):
        raise ValueError(f"{name} is empty: there is nothing to cache")


def why_not_cacheable(dataset: Any) -> str | None:
    """Why ``CachedDataset`` would refuse this dataset, or None. It calls the dataset: ask in a child process."""
    try:
        refuse_kind(dataset)
        probed(dataset, probe_indices(len(dataset)))
    except (TypeError, ValueError) as error:
        return str(error)
    return None
