"""The program that the demo trains, as a user would have written it: data set, loaders, a small CNN.

Both runs of the demo use this file as it is. Nothing in it knows of the pack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy

INPUT_PX = 32
BATCH_SIZE = 32

Batch = tuple[Tensor, Tensor]


class DigitImages(Dataset[tuple[Tensor, int]]):
    """JPEG files, decoded and brought to the input size when they are asked for, then transformed.

    Args:
        samples: path and label of each image.
        transform: applied to the decoded image, such as ``augment``.
    """

    def __init__(
        self, samples: Sequence[tuple[Path, int]], transform: Callable[[Image.Image], Image.Image] | None = None
    ) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as file:
            image = file.resize((INPUT_PX, INPUT_PX), Image.Resampling.BILINEAR)
        if self.transform is not None:
            image = self.transform(image)
        return torch.from_numpy(np.array(image)).unsqueeze(0).float() / 255, label


def augment(image: Image.Image) -> Image.Image:
    """Turn by up to 15 degrees, shift by up to 3 pixels, scale the brightness by up to 30 %.

    Draws from torch's global generator, which ``seed_everything`` seeds.
    """
    turn, right, down, light = (torch.rand(4) * 2 - 1).tolist()
    turned = image.rotate(15 * turn, Image.Resampling.BILINEAR, translate=(round(3 * right), round(3 * down)))
    return turned.point(lambda value: value * (1 + 0.3 * light))


def loaders(samples: Sequence[tuple[Path, int]]) -> tuple[DataLoader[Any], DataLoader[Any], DataLoader[Any]]:
    """Loaders for training (augmented, shuffled), validation and test: 60, 20 and 20 percent, split once for all."""
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = [samples[index] for index in order]
    held_out = len(samples) // 5
    train = DigitImages(shuffled[2 * held_out :], augment)
    validation, test = DigitImages(shuffled[:held_out]), DigitImages(shuffled[held_out : 2 * held_out])
    return DataLoader(train, BATCH_SIZE, shuffle=True), DataLoader(validation, BATCH_SIZE), DataLoader(test, BATCH_SIZE)


class DigitClassifier(pl.LightningModule):
    """Three convolutions and one linear layer; logs ``train_loss``, ``val_loss``, ``val_acc`` and ``test_acc``."""

    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            *_block(1, 16), *_block(16, 32), *_block(32, 64), nn.Flatten(), nn.Linear(64 * (INPUT_PX // 8) ** 2, 10)
        )
        self.val_acc = MulticlassAccuracy(num_classes=10, average="micro")
        self.test_acc = MulticlassAccuracy(num_classes=10, average="micro")

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape ``(batch, 10)`` for images of shape ``(batch, 1, 32, 32)``."""
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross entropy of one batch."""
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Cross entropy and accuracy of one batch."""
        images, labels = batch
        logits = self(images)
        self.val_acc(logits, labels)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels))
        self.log("val_acc", self.val_acc)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Accuracy of one batch."""
        images, labels = batch
        self.test_acc(self(images), labels)
        self.log("test_acc", self.test_acc)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam at its usual rate, constant over the run."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def _block(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=2, padding=1)
    return convolution, nn.BatchNorm2d(channels_out), nn.ReLU()
