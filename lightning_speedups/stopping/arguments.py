"""The callback's arguments checked, and turned into one ``Settings`` per monitored metric. No Lightning."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from lightning_speedups.stopping.settings import Settings, number, one_of, whole


def checked_monitors(monitor: Any, mode: Any) -> tuple[tuple[str, str], ...]:
    """The monitored metrics as ``(name, mode)`` pairs.

    Raises:
        ValueError: for anything but a name, or a non-empty list of pairs of a name and a mode, each name once.
    """
    if isinstance(monitor, str):
        pairs: list[Any] = [(monitor, mode)]
    elif isinstance(monitor, (list, tuple)) and monitor:
        pairs = list(monitor)
    else:
        raise ValueError(f"`monitor` must be {_MONITOR_FORMS}, got {monitor!r}")
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str) or not pair[0]:
            raise ValueError(f"`monitor` must be {_MONITOR_FORMS}, got {pair!r} in {monitor!r}")
        one_of("mode", pair[1], ("min", "max"))
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"`monitor` must name each metric once, got {names}")
    return tuple((name, str(way)) for name, way in pairs)


def checked_options(callback: Any, check_on_train_epoch_end: bool | None) -> None:
    """Refuse what no fit could work with.

    Raises:
        ValueError: naming the argument, the value and what is allowed.
    """
    one_of("combine", callback.combine, ("any", "all"))
    one_of("snapshot", callback.snapshot, ("memory", "disk"))
    one_of("on_resume", callback.on_resume, ("keep", "reset"))
    if callback.nan_policy is not None:
        one_of("nan_policy", callback.nan_policy, ("stop", "ignore", "count"))
    if callback.name is not None and (not isinstance(callback.name, str) or not callback.name):
        raise ValueError(f"`name` must be a non-empty string or None, got {callback.name!r}")
    if callback.report_dir is not None and not isinstance(callback.report_dir, (str, os.PathLike)):
        raise ValueError(f"`report_dir` must be a path or None, got {callback.report_dir!r}")
    if callback.rule == "pq" and callback.rule_strip == 1:
        raise ValueError(
            "`rule_strip` must be at least 2 for rule='pq', got 1: the progress within a strip of one check is none"
        )
    if callback.check_every_n_steps is None:
        return
    whole("check_every_n_steps", callback.check_every_n_steps, low=1)
    if check_on_train_epoch_end is not None:
        raise ValueError(
            f"`check_every_n_steps` and `check_on_train_epoch_end` both say when to check; got"
            f" {callback.check_every_n_steps!r} and {check_on_train_epoch_end!r}. Leave one of them out"
        )


def checked_flags(**flags: Any) -> None:
    """Refuse what is neither a bool nor 0 or 1 where a bool is meant: a string would count as true."""
    for name, value in flags.items():
        if not (isinstance(value, (bool, int)) and value in (0, 1)):
            raise ValueError(f"`{name}` must be True or False, got {value!r}")


def settings_for(callback: Any) -> list[Settings]:
    """One ``Settings`` per monitored metric, from the callback's attributes as they are now.

    Raises:
        ValueError: for a value out of its range, or one threshold for several metrics.
    """
    count = len(callback.monitors)
    stops = _per_metric("stopping_threshold", callback.stopping_threshold, count)
    diverges = _per_metric("divergence_threshold", callback.divergence_threshold, count)
    baselines = _per_metric("baseline", callback.baseline, count)
    return [
        Settings(
            name=name,
            mode=mode,
            patience=callback.patience,
            patience_unit=callback.patience_unit,
            min_delta=abs(callback.min_delta),
            min_delta_mode=callback.min_delta_mode,
            smoothing=callback.smoothing,
            baseline=baselines[index],
            start_from=None if callback.start_from is None else tuple(callback.start_from),
            rule=callback.rule,
            rule_alpha=callback.rule_alpha,
            rule_strip=callback.rule_strip,
            stopping_threshold=stops[index],
            divergence_threshold=diverges[index],
            nan_policy=callback.nan_policy or ("stop" if callback.check_finite else "count"),
            nan_patience=callback.nan_patience,
        )
        for index, (name, mode) in enumerate(callback.monitors)
    ]


def checked_min_delta(min_delta: Any) -> float:
    """``min_delta`` as given, before the stock class turns its sign."""
    return number("min_delta", min_delta, low=0.0)


def _per_metric(name: str, value: Any, count: int) -> Sequence[float | None]:
    if value is None:
        return [None] * count
    if isinstance(value, (list, tuple)):
        if len(value) != count:
            raise ValueError(f"`{name}` must have one value per monitor ({count}), got {value!r}")
        return value
    if count > 1:
        raise ValueError(f"`{name}` must have one value per monitor ({count}, None for those without), got {value!r}")
    return [value]


_MONITOR_FORMS = (
    "a metric's name, or a list of (name, 'min' or 'max') such as [('val_acc', 'max'), ('val_loss', 'min')]"
)
