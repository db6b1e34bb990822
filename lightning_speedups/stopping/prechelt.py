"""The three classes of stopping criteria of Prechelt (1998), "Early Stopping - But When?", in Neural Networks:
Tricks of the Trade. Generalized to metrics of any sign and direction: an error's excess is taken relative to the
magnitude of its optimum, and in ``"max"`` mode a fall counts as a rise of the error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


def generalization_loss(value: float, best: float, direction: int) -> float:
    """GL in percent: by how much ``value`` is worse than the ``best`` so far; 0 where it is not.

    Args:
        value: the metric at this check.
        best: the best value of the metric until this check, this check included.
        direction: +1 where lower is better, -1 where higher is.
    """
    excess = direction * (value - best)
    if not excess > 0:
        return 0.0
    return 100.0 * excess / abs(best) if best else math.inf


def training_progress(losses: list[float]) -> float:
    """P_k in per mille: how much larger the mean training loss of a strip was than its minimum."""
    lowest = min(losses)
    excess = sum(losses) / len(losses) - lowest
    if not excess > 0:
        return 0.0
    return 1000.0 * excess / abs(lowest) if lowest else math.inf


def progress_quotient(loss_pct: float, progress: float) -> float:
    """PQ: generalization loss per training progress; no progress at all makes any loss infinite."""
    if loss_pct == 0.0:
        return 0.0
    return loss_pct / progress if progress else math.inf


@dataclass
class Strips:
    """Cuts the checks into strips of ``length`` and remembers what PQ and UP need at their ends."""

    length: int
    losses: list[float] = field(default_factory=list)
    values_seen: int = 0
    last_end: float | None = None
    rises: int = 0

    def add(self, value: float, train_loss: float | None, direction: int) -> bool:
        """Take one check in; True where it ends a strip."""
        if self.values_seen % self.length == 0:
            self.losses = []
        self.values_seen += 1
        if train_loss is not None:
            self.losses.append(train_loss)
        if self.values_seen % self.length:
            return False
        if self.last_end is not None:
            self.rises = self.rises + 1 if direction * (value - self.last_end) > 0 else 0
        self.last_end = value
        return True
