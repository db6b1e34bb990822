"""Clones of tensors that keep what the tensors share: the same tensor stays one, views stay views of one memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_WITH_PLAIN_MEMORY = (Tensor, nn.Parameter)


def memory_of(tensor: Tensor) -> tuple[str, int] | None:
    """What tells two tensors in the same memory; None for one that has no plain memory of its own to tell by."""
    plain = type(tensor) in _WITH_PLAIN_MEMORY and tensor.layout is torch.strided and not tensor.is_quantized
    if not plain or tensor.is_conj() or tensor.is_neg():
        return None
    address = tensor.untyped_storage().data_ptr()
    return (str(tensor.device), address) if address else None


class Clones:
    """Clones of some tensors, each memory copied once.

    Tensors that share their memory get views of one copy, with their own shapes, strides and offsets; a tensor that is
    alone in its memory is copied alone, so that a small view lets go of what is large. Made outside of inference mode,
    the clones can be used in training.

    Args:
        tensors: all that are to be cloned; each must live until its own clone is asked for.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._sharing: dict[tuple[str, int], dict[int, Tensor]] = {}
        for tensor in tensors:
            memory = memory_of(tensor)
            if memory is not None:
                self._sharing.setdefault(memory, {})[id(tensor)] = tensor
        self._copies: dict[tuple[str, int], Tensor] = {}
        self._made: dict[int, Tensor] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """The clone of one of the tensors: the same one each time."""
        known = id(tensor)
        if known not in self._made:
            # With gradients on, or autograd would not let training change the views in place.
            with torch.inference_mode(False), torch.enable_grad():
                clone = self._view(tensor)
            if isinstance(tensor, nn.Parameter):
                clone = nn.Parameter(clone, requires_grad=tensor.requires_grad)
            self._made[known] = clone
        return self._made[known]

    def _view(self, tensor: Tensor) -> Tensor:
        memory = memory_of(tensor)
        # Given up here, so that the originals can go one by one.
        sharing = self._sharing.pop(memory, {}) if memory is not None else {}
        if memory is not None and len(sharing) > 1:
            # In the narrowest type, which reaches to the end of the memory whatever its length.
            narrow = min(sharing.values(), key=lambda each: each.itemsize)
            length = narrow.untyped_storage().nbytes() // narrow.itemsize
            self._copies[memory] = narrow.detach().as_strided((length,), (1,), 0).clone()
        if memory is None or memory not in self._copies:
            return tensor.detach().clone()
        copy = self._copies[memory]
        if copy.dtype != tensor.dtype:
            copy = copy[: copy.numel() * copy.itemsize // tensor.itemsize * tensor.itemsize // copy.itemsize]
            copy = copy.view(tensor.dtype)
        return copy.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
