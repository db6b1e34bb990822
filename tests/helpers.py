"""What most tests need: a module with scripted metrics, a loader and a quiet Trainer, in the namespace under test.

The namespace is ``pytorch_lightning`` unless the environment names the other one, so that the same tests run
against both: ``LIGHTNING_SPEEDUPS_TEST_NAMESPACE=lightning.pytorch``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

NAMESPACE_VARIABLE = "LIGHTNING_SPEEDUPS_TEST_NAMESPACE"


def namespace() -> ModuleType:
    """The Lightning under test: the module that programs import as ``pl``."""
    return importlib.import_module(os.environ.get(NAMESPACE_VARIABLE) or "pytorch_lightning")


class ScriptedModule(namespace().LightningModule):  # type: ignore[misc]
    """One linear layer, whose validation logs ``val_loss`` from a script: one value a validation, the last repeats.

    Sanity checks log nothing and use up no value. ``checks`` counts the validations so far; ``linear`` is the layer.
    """

    def __init__(self, val: Sequence[float] = (), d: int = 8) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(d, 1)
        self.val = list(val)
        self.checks = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        pass

    def on_validation_epoch_end(self) -> None:
        if self.val and not self.trainer.sanity_checking:
            self.log("val_loss", float(self.val[min(self.checks, len(self.val) - 1)]))
            self.checks += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def loader(n: int = 8, batch_size: int = 4, d: int = 8, **kw: Any) -> DataLoader[Any]:
    """A loader over ``n`` random rows of ``d`` features; two batches unless told otherwise."""
    return DataLoader(TensorDataset(torch.randn(n, d)), batch_size=batch_size, **kw)


def quiet_trainer(**kw: Any) -> Any:
    """A Trainer on one CPU process that prints, logs and saves nothing unless a test asks for it."""
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return namespace().Trainer(**{**settings, **kw})
