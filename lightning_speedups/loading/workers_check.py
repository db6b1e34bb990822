"""What two workers give, in a child process: the same records as none, each once; and what they cost."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
from torch.utils.data import DataLoader

from lightning_speedups import _torch
from lightning_speedups.loading import samples
from lightning_speedups.loading.ending import end_quietly, keep_to_the_end
from lightning_speedups.loading.probe import make_private
from lightning_speedups.measuring.memory import MIB

WORKERS = 2
_CHUNK = 8
_LONG_ENOUGH_S = 1.5


@dataclass(frozen=True)
class WorkersCheck:
    """What two workers gave.

    Attributes:
        wrong: the first index whose record differs from that without workers; None where none does.
        compared: how many records were compared.
        duplicated: how many samples of an iterable dataset came more than once.
        missing: how many that come without workers did not come.
        uss_mib: memory that one worker has to itself; None where the system does not tell.
        threads: threads in one worker; None where the system does not tell.
    """

    wrong: Any
    compared: int
    duplicated: int
    missing: int
    uss_mib: float | None
    threads: int | None


class Digests:
    """Collates to digests, so that what a worker made is judged as it left the dataset."""

    def __call__(self, records: Any) -> list[str | None]:
        """The digest of each sample."""
        return [samples.digest(record) for record in records]


def check_map(loader: Any, records: Sequence[tuple[Any, str]], timeout_s: float) -> WorkersCheck:
    """Load the indices of ``records`` through two workers and compare. Run it in a child process."""
    make_private(loader.dataset)
    indices = [index for index, _ in records]
    # Neighbours go to different workers: they take turns at whatever they share.
    chunk = max(1, min(_CHUNK, len(indices) // (2 * WORKERS)))
    chunks = [indices[at : at + chunk] for at in range(0, len(indices), chunk)]
    iterator = iter(_checker(loader, timeout_s, batch_sampler=chunks))
    keep_to_the_end(iterator)
    found = [digest for digests in iterator for digest in digests]
    wrong = next((index for (index, own), other in zip(records, found, strict=True) if own != other), None)
    uss_mib, threads = _cost(iterator)
    end_quietly()
    return WorkersCheck(wrong, len(found), 0, 0, uss_mib, threads)


def check_stream(loader: Any, records: Sequence[tuple[Any, str]], exhausted: bool, timeout_s: float) -> WorkersCheck:
    """Read an iterable dataset through two workers: every sample once, and none missing."""
    make_private(loader.dataset)
    iterator = iter(_checker(loader, timeout_s, batch_size=1))
    keep_to_the_end(iterator)
    alone = Counter(digest for _, digest in records)
    # One more than expected shows a repetition; without an end in sight, as many as were read without workers.
    most = 2 * len(records) + 2 if exhausted else len(records)
    started, found = time.perf_counter(), []
    for digests in itertools.islice(iterator, most):
        found += digests
        if len(found) >= _CHUNK and time.perf_counter() - started > _LONG_ENOUGH_S and not exhausted:
            break
    uss_mib, threads = _cost(iterator)
    end_quietly()
    seen = Counter(found)
    if exhausted:
        duplicated, missing = (seen - alone).total(), (alone - seen).total()
    else:
        # A stream that repeats itself anyway proves nothing either way, and a prefix of it less.
        repeated = sum(count - 1 for count in alone.values())
        prefix = Counter(digest for _, digest in records[: len(found)])
        duplicated = sum(count - 1 for count in seen.values()) + repeated
        missing = (prefix - seen).total()
    return WorkersCheck(None, len(found), duplicated, missing, uss_mib, threads)


def _checker(loader: Any, timeout_s: float, **how: Any) -> DataLoader[Any]:
    warnings.simplefilter("ignore")
    return DataLoader(
        loader.dataset,
        collate_fn=Digests(),
        num_workers=WORKERS,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        timeout=timeout_s,
        persistent_workers=True,
        **how,
    )


def _cost(iterator: Any) -> tuple[float | None, int | None]:
    """Memory and threads of one worker, the greatest of them. The workers are kept: measuring needs them alive."""
    uss: list[float] = []
    threads: list[int] = []
    for pid in _torch.live_worker_pids(iterator):
        try:
            process = psutil.Process(pid)
            threads.append(process.num_threads())
            uss.append(process.memory_full_info().uss / MIB)
        except (psutil.Error, NotImplementedError, AttributeError, OSError):
            continue
    return (max(uss) if uss and os.name == "posix" else None), max(threads, default=None)
