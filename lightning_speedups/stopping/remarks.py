"""What early stopping has to say about the metrics that it saw, or did not see."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lightning_speedups._lightning import Voice
from lightning_speedups.stopping.observing import Observation
from lightning_speedups.stopping.rules import Verdict
from lightning_speedups.stopping.spelling import closest, misspelling


def remark(
    seen: Observation, names: Sequence[str], keys: Iterable[str], strict: bool, may_come: bool, voice: Voice
) -> None:
    """Say once what is wrong with a metric: missing, not logged again, on some ranks only.

    Args:
        seen: what all ranks saw.
        names: the monitored metrics.
        keys: every key that is logged so far.
        strict: raise for a missing metric, instead of a warning.
        may_come: no validation has run yet, so a missing metric need not be a mistake unless its name looks like one.
        voice: the callback's.

    Raises:
        RuntimeError: where ``strict`` and a metric is missing; on all ranks, since all have seen the same.
    """
    for name, metric in zip(names, seen.metrics, strict=True):
        if not metric.known:
            if not may_come or misspelling(name, keys) is not None:
                missing(name, keys, strict, voice)
        elif metric.value is None:
            voice.say_once(f"{name!r} has not been logged again since the last check: not counted", about=name)
        elif metric.absent_ranks:
            voice.warn_once(
                f"{name!r} is logged on some ranks only (not on {list(metric.absent_ranks)}); they are judged by the"
                " mean of those that have it. Log it on all ranks, with sync_dist=True",
                about=name,
            )


def missing(name: str, keys: Iterable[str], strict: bool, voice: Voice) -> None:
    """A metric is not there: raise where ``strict``, else warn once.

    Raises:
        RuntimeError: naming the closest logged key.
    """
    near = closest(name, keys)
    meant = "." if near is None else f"; did you mean {near!r}?"
    logged = ", ".join(sorted(keys)) or "none"
    message = f"{name!r} is not among the logged metrics{meant} Logged: {logged}"
    if strict:
        raise RuntimeError(f"EarlyStopping: {message}")
    voice.warn_once(f"{message}. It will not stop on it (strict=False)", about=name)


def mistyped(names: Sequence[str], keys: set[str]) -> list[str]:
    """The monitored names that are not among the logged keys and look like a misspelling of one."""
    return [name for name in names if name not in keys and misspelling(name, keys) is not None]


def with_loss(verdict: Verdict, seen: Observation, voice: Voice) -> Verdict:
    """A verdict on a value that is not finite, with what the training loss says of it: undefined, or diverged.

    Where the value does not stop the run, it is said once.
    """
    values = [metric.value for metric in seen.metrics]
    if seen.last_loss is None or all(value is None or math.isfinite(value) for value in values):
        return verdict
    if math.isfinite(seen.last_loss):
        words = f"the training loss is finite ({seen.last_loss:.4g}): an undefined metric, not divergence"
    else:
        words = f"the training loss is not finite either ({seen.last_loss}): the run has diverged"
    if not verdict.stop:
        voice.say_once(f"{verdict.message}; {words}", about="not finite")
    return replace(verdict, message=f"{verdict.message}; {words}")
