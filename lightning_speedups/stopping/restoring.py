"""Give the best weights back, from the own copy or from a checkpoint file of exactly that step."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_speedups.stopping.snapshot import Snapshot, copy_into, local_part, state_tensors


class Restored(NamedTuple):
    """Where the weights came from, in words, the tensors that no longer fit, and what went wrong, if anything."""

    source: str
    misfits: tuple[str, ...]
    failure: str = ""


class BestWeights:
    """Keeps the best weights of one fit and puts them back at its end.

    Args:
        folder: where to keep the copy as a file; None keeps it in host memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._snapshot = Snapshot(folder)
        self._last: dict[str, Tensor] = {}

    @property
    def kept(self) -> bool:
        """Whether there is an own copy."""
        return self._snapshot.taken

    def keep(self, module: nn.Module) -> Exception | None:
        """Copy the weights as they are now: they are the best so far.

        Returns:
            What kept the copy from being written to disk, where it had to stay in memory.
        """
        try:
            self._snapshot.take(module)
        except (OSError, RuntimeError) as error:
            # torch reports a disk that is full as a RuntimeError.
            in_memory = Snapshot()
            in_memory.take(module)
            self._snapshot.drop()
            self._snapshot = in_memory
            return error
        return None

    def restore(self, trainer: Any, module: nn.Module, step: int | None, may_ask_ranks: bool) -> Restored:
        """Put the best weights back, from the own copy or else from a checkpoint file of exactly that step.

        Args:
            trainer: for its checkpoint files, where there is no own copy.
            module: the module of the fit.
            step: optimizer steps done when it was best; None where that is not known.
            may_ask_ranks: whether every other rank is at this point too.
        """
        if self.kept:
            try:
                return Restored("", self._snapshot.put_back(module))
            except OSError as error:
                return Restored("", (), f"the copy of the best ones cannot be read back ({error})")
        path = put_back_from_file(trainer, module, step) if may_ask_ranks and step is not None else None
        if path is not None:
            return Restored(f" from {path}", ())
        when = "of an unknown step" if step is None else f"of step {step}"
        return Restored(
            "", (), f"the best ones ({when}) are from before the resume, and no ModelCheckpoint file is of exactly then"
        )

    def remember_last(self, module: nn.Module) -> None:
        """Keep the present weights for checkpoints that are yet to be written: they belong to the optimizer's state."""
        self._last = {name: local_part(tensor).to("cpu", copy=True) for name, tensor in state_tensors(module).items()}

    def mend(self, checkpoint: dict[str, Any]) -> None:
        """Write the remembered last weights into a checkpoint that is being made."""
        state = checkpoint.get("state_dict", {})
        for name, value in self._last.items():
            if name in state and state[name].shape == value.shape:
                state[name] = value

    def drop_best(self) -> None:
        """Let go of the best weights and their file."""
        self._snapshot.drop()

    def drop(self) -> None:
        """Let go of all copies and files."""
        self.drop_best()
        self._last = {}


def put_back_from_file(trainer: Any, module: nn.Module, step: int) -> str | None:
    """Load the weights from a ``ModelCheckpoint`` file that was saved at exactly ``step``.

    Needs every rank (they agree that all can read it), and a module whose parameters are whole on each rank.

    Returns:
        The file's path, or None where there is no such file.
    """
    path, state = _checkpoint_at(trainer, step)
    present, stored_names = state_tensors(module), set(module.state_dict())
    fits = state is not None and all(
        name in state and state[name].shape == tensor.shape and local_part(tensor) is tensor
        for name, tensor in present.items()
        if name in stored_names
    )
    if not trainer.strategy.reduce_boolean_decision(fits, all=True) or state is None:
        return None
    copy_into(module, {name: value for name, value in state.items() if name in present})
    return path


def _checkpoint_at(trainer: Any, step: int) -> tuple[str | None, dict[str, Tensor] | None]:
    for callback in trainer.checkpoint_callbacks:
        paths = [getattr(callback, "best_model_path", ""), *getattr(callback, "best_k_models", {})]
        for path in dict.fromkeys([*paths, getattr(callback, "last_model_path", "")]):
            if path and Path(path).is_file():
                try:
                    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
                except (OSError, RuntimeError, pickle.UnpicklingError):
                    continue
                if content.get("global_step") == step:
                    return str(path), content.get("state_dict")
    return None, None
