"""From the trials' figures to a setting. Pure: no clock, no process, no loader."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.measuring.stats import spread_pct

# Above this spread of its own repeats a trial decides nothing (measured: one loader's rate spreads by 20 to 35 % on
# a machine that others use).
TOO_NOISY_PCT = 15.0
# What a figure of a single round is taken to be worth.
UNKNOWN_SPREAD = 0.1
# A gain that every single round shows by this much is one, however far the rounds lie apart.
SURE_GAIN = 1.3
# Fewer workers that are as fast are taken only where "as fast" is known this well.
SHRINKS_WITHIN = 0.05
# Starting workers must cost this share of an epoch before keeping them is worth their memory.
START_SHARE = 0.02


@dataclass(frozen=True)
class Tried:
    """One setting's figures over all its rounds.

    Args:
        settings: the setting.
        rounds_s: seconds per batch in the steady state, the step included; one value a round.
        start_s: seconds from asking for an epoch's first batch to having it.
        wait_s: mean wait for a batch.
        late_s: 95th percentile of the wait.
    """

    settings: LoaderSettings
    rounds_s: tuple[float, ...]
    start_s: float = 0.0
    wait_s: float = 0.0
    late_s: float = 0.0

    @property
    def batch_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds_s)

    @property
    def spread(self) -> float:
        """How far the rounds lie apart, as a share of their median."""
        return spread_pct(self.rounds_s) / 100 if len(self.rounds_s) > 1 else UNKNOWN_SPREAD

    def epoch_s(self, question: Question) -> float:
        """Seconds of an epoch on average over those to come, the start of the workers included.

        Workers that persist start once, and then still have to load each epoch's first batch, which takes as long as
        it does alone.
        """
        start_s = self.start_s
        if self.settings.persistent_workers or (question.keeps_workers and self.settings.num_workers):
            start_s = min(question.alone_s, self.start_s) + self.start_s / question.epochs
        return start_s + (question.batches - 1) * self.batch_s


@dataclass(frozen=True)
class Question:
    """What is to be decided.

    Args:
        current: the loader's own setting.
        alone_s: seconds to load a batch without workers and without the step.
        batches: batches in an epoch.
        epochs: epochs still to run.
        step_s: seconds of a step; None where not known.
        tolerance: the share of the epoch's time that is no difference.
        may_persist: whether workers may be kept from epoch to epoch.
        keeps_workers: whether they are likely to be kept later, though they may not be yet.
    """

    current: LoaderSettings
    alone_s: float
    batches: float
    epochs: float
    step_s: float | None
    tolerance: float
    may_persist: bool
    keeps_workers: bool = False


@dataclass(frozen=True)
class Decision:
    """A setting, how many times as fast an epoch gets, and why.

    ``tolerance`` is the share that counted as no difference; ``noisy_pct`` the spread where it forbids a change.
    """

    settings: LoaderSettings
    gain: float
    reason: str
    limit: bool | None
    tolerance: float
    noisy_pct: float | None = None


def decide(tried: Sequence[Tried], question: Question) -> Decision:
    """The fewest workers within tolerance of the best epoch, unless the current setting does as well.

    Args:
        tried: at least the current setting's figures; the others are compared with them.
        question: what they are to serve.

    Raises:
        ValueError: where the current setting was not tried.

    Example:
        >>> tried = [Tried(LoaderSettings(workers), (s, s)) for workers, s in ((0, 0.08), (1, 0.08), (2, 0.04))]
        >>> decide(tried, Question(LoaderSettings(), 0.08, 100, 10, None, 0.02, True)).settings.num_workers
        2
    """
    at_current = next((row for row in tried if row.settings == question.current), None)
    if at_current is None:
        raise ValueError(f"the current setting ({question.current}) was not tried; it is what others are compared with")
    epoch_s = {row.settings: row.epoch_s(question) for row in tried}
    now_s, best_s = epoch_s[question.current], min(epoch_s.values())
    tolerance = max(question.tolerance, statistics.median(row.spread for row in tried))
    limit = _is_limit(at_current, question)
    enough = [row for row in tried if epoch_s[row.settings] <= best_s * (1 + tolerance)]
    fewest = min(enough, key=lambda row: (row.settings.num_workers, row.settings.in_flight, epoch_s[row.settings]))
    gain = now_s / epoch_s[fewest.settings]
    if fewest is at_current:
        return Decision(question.current, 1.0, "no other setting is faster", limit, tolerance)
    if at_current in enough and not _shrinks(at_current, fewest, gain, question, tolerance):
        return Decision(question.current, 1.0, "no other setting is faster beyond the noise", limit, tolerance)
    if at_current in enough:
        return Decision(fewest.settings, gain, "as fast with fewer workers", limit, tolerance)
    noise = max(at_current.spread, fewest.spread)
    if 100 * noise > TOO_NOISY_PCT and not _sure(at_current, fewest):
        reason = f"too noisy: unchanged (the trials spread by {100 * noise:.0f} %)"
        return Decision(question.current, 1.0, reason, limit, tolerance, noisy_pct=100 * noise)
    return Decision(fewest.settings, gain, "the fewest workers within tolerance of the best", limit, tolerance)


def persists(chosen: Tried, question: Question) -> bool:
    """Whether keeping the workers between epochs saves more than a little."""
    if not question.may_persist or question.epochs < 2 or chosen.settings.num_workers == 0:
        return False
    kept = replace(chosen, settings=replace(chosen.settings, persistent_workers=True)).epoch_s(question)
    anew = replace(chosen, settings=replace(chosen.settings, persistent_workers=False))
    started_s = anew.epoch_s(replace(question, keeps_workers=False))
    return started_s - kept > START_SHARE * started_s


def is_jittery(row: Tried, question: Question) -> bool:
    """Whether steps wait although workers make batches fast enough: then a longer queue helps, more workers do not."""
    if question.step_s is None or row.settings.num_workers == 0:
        return False
    fast_enough = question.alone_s / row.settings.num_workers <= question.step_s
    return fast_enough and row.wait_s > question.tolerance * question.step_s and row.late_s > 3 * row.wait_s


def _is_limit(at_current: Tried, question: Question) -> bool | None:
    if question.step_s is None:
        return None
    return at_current.batch_s > question.step_s * (1 + max(question.tolerance, at_current.spread))


def _shrinks(now: Tried, fewest: Tried, gain: float, question: Question, tolerance: float) -> bool:
    """Whether fewer workers do as well: only where the step that they must feed is known, and the trials agree."""
    fewer = fewest.settings.num_workers < now.settings.num_workers
    return fewer and question.step_s is not None and tolerance <= SHRINKS_WITHIN and gain > 1 - SHRINKS_WITHIN / 10


def _sure(now: Tried, then: Tried) -> bool:
    pairs = list(zip(now.rounds_s, then.rounds_s, strict=False))
    return len(pairs) > 1 and min(old / new for old, new in pairs) > SURE_GAIN
