"""All monitored metrics of one run together: one verdict a check, the history, the state for a checkpoint. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from lightning_speedups.stopping.report import Check
from lightning_speedups.stopping.rules import Clock, Combine, Track, Verdict, combined
from lightning_speedups.stopping.settings import Settings


class Judge:
    """Feeds each metric's values to its track and puts the verdicts together.

    Args:
        settings: one per metric; the first metric decides what is best.
        combine: stop when ``"any"`` or ``"all"`` of them want to.
    """

    def __init__(self, settings: Sequence[Settings], combine: Combine) -> None:
        self.tracks = [Track(each) for each in settings]
        self.combine = combine
        self.history: list[Check] = []
        self.best_epoch: int | None = None
        self._times_known = True

    @property
    def best(self) -> float | None:
        """The first metric's best value."""
        return self.tracks[0].best

    @property
    def best_step(self) -> int | None:
        """Optimizer steps done when the first metric was best."""
        at = self.tracks[0].best_at
        return None if at is None else at.step

    @property
    def wait(self) -> int:
        """Checks without improvement of the metric that is nearest to deciding: the longest wait, or the shortest
        where all metrics must agree.
        """
        waits = [track.wait for track in self.tracks]
        return min(waits) if self.combine == "all" else max(waits)

    def check(
        self,
        values: Sequence[float | None],
        at: Clock,
        epoch: int,
        train_loss: float | None = None,
        rounded: Callable[[float], float] = float,
    ) -> Verdict:
        """Judge one value per metric; None for a metric that has no new one, whose last verdict stands."""
        first_improved = False
        for index, (track, value) in enumerate(zip(self.tracks, values, strict=True)):
            if value is None:
                continue
            verdict = track.observe(value, at, train_loss, rounded)
            if index == 0:
                first_improved = verdict.improved
        if first_improved:
            self.best_epoch = epoch
        self.history.append(Check(epoch=epoch, step=at.step, values=tuple(values), improved=first_improved))
        return replace(combined([track.standing for track in self.tracks], self.combine), improved=first_improved)

    def state_dict(self) -> dict[str, Any]:
        """History in tensors and plain types."""
        rows = [
            [check.epoch, check.step, float(check.improved), *(math.nan if v is None else v for v in check.values)]
            for check in self.history
        ]
        absent = [[value is None for value in check.values] for check in self.history]
        return {
            "tracks": [track.state_dict() for track in self.tracks],
            "best_epoch": self.best_epoch,
            "history": torch.tensor(rows, dtype=torch.float64),
            "history_absent": torch.tensor(absent, dtype=torch.bool),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history of ``state_dict``."""
        for track, track_state in zip(self.tracks, state["tracks"], strict=True):
            track.load_state_dict(track_state)
        self.best_epoch = state["best_epoch"]
        self.history = [
            Check(
                epoch=int(row[0]),
                step=int(row[1]),
                values=tuple(None if gone else value for value, gone in zip(row[3:], absent, strict=True)),
                improved=bool(row[2]),
            )
            for row, absent in zip(state["history"].tolist(), state["history_absent"].tolist(), strict=True)
        ]

    def load_stock(self, best: float, wait: int) -> None:
        """Take up what a checkpoint of the stock class knows of the first metric."""
        self.tracks[0].best = best if math.isfinite(best) else None
        self.tracks[0].wait = wait
        self._times_known = False

    def count_from(self, at: Clock) -> None:
        """Let the patience begin here, where the time of the last improvement is not known."""
        if not self._times_known:
            self.tracks[0].anchor, self._times_known = at, True

    def follow(self, patience: float, wait: int, at: Clock) -> None:
        """Take up what the program has set on the callback since the last check, as the stock class would."""
        for track in self.tracks:
            if track.settings.patience != patience:
                track.settings = replace(track.settings, patience=patience)
        if wait != self.wait:
            for track in self.tracks:
                track.wait, track.anchor = wait, at
