"""The decision: one value of one metric in, one verdict out. Pure Python; no Lightning, no torch, no clock.

With default settings the verdicts are those of Lightning's ``EarlyStopping`` on the same values, in the metric's
own precision: pass ``rounded`` to have sums rounded as that type rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from lightning_speedups.stopping.prechelt import Strips, generalization_loss, progress_quotient, training_progress
from lightning_speedups.stopping.settings import Reason, Settings

Combine = Literal["any", "all"]

# A span of epochs is a difference of two sums of fractions; its last bits are noise.
_SPAN_TOLERANCE = 1e-9


class Clock(NamedTuple):
    """When a check was taken: epochs finished (fractions allowed), optimizer steps done, seconds trained."""

    epoch: float = 0.0
    step: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What one check says: whether the metric improved, whether its rule wants to stop, and why."""

    improved: bool
    stop: bool
    reason: Reason
    message: str


class Track:
    """Judges the values of one metric, one after another.

    Example:
        >>> track = Track(Settings(name="val_loss", patience=2))
        >>> [track.observe(v, Clock(epoch=i + 1)).stop for i, v in enumerate([1.0, 0.5, 0.6, 0.7])]
        [False, False, False, True]
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.best: float | None = None
        self.best_at: Clock | None = None
        self.wait = 0
        self.anchor = Clock()
        self.average: float | None = None
        self.lowest: float | None = None
        self.non_finite_run = 0
        self.strips = Strips(settings.rule_strip)
        self.rule_verdict: Reason = "none"
        self.rule_value = 0.0
        self.standing = Verdict(False, False, "none", "no check yet")

    @property
    def direction(self) -> int:
        """+1 where lower is better, -1 where higher is."""
        return 1 if self.settings.mode == "min" else -1

    def bar(self, rounded: Callable[[float], float] = float) -> float | None:
        """The value that the next one must beat (strictly), or None while any value would do."""
        if self.best is None or not math.isfinite(self.best):
            return self.best
        return rounded(self.best - self.direction * self._margin())

    def observe(
        self,
        value: float,
        at: Clock,
        train_loss: float | None = None,
        rounded: Callable[[float], float] = float,
    ) -> Verdict:
        """Judge the next value; a value that is not counted leaves the verdict before it standing.

        Args:
            value: the metric.
            at: when it was measured.
            train_loss: mean training loss since the check before; only ``rule="pq"`` needs it.
            rounded: rounds a sum to the metric's own floating-point type.

        Raises:
            ValueError: where ``rule="pq"`` gets no training loss.
        """
        self.standing = self._observe(value, at, train_loss, rounded)
        return self.standing

    def _observe(self, value: float, at: Clock, train_loss: float | None, rounded: Callable[[float], float]) -> Verdict:
        if not self._started(at):
            self.anchor = at
            return Verdict(False, False, "none", f"not judged before {_words(self.settings.start_from)}")
        refusal = self._judge_finiteness(value)
        if refusal is not None:
            return refusal
        judged = self._smoothed(value)
        crossed = self._crossed(judged, rounded)
        if crossed is not None and crossed[0] == "divergence":
            return Verdict(False, True, *crossed)
        improved = self._note_best(judged, at, rounded)
        if crossed is not None:
            return Verdict(improved, True, *crossed)
        self._count_wait(judged, improved, at)
        if self.settings.rule == "patience":
            return self._by_patience(improved, at)
        return self._by_rule(judged, improved, train_loss)

    def waited(self, at: Clock) -> float:
        """How much of the patience is used up, in its own unit."""
        unit = self.settings.patience_unit
        if unit == "checks":
            return self.wait
        index = {"epochs": 0, "steps": 1, "seconds": 2}[unit]
        return at[index] - self.anchor[index]

    def state_dict(self) -> dict[str, Any]:
        """History only, in plain types: nothing of the settings."""
        return {
            "best": self.best,
            "best_at": None if self.best_at is None else list(self.best_at),
            "wait": self.wait,
            "anchor": list(self.anchor),
            "average": self.average,
            "lowest": self.lowest,
            "non_finite_run": self.non_finite_run,
            "strips": {key: value for key, value in asdict(self.strips).items() if key != "length"},
            "rule_verdict": self.rule_verdict,
            "rule_value": self.rule_value,
            "standing": asdict(self.standing),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the history of ``state_dict``; the settings stay as they are."""
        best_at = state["best_at"]
        self.best, self.wait = state["best"], state["wait"]
        self.best_at = None if best_at is None else Clock(*best_at)
        self.anchor = Clock(*state["anchor"])
        self.average, self.lowest = state["average"], state["lowest"]
        self.non_finite_run = state["non_finite_run"]
        self.strips = Strips(self.settings.rule_strip, **state["strips"])
        self.rule_verdict, self.rule_value = state["rule_verdict"], state["rule_value"]
        self.standing = Verdict(**state["standing"])

    def _started(self, at: Clock) -> bool:
        if self.settings.start_from is None:
            return True
        unit, count = self.settings.start_from
        return (at.epoch if unit == "epochs" else at.step) > count

    def _judge_finiteness(self, value: float) -> Verdict | None:
        if math.isfinite(value):
            self.non_finite_run = 0
            return None
        self.non_finite_run += 1
        policy, patience = self.settings.nan_policy, self.settings.nan_patience
        limit = patience if patience is not None else (1 if policy == "stop" else None)
        run = f"{self.settings.name} = {value} is not finite ({self.non_finite_run} in a row)"
        if limit is not None and self.non_finite_run >= limit:
            return Verdict(False, True, "non_finite", f"{run}; best before it {_shown(self.best)}")
        if policy == "count":
            return None
        return replace(self.standing, improved=False, message=f"{run}: not counted; {_first(self.standing.message)}")

    def _smoothed(self, value: float) -> float:
        weight = self.settings.smoothing
        if weight is None or not math.isfinite(value):
            return value
        self.average = value if self.average is None else weight * self.average + (1 - weight) * value
        return self.average

    def _margin(self) -> float:
        if self.best is None or self.settings.min_delta_mode == "abs":
            return self.settings.min_delta
        return self.settings.min_delta * abs(self.best)

    def _note_best(self, judged: float, at: Clock, rounded: Callable[[float], float]) -> bool:
        if math.isfinite(judged) and (self.lowest is None or self.direction * (judged - self.lowest) < 0):
            self.lowest = judged
        improved = self._beats_best(judged, rounded)
        if improved:
            self.best, self.best_at = judged, at
        return improved

    def _count_wait(self, judged: float, improved: bool, at: Clock) -> None:
        baseline = self.settings.baseline
        if improved and (baseline is None or self.direction * (judged - baseline) < 0):
            self.wait, self.anchor = 0, at
        else:
            self.wait += 1

    def _beats_best(self, judged: float, rounded: Callable[[float], float]) -> bool:
        if math.isnan(judged):
            return False
        if self.best is None or not math.isfinite(self.best):
            # The worst value of all is where the search starts: it improves on nothing.
            best = self.direction * math.inf if self.best is None else self.best
            return self.direction * judged < self.direction * best
        # The margin goes to the side of the value, as in the stock class: the two sides round differently.
        moved = rounded(judged + self.direction * rounded(self._margin()))
        return self.direction * moved < self.direction * self.best

    def _crossed(self, judged: float, rounded: Callable[[float], float]) -> tuple[Reason, str] | None:
        name, stop, diverged = self.settings.label, self.settings.stopping_threshold, self.settings.divergence_threshold
        if stop is not None and self.direction * judged < self.direction * rounded(stop):
            return "threshold", f"{name} = {judged:.4g} reached stopping_threshold={stop:g}"
        if diverged is not None and self.direction * judged > self.direction * rounded(diverged):
            return "divergence", f"{name} = {judged:.4g} passed divergence_threshold={diverged:g}"
        return None

    def _by_patience(self, improved: bool, at: Clock) -> Verdict:
        name, unit = self.settings.label, self.settings.patience_unit
        if self.wait == 0:
            return Verdict(improved, False, "none", f"{name} improved to {_shown(self.best)}; next {self._bar_words()}")
        waited = self.waited(at)
        used = f"wait {waited:g}/{self.settings.patience:g} {unit}"
        if waited < self.settings.patience - _SPAN_TOLERANCE:
            return Verdict(improved, False, "none", f"{name} did not improve ({used}); {self._bar_words()}")
        if self.non_finite_run >= self.wait:
            return Verdict(
                improved, True, "non_finite", f"{name} was not finite in the last {self.wait} checks ({used})"
            )
        short = ""
        if self.settings.baseline is not None and self.best is not None:
            short = f" or did not beat baseline={self.settings.baseline:g}"
        message = f"{name} did not improve{short} ({used}); best {_shown(self.best)}"
        return Verdict(improved, True, "patience", message)

    def _by_rule(self, judged: float, improved: bool, train_loss: float | None) -> Verdict:
        rule, alpha, name = self.settings.rule, self.settings.alpha, self.settings.label
        if rule == "pq" and train_loss is None:
            raise ValueError("rule='pq' compares with the training loss, and none came since the last check")
        if math.isfinite(judged):
            self._apply_rule(judged, train_loss)
        stop = self.rule_verdict != "none"
        sign = ">=" if rule == "up" else ">"
        compared = f"{rule.upper()} {self.rule_value:.3g} {sign if stop else 'within'} {alpha:g}"
        return Verdict(improved, stop, self.rule_verdict, f"{name}: {compared}; best {_shown(self.best)}")

    def _apply_rule(self, judged: float, train_loss: float | None) -> None:
        rule, alpha = self.settings.rule, self.settings.alpha
        ended = self.strips.add(judged, train_loss, self.direction)
        if rule != "gl" and not ended:
            return
        if rule == "up":
            self.rule_value = float(self.strips.rises)
            self.rule_verdict = rule if self.rule_value >= alpha else "none"
            return
        lowest = judged if self.lowest is None else self.lowest
        self.rule_value = generalization_loss(judged, lowest, self.direction)
        if rule == "pq":
            self.rule_value = progress_quotient(self.rule_value, training_progress(self.strips.losses))
        self.rule_verdict = rule if self.rule_value > alpha else "none"

    def _bar_words(self) -> str:
        bar = self.bar()
        if bar is None:
            return "any finite value would be the first"
        needs = f"needs {'<' if self.direction > 0 else '>'} {bar:.6g}"
        if self.settings.min_delta == 0.0 or self.settings.min_delta_mode == "abs":
            return needs
        side = "below" if self.direction > 0 else "above"
        return f"{needs} ({100 * self.settings.min_delta:g}% {side} {_shown(self.best)})"


def combined(verdicts: Sequence[Verdict], how: Combine) -> Verdict:
    """One verdict from those of several metrics; ``improved`` is the first metric's.

    ``"any"`` stops when one of them wants to, ``"all"`` when all of them do. A metric that is not finite or has
    diverged ends the run either way.
    """
    wanting = [verdict for verdict in verdicts if verdict.stop]
    broken = [verdict for verdict in wanting if verdict.reason in ("non_finite", "divergence")]
    deciding = broken or wanting
    stop = bool(broken) or (bool(wanting) and (how == "any" or len(wanting) == len(verdicts)))
    if not stop:
        return Verdict(verdicts[0].improved, False, "none", "; ".join(verdict.message for verdict in verdicts))
    message = "; ".join(verdict.message for verdict in deciding)
    return Verdict(verdicts[0].improved, True, deciding[0].reason, message)


def _first(message: str) -> str:
    """What a standing verdict said before further values that are not counted were put in front of it."""
    return message.rpartition(": not counted; ")[2]


def _shown(value: float | None) -> str:
    return "none yet" if value is None else f"{value:.6g}"


def _words(start: tuple[str, int] | None) -> str:
    return "" if start is None else f"{start[0].removesuffix('s')} {start[1]}"
