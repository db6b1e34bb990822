"""A 12-layer CNN on random images: what is evaluated does not matter here, only how long and in how much memory."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

LAYERS = 12
CHANNELS = 16
BATCH = 32
PIXELS = 32


class Cnn(pl.LightningModule):
    """Twelve layers of convolution, batch norm and ReLU."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for index in range(LAYERS):
            convolution = nn.Conv2d(3 if index == 0 else CHANNELS, CHANNELS, kernel_size=3, padding=1)
            layers += [convolution, nn.BatchNorm2d(CHANNELS), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape ``(batch, 10)`` for images of shape ``(batch, 3, 32, 32)``."""
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Cross entropy of one batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Cross entropy of one batch, logged."""
        images, labels = batch
        self.log("val_loss", nn.functional.cross_entropy(self(images), labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam at its usual rate."""
        return torch.optim.Adam(self.parameters())


def images(batches: int) -> DataLoader[Any]:
    """A loader over so many batches, held in memory."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(batches * BATCH, 3, PIXELS, PIXELS, generator=generator)
    labels = torch.randint(10, (batches * BATCH,), generator=generator)
    return DataLoader(TensorDataset(pictures, labels), BATCH)


def trainer(*callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
    """A quiet Trainer on one CPU process."""
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=list(callbacks),
        **settings,
    )
