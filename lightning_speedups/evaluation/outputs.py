"""Outputs of a step, kept small: on the CPU, without a graph, and not pinning a batch that they are a small view of."""

from __future__ import annotations

from typing import Any

from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from lightning_speedups.evaluation.walk import tensors_in

# What a view may pin beyond itself before it is cloned, as a share of itself: half of the storage is in use, or more.
_LARGEST_WASTE = 1.0


class Pinned:
    """Adds up what kept outputs hold and what they pin, each storage counted once."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}
        self.used = 0

    @property
    def pinned(self) -> int:
        """Bytes that the outputs keep alive beyond their own."""
        return max(sum(self._storages.values()) - self.used, 0)

    def add(self, outputs: Any) -> None:
        """Count the tensors in a kept output that lie on the CPU: others are copied there, and pin nothing."""
        for held in tensors_in(outputs):
            if held.tensor.device.type == "cpu" and _has_storage(held.tensor):
                storage = held.tensor.untyped_storage()
                self._storages[storage.data_ptr()] = storage.nbytes()
                self.used += _own_bytes(held.tensor)


def compact(outputs: Any) -> Any:
    """``outputs`` with each tensor on the CPU, without its graph; a small view of a large storage is cloned."""
    return apply_to_collection(outputs, Tensor, _compact, allow_frozen=True)


def compact_in_place(outputs: Any, module: nn.Module) -> None:
    """The same for what a step returned, where others keep it: in its dicts and lists, in the module's lists of it."""
    if not isinstance(outputs, Tensor):
        for held in list(tensors_in(outputs)):
            if held.replace is not None:
                held.replace(_compact(held.tensor))
        return
    for kept in vars(module).values():
        if isinstance(kept, list) and kept and kept[-1] is outputs:
            kept[-1] = _compact(outputs)


def _compact(tensor: Tensor) -> Tensor:
    moved = tensor.detach().cpu()
    if not _has_storage(moved):
        return moved
    waste = moved.untyped_storage().nbytes() - _own_bytes(moved)
    return moved.clone() if waste > _LARGEST_WASTE * _own_bytes(moved) else moved


def _own_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _has_storage(tensor: Tensor) -> bool:
    return str(tensor.layout) == "torch.strided"
