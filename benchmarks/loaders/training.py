"""Training with one setting of a loader, timed by the epoch; and with the tuner, for what it chooses and costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

import lightning_speedups as ls
from lightning_speedups.loading.report import LoaderPlan
from lightning_speedups.loading.settings import LoaderSettings
from loaders.cases import Case

EPOCHS_PLANNED = 20


class Net(pl.LightningModule):
    """A linear layer, and a step that takes a known time of one CPU."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.layer, self.step_s = torch.nn.LazyLinear(1), step_s

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The layer's loss, and the CPU kept busy for as long as the step is to take."""
        until = time.thread_time() + self.step_s
        loss = self.layer(batch[0].flatten(1)).square().mean()
        while time.thread_time() < until:
            pass
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """At a rate that changes next to nothing."""
        return torch.optim.SGD(self.parameters(), lr=1e-6)


class Epochs(pl.Callback):
    """Times whole epochs, the start of their workers included, and ends the fit after so many."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.seconds = epochs, []
        self._started = 0.0

    def on_train_epoch_start(self, *args: Any) -> None:
        """An epoch begins; its workers are not there yet."""
        self._started = time.perf_counter()

    def on_train_epoch_end(self, trainer: Any, *args: Any) -> None:
        """An epoch is over."""
        self.seconds.append(time.perf_counter() - self._started)
        if len(self.seconds) >= self.epochs:
            trainer.should_stop = True


@dataclass(frozen=True)
class Tuned:
    """What the tuner chose for a loader, and the seconds that it took."""

    plan: LoaderPlan
    seconds_s: float

    @property
    def settings(self) -> LoaderSettings:
        """The setting that was chosen."""
        return LoaderSettings.from_dict(self.plan.after)


def epoch_s(case: Case, dataset: Any, settings: LoaderSettings) -> float:
    """Seconds of an epoch: the second of a fit, because the first one's workers start before any hook."""
    clock = Epochs(2)
    _fit(case, dataset, settings, [clock])
    return clock.seconds[1]


def tuned(case: Case, dataset: Any, budget_s: float) -> Tuned:
    """What ``DataLoaderTuner`` chooses for the untouched loader in a run of twenty epochs, ended after the third."""
    callback = ls.DataLoaderTuner(time_budget_s=budget_s)
    _fit(case, dataset, LoaderSettings(), [callback, Epochs(3)])
    return Tuned(callback.report.plans[0], callback.report.seconds_spent_s)


def _fit(case: Case, dataset: Any, settings: LoaderSettings, callbacks: list[Any]) -> None:
    loader = DataLoader(dataset, case.batch_size, shuffle=True, **settings.as_dict())
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS_PLANNED,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    trainer.fit(Net(case.step_s), loader)


def folder_for(base: Path, case: Case) -> Path:
    """A folder of the case's own."""
    folder = base / "".join(letter if letter.isalnum() else "_" for letter in case.name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
