"""The best weights, kept aside and put back: parameters, every buffer, and modules' extra state. No Lightning."""

from __future__ import annotations

import copy
import uuid
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


class Snapshot:
    """A copy of what a module has learnt, in host memory or in a file.

    Each rank keeps its own part and needs no other rank, so a copy can be taken and put back at any moment, also
    after an interrupt. A new copy is complete before it takes the place of the old one.

    Args:
        folder: where to keep the copy as a file; None keeps it in host memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file = None if folder is None else folder / f".best_weights_{uuid.uuid4().hex}.pt"
        self._tensors: dict[str, Tensor] | None = None
        self._extra: dict[str, Any] = {}
        self._taken = False

    @property
    def taken(self) -> bool:
        """Whether there is a copy to put back."""
        return self._taken

    def take(self, module: nn.Module) -> None:
        """Copy the module's present state.

        Raises:
            OSError: where the file cannot be written; the copy before stays.
        """
        tensors = {name: local_part(tensor).to("cpu", copy=True) for name, tensor in state_tensors(module).items()}
        extra = {name: copy.deepcopy(part.get_extra_state()) for name, part in _with_extra_state(module).items()}
        if self._file is None:
            self._tensors = tensors
        else:
            aside = self._file.with_suffix(".partial")
            self._file.parent.mkdir(parents=True, exist_ok=True)
            try:
                torch.save(tensors, aside)
                aside.replace(self._file)
            finally:
                aside.unlink(missing_ok=True)
        self._extra, self._taken = extra, True

    def put_back(self, module: nn.Module) -> tuple[str, ...]:
        """Copy the state back in place.

        Returns:
            The names of tensors that could not be put back, because their shape has changed since.
        """
        misfits = copy_into(module, self.tensors())
        for name, part in _with_extra_state(module).items():
            if name in self._extra:
                part.set_extra_state(copy.deepcopy(self._extra[name]))
        return misfits

    def tensors(self) -> dict[str, Tensor]:
        """The copy itself, by parameter and buffer name."""
        if self._file is not None and self._taken:
            loaded: dict[str, Tensor] = torch.load(self._file, map_location="cpu", weights_only=True)
            return loaded
        return self._tensors or {}

    def drop(self) -> None:
        """Let go of the copy and its file."""
        if self._file is not None and self._taken:
            self._file.unlink(missing_ok=True)
        self._tensors, self._extra, self._taken = None, {}, False


def copy_into(module: nn.Module, tensors: dict[str, Tensor]) -> tuple[str, ...]:
    """Copy ``tensors`` over the module's own of the same names, in place; returns the names that do not fit."""
    present = state_tensors(module)
    misfits = []
    with torch.no_grad():
        for name, value in tensors.items():
            if name not in present or local_part(present[name]).shape != value.shape:
                misfits.append(name)
                continue
            own = local_part(present[name])
            # An expanded buffer, such as a table of positions, shares memory between its elements: torch lets nobody
            # write to it, and as a rule nobody has.
            if 0 not in own.stride() or own.numel() <= 1:
                own.copy_(value)
            elif not torch.equal(own.cpu(), value):
                misfits.append(name)
    return tuple(misfits)


def state_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, those outside ``state_dict`` included; tied ones once."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach() for name, tensor in named if not (is_lazy(tensor) or tensor.is_meta)}


def local_part(tensor: Tensor) -> Tensor:
    """This rank's own shard of a distributed tensor, or the tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def _with_extra_state(module: nn.Module) -> dict[str, nn.Module]:
    return {
        name: part
        for name, part in module.named_modules()
        if type(part).get_extra_state is not nn.Module.get_extra_state
    }
