"""The peak of the memory that live tensors take: exact, on any device, and without the allocator's own habits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LivePeak(TorchDispatchMode):
    """Adds up the storages that are alive after each operation, leaving out those of the given tensors."""

    def __init__(self, leave_out: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._left_out = {tensor.untyped_storage().data_ptr() for tensor in leave_out}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._left_out:
                    self._alive[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self._alive.values()))
        return result


def peak_of(work: Callable[[], object], leave_out: Iterable[torch.Tensor]) -> int:
    """The most bytes that tensors made by ``work`` took at once."""
    with LivePeak(leave_out) as live:
        work()
    return live.peak_bytes
