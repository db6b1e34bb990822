"""Whether pinned memory would speed up the way of a batch to its device, measured with made-up bytes of its size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

# The devices that copy from pinned memory without the CPU.
DEVICES = ("cuda", "xpu")
_REPEATS = 5
LEAST_GAIN = 0.05


def saves_s(batch_bytes: int, device: str, in_background: bool) -> float:
    """Seconds a batch that pinning takes off the step, with a negative sign where it adds some.

    Args:
        batch_bytes: the size of a batch.
        device: a device type of ``DEVICES``.
        in_background: whether the loader's own thread pins, as it does where there are workers.
    """
    plain = torch.empty(max(1, batch_bytes), dtype=torch.uint8)
    pinned = plain.pin_memory()
    synchronize = torch.cuda.synchronize if device == "cuda" else torch.xpu.synchronize
    as_it_is = _median_s(lambda: plain.to(device), synchronize)
    copied = _median_s(lambda: pinned.to(device, non_blocking=True), synchronize)
    return as_it_is - copied - (0.0 if in_background else _median_s(plain.pin_memory, synchronize))


def _median_s(work: Callable[[], object], synchronize: Callable[[], None]) -> float:
    times = []
    for _ in range(_REPEATS + 1):
        synchronize()
        started = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])
