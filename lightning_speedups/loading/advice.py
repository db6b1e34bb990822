"""What a plan says beside its decision: what would help more than workers, and what to mind. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_speedups.loading.probe import Probe
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.reporting import text

# A worker of torch's has three (its own, its queue's, the one that watches the parent); more belong to libraries.
THREADS_OF_A_WORKER = 4
# Handing a batch from one process to another takes a few tenths of a millisecond (measured, torch 2.13).
HAND_OVER_S = 5e-4
BATCHED_GAIN = 3.0


def about_data(probe: Probe, length: int | None, hidden: bool) -> Iterator[str]:
    """What would make the samples themselves cheaper; nothing where the step hides them anyway."""
    if probe.batch_s is None or hidden:
        return
    each_s = probe.batch_s / max(1.0, probe.samples_per_batch)
    if probe.batched_gain is not None and probe.batched_gain > BATCHED_GAIN:
        yield (
            f"samples lie in memory and take {text.seconds(each_s)} each: indexing many rows at once is"
            f" {text.ratio(probe.batched_gain)} as fast here. Give the dataset a __getitems__, or pass"
            " DataLoader(dataset, batch_size=None, sampler=BatchSampler(RandomSampler(dataset), batch_size, False))"
        )
    elif probe.deterministic and not probe.iterable and probe.batch_s > HAND_OVER_S:
        size = ""
        if length:
            each_bytes = probe.batch_bytes / max(1.0, probe.samples_per_batch)
            size = f" ({length:,} samples, about {text.size_of(int(each_bytes * length))})"
        yield (
            f"every sample comes out the same each time: CachedDataset(dataset, dir) would make it once{size};"
            " random transforms passed to it apart stay random"
        )


def about_workers(
    before: LoaderSettings, after: LoaderSettings, probe: Probe, method: str, parent_threads: int | None
) -> Iterator[str]:
    """What changes with the number of workers."""
    if after.num_workers != before.num_workers and probe.deterministic is not True and not probe.iterable:
        yield (
            "samples are random: the augmentation stream changes with num_workers, and seed_everything(workers=True)"
            " does not prevent it; PerSampleSeed(dataset) does"
        )
    if before.persistent_workers and not after.persistent_workers:
        yield (
            "workers that do not persist draw a number from the global random stream in each epoch: shuffling and"
            " dropout differ from the second epoch on"
        )
    if after.num_workers and method == "fork" and parent_threads is not None and parent_threads > 1:
        yield (
            f"workers are forked from a process with {parent_threads} live threads: if they ever hang, pass"
            " multiprocessing_context='forkserver'"
        )


def about_threads(threads: int | None, settings: LoaderSettings, cpus: int, ranks: int) -> Iterator[str]:
    """Libraries that start threads of their own in every worker."""
    if not threads or not settings.num_workers:
        return
    extra = threads - THREADS_OF_A_WORKER
    runnable = settings.num_workers * (1 + extra) * ranks
    if extra > 0 and runnable > cpus * ranks:
        yield (
            f"{runnable} runnable threads on {cpus * ranks} CPUs ({settings.num_workers} workers x {1 + extra} threads"
            f"{f' x {ranks} ranks' if ranks > 1 else ''}): call cv2.setNumThreads(0), or set OMP_NUM_THREADS=1, in"
            " worker_init_fn"
        )


def about_pinning(before: LoaderSettings, probe: Probe, device: str, pins: bool) -> Iterator[str]:
    """Pinning that does nothing."""
    if before.pin_memory and not pins:
        yield pinning_ignored(device)
    if pins and probe.unpinnable is not None:
        yield (
            f"pin_memory=True has no effect: batch type {probe.unpinnable} has no pin_memory(); add it (three lines),"
            " or return a dict or NamedTuple"
        )


def pinning_ignored(device: str) -> str:
    """Pinned memory where nothing copies from it."""
    return f"pin_memory=True is ignored on {device}: remove it"
