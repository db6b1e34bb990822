"""The stop watch that both runs of the demo carry: when each epoch ended, and how long evaluation took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from lightning_speedups.demo.measures import EpochPoint

Emit = Callable[[dict[str, Any]], None]

_TELL_EVERY_S = 0.1


class RunClock(pl.Callback):
    """Times a fit from inside, the same way with and without the pack, and tells its progress.

    A validation counts from the end of the batch before it, so that the start of its loader is part of it.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._started = self._batch_ended = self._told = time.perf_counter()
        self._validation: tuple[float, float] | None = None
        self.points: list[EpochPoint] = []
        self.samples = 0
        self.evaluation_s = 0.0

    def start(self) -> None:
        """Call this immediately before ``fit``."""
        self._started = self._batch_ended = time.perf_counter()

    def elapsed_s(self) -> float:
        """Seconds since ``start``."""
        return time.perf_counter() - self._started

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the evaluation time of the sanity check."""
        self._batch_ended = time.perf_counter()

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count the sanity check as evaluation."""
        self.evaluation_s += time.perf_counter() - self._batch_ended

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the images; say where the run is, at most ten times a second."""
        self.samples += len(batch[1])
        self._batch_ended = time.perf_counter()
        if self._batch_ended - self._told >= _TELL_EVERY_S:
            self._told = self._batch_ended
            share = (batch_idx + 1) / float(trainer.num_training_batches)
            self._emit({"event": "progress", "epochs": trainer.current_epoch + share})

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note when the epoch's accuracy was known."""
        if not trainer.sanity_checking:
            now = time.perf_counter()
            self._validation = (now - self._started, now - self._batch_ended)
            self.evaluation_s += now - self._batch_ended

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Make the epoch's point: here the training loss is known as well."""
        if self._validation is None:
            raise RuntimeError("the demo needs a validation in every epoch, and this epoch had none")
        logged = {key: float(value) for key, value in trainer.callback_metrics.items() if isinstance(value, Tensor)}
        point = EpochPoint(
            trainer.current_epoch, *self._validation, logged["train_loss"], logged["val_loss"], logged["val_acc"]
        )
        self._validation = None
        self.points.append(point)
        self._emit({"event": "epoch", "point": point.to_dict()})
