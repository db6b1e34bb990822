"""Compares the default decisions of ``lightning_speedups.EarlyStopping`` with those of Lightning's own class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning import callbacks
from torch.utils.data import DataLoader

import lightning_speedups as ls
from lightning_speedups.stopping.rules import Clock, Track
from lightning_speedups.stopping.settings import Settings
from stopping.curves import Curve
from stopping.replay import ON_ACCURACY, ON_LOSS, float32, values_of

STOCK_SETTINGS = (
    *(
        replace(metric, patience=patience, min_delta=min_delta)
        for metric in (ON_LOSS, ON_ACCURACY)
        for patience in (0, 1, 3, 5, 10)
        for min_delta in (0.0, 0.0025, 0.01)
    ),
    replace(ON_LOSS, stopping_threshold=0.5),
    replace(ON_LOSS, patience=50, divergence_threshold=1.5),
    replace(ON_ACCURACY, patience=50, stopping_threshold=0.95, divergence_threshold=0.2),
)
"""Stock arguments to compare on; 0.0025 is one validation image, so accuracies lie on the very edge of that delta."""


def engine_mismatches(curves: list[Curve]) -> tuple[int, int]:
    """How many decisions differ from those of Lightning's own ``EarlyStopping``, and how many were compared.

    A decision is whether to stop after an epoch; where neither stops, the wait count and the best score as well.
    """
    mismatches = compared = 0
    for curve in curves:
        for settings in STOCK_SETTINGS:
            stock = _made(callbacks.EarlyStopping, settings)
            track = Track(settings)
            for epoch, value in enumerate(values_of(curve, settings), start=1):
                stop, _ = stock._evaluate_stopping_criteria(torch.tensor(value))
                verdict = track.observe(value, Clock(epoch, epoch * curve.steps_per_epoch, 0.0), rounded=float32)
                compared += 1
                if stop or verdict.stop:
                    mismatches += stop != verdict.stop
                    break
                mismatches += (stock.wait_count, float(stock.best_score)) != (track.wait, track.best)
    return mismatches, compared


def trainer_mismatches(curves: Iterable[Curve]) -> tuple[int, int]:
    """How many fits end otherwise under the pack's callback than under the stock one, and how many were compared.

    Both stand in a real Trainer, whose module logs the values of the curve. Compared are the epochs run, the wait
    count, the best score and the reason.
    """
    mismatches = compared = 0
    for curve in curves:
        for settings in (replace(ON_LOSS, patience=5), replace(ON_ACCURACY, patience=5, min_delta=0.0025)):
            ends = [_end_of_fit(_made(kind, settings), curve) for kind in (callbacks.EarlyStopping, ls.EarlyStopping)]
            compared += 1
            mismatches += ends[0] != ends[1]
    return mismatches, compared


def _made(kind: Callable[..., Any], settings: Settings) -> Any:
    return kind(
        settings.name,
        mode=settings.mode,
        patience=int(settings.patience),
        min_delta=settings.min_delta,
        stopping_threshold=settings.stopping_threshold,
        divergence_threshold=settings.divergence_threshold,
    )


class _Replayed(pl.LightningModule):
    """Trains nothing to speak of, and logs the values of a curve."""

    def __init__(self, curve: Curve) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.curve = curve

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.layer(batch).sum()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        epoch = self.current_epoch
        self.log_dict({"val_loss": self.curve.val_loss[epoch], "val_acc": self.curve.val_acc[epoch]})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def _end_of_fit(stopping: Any, curve: Curve) -> tuple[int, int, float, str]:
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=curve.epochs,
        callbacks=[stopping],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(_Replayed(curve), DataLoader([torch.ones(1)]), DataLoader([torch.ones(1)]))
    return trainer.current_epoch, stopping.wait_count, float(stopping.best_score), stopping.stopping_reason.name
