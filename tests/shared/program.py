"""One training program that draws on every random stream, and a record of everything that can be seen of its run."""

from __future__ import annotations

import functools
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.helpers import ScriptedModule, namespace, quiet_trainer

pl = namespace()
SEED = 11
BATCHES = 4
BATCH_SIZE = 4
BEST_STEP = 4


def improving(step: int) -> float:
    """A loss that gets better for ever."""
    return 1 / (1 + step)


def stalling(step: int) -> float:
    """A loss that is best at ``BEST_STEP`` and gets worse from there on."""
    return 0.5 + abs(step - BEST_STEP) / 4


class NoisyRows(Dataset[torch.Tensor]):
    """Rows whose noise comes from Python's, numpy's and torch's global streams; it keeps the order of its indices."""

    def __init__(self, order: list[int], n: int = BATCHES * BATCH_SIZE) -> None:
        self.rows = torch.linspace(-1, 1, n * 8).reshape(n, 8)
        self.order = order

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.order.append(index)
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return self.rows[index] + 0.01 * noise


class EndlessRows(IterableDataset[torch.Tensor]):
    """The same rows over and over, without a length."""

    def __init__(self, order: list[int], laps: int = 10**6) -> None:
        self.rows = NoisyRows(order)
        self.laps = laps

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.laps):
            for index in range(len(self.rows)):
                yield self.rows[index]


class Program(pl.LightningModule):  # type: ignore[misc]
    """A small net with BatchNorm and dropout; ``val_loss``, ``val_acc`` and ``step_curve`` follow ``curve(step)``."""

    def __init__(self, curve: Callable[[int], float] = improving, manual: bool = False) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )
        self.curve = curve
        self.automatic_optimization = not manual
        self.weights_at_train_end: dict[str, torch.Tensor] = {}

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.net(batch).square().mean() + self.net[0].weight.square().mean()
        self.log_dict({"train_loss": loss, "step_curve": self.curve(self.trainer.global_step)})
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_square", self.net(batch).square().mean(), add_dataloader_idx=dataloader_idx > 0)

    def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("test_square", self.net(batch).square().mean())

    def predict_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.net(batch)

    def _log_curve(self) -> None:
        value = self.curve(self.trainer.global_step)
        self.log_dict({"val_loss": value, "val_acc": 1 - value})

    def on_validation_epoch_end(self) -> None:
        self._log_curve()

    def on_train_epoch_end(self) -> None:
        if not self.trainer.enable_validation:
            self._log_curve()

    def on_train_end(self) -> None:
        self.weights_at_train_end = copied(self.state_dict())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)]


class ScriptedRun(ScriptedModule):
    """A scripted ``val_loss`` and every other metric that the registry's plugins watch."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.log("step_curve", 1 / (1 + self.trainer.global_step))
        return super().training_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.log("val_acc", 1 - 1 / (2 + self.trainer.global_step))


class MemoryLogger(pl.loggers.Logger):  # type: ignore[misc]
    """Keeps every logged row, in order."""

    name = "memory"
    version = 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


@dataclass(frozen=True)
class Scenario:
    """How the program is run: the Trainer's settings, the curve, and the kind of its data."""

    name: str = "plain"
    trainer: dict[str, Any] = field(default_factory=dict, hash=False)
    curve: Callable[[int], float] = improving
    manual: bool = False
    train_rows: Callable[[list[int]], Any] = NoisyRows
    val_loaders: int = 1
    evaluate: bool = False


@dataclass(frozen=True)
class Record:
    """Everything that is compared between two runs; tensors are flattened to bytes, so equal means bit-identical."""

    train_weights: Any
    end_weights: Any
    optimizer: Any
    logged: Any
    batch_order: Any
    rng: Any
    evaluated: Any
    progress: Any

    def differences(self, other: Record) -> set[str]:
        """The names of the parts that are not identical."""
        return {f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)}


def copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.detach().clone() for name, value in state.items()}


def as_bytes(value: Any) -> Any:
    """``value`` with every tensor replaced by its type, shape and bytes: comparable with ``==``, NaN included."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous()
        return str(flat.dtype), tuple(flat.shape), flat.numpy().tobytes()
    if isinstance(value, dict):
        return {key: as_bytes(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(as_bytes(item) for item in value)
    return value


def rng_state() -> tuple[bytes, bytes, bytes]:
    numpy_state = pickle.dumps(np.random.get_state())
    return pickle.dumps(random.getstate()), numpy_state, torch.get_rng_state().numpy().tobytes()


def run(scenario: Scenario, ckpt_path: str | None = None, **trainer: Any) -> Record:
    """Run the program from the common seed: fit and, where the scenario says so, validate, test and predict."""
    pl.seed_everything(SEED, verbose=False)
    order: list[int] = []
    module = Program(scenario.curve, manual=scenario.manual)
    rows = scenario.train_rows(order)
    train = DataLoader(rows, batch_size=BATCH_SIZE, shuffle=not isinstance(rows, IterableDataset))
    held_out = [DataLoader(NoisyRows(order, n=8), batch_size=BATCH_SIZE) for _ in range(scenario.val_loaders)]
    logger = MemoryLogger()
    settings = {"max_epochs": 3, "num_sanity_val_steps": 1, "log_every_n_steps": 1, "logger": logger}
    made = quiet_trainer(**{**settings, **scenario.trainer, **trainer})
    made.fit(module, train, held_out or None, ckpt_path=ckpt_path)
    assert made.state.finished
    end_weights = copied(module.state_dict())
    optimizer = made.optimizers[0].state_dict(), made.lr_scheduler_configs[0].scheduler.state_dict()
    progress, logged = (made.global_step, made.current_epoch), list(logger.rows)
    evaluated: list[Any] = []
    if scenario.evaluate:
        scores = [function(module, held_out[0], verbose=False) for function in (made.validate, made.test)]
        evaluated = [*scores, made.predict(module, held_out[0])]
    return Record(
        train_weights=as_bytes(module.weights_at_train_end),
        end_weights=as_bytes(end_weights),
        optimizer=as_bytes(optimizer),
        logged=as_bytes(logged),
        batch_order=order,
        rng=rng_state(),
        evaluated=as_bytes(evaluated),
        progress=progress,
    )


@functools.cache
def stock(scenario: Scenario, **trainer: Any) -> Record:
    """The run without any plugin; the same scenario is run once for all of them."""
    return run(scenario, **trainer)
