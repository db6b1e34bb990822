"""Reads the monitored metrics off a Trainer, on all ranks alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_speedups import _lightning
from lightning_speedups.stopping.agreement import Agreed, agree

# By precision: where ranks differ, the coarsest one counts.
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Observation:
    """What all ranks saw at a check.

    Attributes:
        metrics: one per monitored metric.
        seconds: rank 0's clock.
        train_loss: mean training loss since the last check; None without one.
        last_loss: the last step's training loss; None without one.
        dtype: the metrics' floating-point type.
    """

    metrics: tuple[Agreed, ...]
    seconds: float
    train_loss: float | None
    last_loss: float | None
    dtype: torch.dtype

    @property
    def rounded(self) -> Callable[[float], float]:
        """Rounds a number to the metrics' type."""
        return float if self.dtype == torch.float64 else partial(_rounded, self.dtype)


class Observer:
    """Watches a run's losses and metrics between the checks.

    A value counts once: a metric that has not been logged again since the last check is not new. That is told from
    the tensor object, which Lightning replaces when the metric is logged. Between a check and the end of the loop
    that it falls into, other callbacks' looks replace it as well, so the object is noted when the next loop begins.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._noted: dict[str, Tensor] = {}
        self._note_next = False
        self._last_loss: Tensor | None = None
        self._loss_sum: Tensor | None = None
        self._losses = 0

    def batch_starts(self, trainer: Any) -> None:
        """Note the metrics that the last check has seen."""
        if not self._note_next:
            return
        stored = _lightning.stored_metrics(trainer)
        self._noted = {name: stored[name] for name in self._names if name in stored}
        self._note_next = False

    def batch_ends(self, outputs: Any, add_up: bool) -> None:
        """Note the training loss; ``add_up`` for the mean since the last check. Waits for no device."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if not isinstance(loss, Tensor):
            return
        self._last_loss = loss.detach()
        if add_up:
            self._loss_sum = self._last_loss.float() if self._loss_sum is None else self._loss_sum + self._last_loss
            self._losses += 1

    def observe(self, trainer: Any, seconds: float) -> Observation:
        """What all ranks see now. Every rank must call it."""
        metrics, stored = trainer.callback_metrics, _lightning.stored_metrics(trainer)
        mean_loss = None if self._loss_sum is None else float(self._loss_sum) / self._losses
        last_loss = None if self._last_loss is None else float(self._last_loss)
        row = [seconds, *_optional(mean_loss), *_optional(last_loss)]
        dtypes = [0]
        for name in self._names:
            known = name in metrics
            fresh = known and stored.get(name) is not self._noted.get(name)
            value = metrics[name] if fresh else None
            row += [float(known), *_optional(None if value is None else float(value))]
            if isinstance(value, Tensor) and value.dtype in _DTYPES:
                dtypes.append(_DTYPES.index(value.dtype))
        row.append(float(max(dtypes)))
        rows = _gathered(trainer, row)
        self._note_next, self._loss_sum, self._losses = True, None, 0
        return _observation(rows, len(self._names))


def _gathered(trainer: Any, row: list[float]) -> list[list[float]]:
    if trainer.world_size == 1:
        return [row]
    mine = torch.tensor(row, dtype=torch.float64, device=trainer.strategy.root_device)
    rows: list[list[float]] = trainer.strategy.all_gather(mine).tolist()
    return rows


def _observation(rows: list[list[float]], count: int) -> Observation:
    metrics = tuple(
        agree(
            known=[bool(row[at]) for row in rows],
            fresh=[bool(row[at + 1]) for row in rows],
            values=[row[at + 2] for row in rows],
        )
        for at in range(5, 5 + 3 * count, 3)
    )
    return Observation(
        metrics=metrics,
        seconds=rows[0][0],
        train_loss=_mean([row[2] for row in rows if row[1]]),
        last_loss=_mean([row[4] for row in rows if row[3]]),
        dtype=_DTYPES[int(max(row[-1] for row in rows))],
    )


def _optional(value: float | None) -> tuple[float, float]:
    """Whether there is a value, and the value: a diverged loss is NaN too, so NaN cannot say that there is none."""
    return (0.0, math.nan) if value is None else (1.0, value)


def _mean(losses: list[float]) -> float | None:
    return sum(losses) / len(losses) if losses else None


def _rounded(dtype: torch.dtype, value: float) -> float:
    return torch.tensor(value, dtype=dtype).item()
