"""What a stopping rule is told: one frozen, self-checking record per monitored metric. No Lightning, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

Mode = Literal["min", "max"]
PatienceUnit = Literal["checks", "epochs", "steps", "seconds"]
MinDeltaMode = Literal["abs", "rel"]
Rule = Literal["patience", "gl", "pq", "up"]
NanPolicy = Literal["stop", "ignore", "count"]
Reason = Literal["none", "patience", "threshold", "divergence", "non_finite", "gl", "pq", "up"]

# Middle of the range that Prechelt (1998), "Early Stopping - But When?", table 1 and 2, tried for each class.
DEFAULT_ALPHA: dict[str, float] = {"gl": 5.0, "pq": 0.75, "up": 3.0}


@dataclass(frozen=True)
class Settings:
    """How one metric is judged. Field names and defaults are those of the ``EarlyStopping`` callback.

    Raises:
        ValueError: for a value out of its range; the message repeats it and says what is allowed.
    """

    name: str = "metric"
    mode: Mode = "min"
    patience: float = 3
    patience_unit: PatienceUnit = "checks"
    min_delta: float = 0.0
    min_delta_mode: MinDeltaMode = "abs"
    smoothing: float | None = None
    baseline: float | None = None
    start_from: tuple[str, int] | None = None
    rule: Rule = "patience"
    rule_alpha: float | None = None
    rule_strip: int = 5
    stopping_threshold: float | None = None
    divergence_threshold: float | None = None
    nan_policy: NanPolicy = "stop"
    nan_patience: int | None = None

    def __post_init__(self) -> None:
        one_of("mode", self.mode, get_args(Mode))
        one_of("patience_unit", self.patience_unit, get_args(PatienceUnit))
        one_of("min_delta_mode", self.min_delta_mode, get_args(MinDeltaMode))
        one_of("rule", self.rule, get_args(Rule))
        one_of("nan_policy", self.nan_policy, get_args(NanPolicy))
        self._check_patience()
        number("min_delta", self.min_delta, low=0.0)
        if self.min_delta_mode == "rel" and self.min_delta >= 1.0:
            raise ValueError(
                f"`min_delta` with min_delta_mode='rel' is a share of the best value, below 1; got {self.min_delta!r}."
                " For 1 % write min_delta=0.01"
            )
        if self.smoothing is not None:
            number("smoothing", self.smoothing, low=0.0, high=1.0, open_ends=True)
        if self.baseline is not None:
            number("baseline", self.baseline)
        for field in ("stopping_threshold", "divergence_threshold"):
            if getattr(self, field) is not None:
                threshold(field, getattr(self, field))
        self._hold_plain_numbers()
        if self.nan_patience is not None:
            whole("nan_patience", self.nan_patience, low=1)
        whole("rule_strip", self.rule_strip, low=1)
        self._check_alpha()
        self._check_start()

    def _hold_plain_numbers(self) -> None:
        # A tensor or a number of numpy would spread into every sum, and from there into checkpoints.
        for field in ("patience", "min_delta", "baseline", "stopping_threshold", "divergence_threshold"):
            value = getattr(self, field)
            if value is not None and type(value) is not int:
                object.__setattr__(self, field, float(value))

    def _check_patience(self) -> None:
        if _as_float(self.patience) == math.inf:
            return
        if self.patience_unit in ("checks", "steps"):
            whole("patience", self.patience, low=0, hint=f"; patience_unit={self.patience_unit!r} counts whole ones")
        else:
            number("patience", self.patience, low=0.0)

    def _check_alpha(self) -> None:
        if self.rule_alpha is None:
            return
        if self.rule == "patience":
            raise ValueError(
                f"`rule_alpha` belongs to the rules 'gl', 'pq' and 'up'; got rule_alpha={self.rule_alpha!r} with"
                " rule='patience'. Name the rule, or leave `rule_alpha` out"
            )
        if self.rule == "up":
            whole(
                "rule_alpha", self.rule_alpha, low=1, hint="; for rule='up' it is the number of rising strips in a row"
            )
        else:
            number("rule_alpha", self.rule_alpha, low=0.0, open_ends=True)

    def _check_start(self) -> None:
        if self.start_from is None:
            return
        if not isinstance(self.start_from, (tuple, list)) or len(self.start_from) != 2:
            raise ValueError(
                f"`start_from` must be ('epochs', n) or ('steps', n), got {self.start_from!r}; for example"
                " start_from=('epochs', 5)"
            )
        one_of("start_from[0]", self.start_from[0], ("epochs", "steps"))
        whole("start_from[1]", self.start_from[1], low=0)

    @property
    def label(self) -> str:
        """What the judged value is called: with smoothing it is not the logged one."""
        return self.name if self.smoothing is None else f"{self.name} (smoothed)"

    @property
    def alpha(self) -> float:
        """The rule's parameter: alpha of GL and PQ, s of UP."""
        return DEFAULT_ALPHA[self.rule] if self.rule_alpha is None else self.rule_alpha


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse a ``value`` that is none of the ``allowed`` words."""
    if value not in allowed:
        raise ValueError(f"`{name}` can be {', '.join(map(repr, allowed))}, got {value!r}")


def number(
    name: str, value: Any, low: float | None = None, high: float | None = None, open_ends: bool = False
) -> float:
    """``value`` as a float; refuses what is not a finite real number between ``low`` and ``high``.

    Numbers of numpy and tensors of one element count, strings and bools do not.
    """
    real = _as_float(value)
    finite = real is not None and math.isfinite(real)
    if real is not None and finite:
        if open_ends and (low is None or real > low) and (high is None or real < high):
            return real
        if not open_ends and (low is None or real >= low) and (high is None or real <= high):
            return real
    words = []
    if low is not None:
        words.append(f"{'above' if open_ends else 'at least'} {low:g}")
    if high is not None:
        words.append(f"{'below' if open_ends else 'at most'} {high:g}")
    span = f" {' and '.join(words)}" if words else ""
    raise ValueError(f"`{name}` must be a finite number{span}, got {value!r}")


def threshold(name: str, value: Any) -> float:
    """``value`` as a float; refuses what is not a real number. An infinite threshold is one that is never reached."""
    real = _as_float(value)
    if real is None or math.isnan(real):
        raise ValueError(f"`{name}` must be a number, got {value!r}")
    return real


def _as_float(value: Any) -> float | None:
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        # A tensor or an array of several elements.
        return None


def whole(name: str, value: Any, low: int, hint: str = "") -> None:
    """Refuse what is not a whole number of at least ``low``."""
    real = _as_float(value)
    if real is None or not real.is_integer() or real < low:
        raise ValueError(f"`{name}` must be a whole number of at least {low}, got {value!r}{hint}")
