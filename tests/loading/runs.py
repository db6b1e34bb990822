"""Fits with the tuner in them: long by plan, so that tuning is worth its time, and stopped early."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

import lightning_speedups as ls
from tests.helpers import namespace, quiet_trainer

pl = namespace()
BATCH_SIZE = 16


class Linear(pl.LightningModule):  # type: ignore[misc]
    """One layer, whose step takes a known time in which the CPU is free; it keeps what it was given."""

    def __init__(self, step_s: float = 0.0, features: int = 8) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(features, 1)
        self.step_s = step_s
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        batch = batch[0] if isinstance(batch, (list, tuple)) else batch
        self.seen.append(batch.detach().clone())
        time.sleep(self.step_s)
        return self.layer(batch[..., :8].float() / 512).square().mean()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.layer(batch[0] if isinstance(batch, (list, tuple)) else batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class StopsAfter(pl.Callback):  # type: ignore[misc]
    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_train_epoch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.current_epoch + 1 >= self.epochs:
            trainer.should_stop = True


class Notes(pl.Callback):  # type: ignore[misc]
    """Notes the loader's settings and the child processes at each epoch's first batch."""

    def __init__(self, loader: Any = None) -> None:
        self.loader = loader
        self.workers: list[int] = []
        self.children: list[int] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        import psutil

        if batch_idx == 0:
            loader = self.loader or trainer.fit_loop._combined_loader.flattened[0]
            self.workers.append(loader.num_workers)
            self.children.append(len(psutil.Process().children()))


def tuner(**kw: Any) -> Any:
    return ls.DataLoaderTuner(**{"time_budget_s": 4.0, **kw})


def loader_of(dataset: Any, **kw: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **{"batch_size": BATCH_SIZE, "shuffle": not isinstance(dataset, IterableDataset), **kw})


def fit(
    train: Any, callback: Any, *, val: Any = None, step_s: float = 0.0, epochs: int = 1, others: Any = (), **kw: Any
) -> tuple[Any, Any]:
    """Fit for ``epochs`` of twenty planned epochs; gives back the Trainer and the module."""
    module = Linear(step_s)
    callbacks = [*([callback] if callback else []), StopsAfter(epochs), *others]
    trainer = quiet_trainer(**{"max_epochs": 20, "callbacks": callbacks, **kw})
    trainer.fit(module, train, val)
    return trainer, module


def plan_of(dataset_or_loader: Any, loader: dict[str, Any] | None = None, **kw: Any) -> Any:
    """The training loader's plan after one epoch."""
    train = dataset_or_loader
    if not isinstance(train, DataLoader) and not isinstance(train, list):
        train = loader_of(train, **(loader or {}))
    callback = tuner(**kw)
    fit(train, callback)
    return callback.report.plans[0]
