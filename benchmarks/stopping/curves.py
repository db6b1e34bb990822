"""Real training curves on scikit-learn's handwritten digits, for replaying stop rules over them.

A plain torch loop with everything in memory: what is studied is when to stop, not how fast a loop runs. The curves
differ in the net, in the share of wrong labels, in the learning-rate schedule and in the seed; most of them run long
enough to overfit, some only reach a plateau. The validation labels are as wrong as the training labels, as they are
where both come from one labelled set; the test labels are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

TRAIN, VALIDATION = 800, 400
BATCH = 100
CLASSES = 10
NOISE_LEVELS = (0.0, 0.1, 0.3)


def _mlp(width: int, depth: int, dropout: float = 0.0) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for index in range(depth):
        layers += [nn.Linear(64 if index == 0 else width, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def _cnn(dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(64, CLASSES),
    )


NETS: dict[str, tuple[Callable[[], nn.Sequential], float]] = {
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)), 1e-2),
    "mlp 1x64": (lambda: _mlp(64, 1), 2e-3),
    "mlp 2x256": (lambda: _mlp(256, 2), 1e-3),
    "mlp 3x128 dropout": (lambda: _mlp(128, 3, dropout=0.3), 1e-3),
    "cnn": (lambda: _cnn(), 3e-3),
    "cnn dropout": (lambda: _cnn(dropout=0.3), 3e-3),
}
"""Each net with its learning rate under Adam."""


@dataclass(frozen=True)
class Curve:
    """One training run, an entry per epoch."""

    net: str
    noise: float
    schedule: str
    seed: int
    steps_per_epoch: int
    train_loss: tuple[float, ...]
    val_loss: tuple[float, ...]
    val_acc: tuple[float, ...]
    test_acc: tuple[float, ...]

    @property
    def epochs(self) -> int:
        """Epochs trained."""
        return len(self.val_loss)


class Recipe(NamedTuple):
    """What tells one curve from another."""

    net: str
    noise: float
    schedule: str
    seed: int


def recipes(seeds: int = 2) -> list[Recipe]:
    """Every net at every noise level: ``seeds`` runs at a constant rate, and one along a cosine to zero."""
    plans = [("constant", seed) for seed in range(seeds)] + [("cosine", seeds)]
    return [Recipe(net, noise, schedule, seed) for net in NETS for noise in NOISE_LEVELS for schedule, seed in plans]


class _Digits(NamedTuple):
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def _digits(noise: float, generator: torch.Generator) -> _Digits:
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=generator)
    images, labels = images[order], labels[order]
    known = TRAIN + VALIDATION
    wrong = torch.rand(known, generator=generator) < noise
    labels[:known][wrong] = torch.randint(CLASSES, (int(wrong.sum()),), generator=generator)
    return _Digits(
        (images[:TRAIN], labels[:TRAIN]),
        (images[TRAIN:known], labels[TRAIN:known]),
        (images[known:], labels[known:]),
    )


def _evaluated(net: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Loss and accuracy, with the net left in evaluation mode."""
    net.eval()
    with torch.no_grad():
        logits = net(data[0])
    accuracy = (logits.argmax(dim=1) == data[1]).float().mean()
    return float(cross_entropy(logits, data[1])), float(accuracy)


def _trained_epochs(
    net: nn.Module, optimizer: torch.optim.Optimizer, data: tuple[Tensor, Tensor], generator: torch.Generator
) -> Iterator[float]:
    """Train for ever; yields the mean training loss of each epoch."""
    images, labels = data
    while True:
        net.train()
        total = 0.0
        for rows in torch.randperm(len(labels), generator=generator).split(BATCH):
            optimizer.zero_grad()
            loss = cross_entropy(net(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        yield total / len(labels)


def train(recipe: Recipe, epochs: int) -> Curve:
    """Run one recipe from its seed; the same recipe gives the same curve on one machine."""
    generator = torch.Generator().manual_seed(recipe.seed)
    data = _digits(recipe.noise, generator)
    build, learning_rate = NETS[recipe.net]
    torch.manual_seed(recipe.seed)
    net = build()
    optimizer = torch.optim.Adam(net.parameters(), lr=learning_rate)
    rows: list[tuple[float, float, float, float]] = []
    for epoch, train_loss in enumerate(_trained_epochs(net, optimizer, data.train, generator), start=1):
        val_loss, val_acc = _evaluated(net, data.validation)
        rows.append((train_loss, val_loss, val_acc, _evaluated(net, data.test)[1]))
        if epoch == epochs:
            break
        if recipe.schedule == "cosine":
            optimizer.param_groups[0]["lr"] = learning_rate * (1 + math.cos(math.pi * epoch / epochs)) / 2
    train_losses, val_losses, val_accs, test_accs = zip(*rows, strict=True)
    steps = math.ceil(TRAIN / BATCH)
    return Curve(*recipe, steps, train_losses, val_losses, val_accs, test_accs)
