"""The trials of one loader: a climb over the worker counts, then rounds of the best few, by turns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from lightning_speedups.loading.children import Children
from lightning_speedups.loading.decide import Tried
from lightning_speedups.loading.search import still_climbs
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.loading.steps import Step
from lightning_speedups.loading.visits import Plan, Visit

SHORTEST_S = 0.12
LONGEST_S = 1.5
ROUNDS = 5
# Rounds that lie no further apart need no more than three of them.
STEADY = 0.05
CONTENDERS = 4
CONTENDS_WITHIN = 1.25
CLIMB_SHARE = 0.45


class Trials:
    """Keeps every visit of every setting.

    Args:
        children: where trials run.
        step: the step that they emulate.
        batch_s: seconds to load a batch without workers, which says how long a trial takes at least.
        seed: the records that all trials read: the same ones, so that none reads them from a cold disk alone.
    """

    def __init__(self, children: Children, step: Step, batch_s: float, seed: int) -> None:
        self._children, self._step, self._batch_s, self._seed = children, step, batch_s, seed
        self._climbed: dict[LoaderSettings, Visit] = {}
        self._rounds: dict[LoaderSettings, list[Visit]] = {}
        self.failed: dict[LoaderSettings, str] = {}

    def climb(self, settings: Sequence[LoaderSettings], always: LoaderSettings) -> None:
        """Try settings once each in ascending order, until more workers bring no more; ``always`` is tried anyway.

        What is found on the way is the warm-up: it fills the caches of the disk, and counts only where time for
        rounds is lacking.
        """
        window_s = self._window_s(CLIMB_SHARE * self._children.left_s / max(1, len(settings)))
        if not self._children.forked:
            self._note_climb(self._children.visit([self._plan(setting, window_s) for setting in settings]))
            return
        rates: list[float] = []
        for setting in settings:
            if setting != always and (not still_climbs(rates) or self._children.left_s <= 0):
                continue
            (found,) = self._children.visit([self._plan(setting, window_s)])
            self._note_climb([found])
            if found.batch_s:
                rates.append(1 / statistics.median(found.batch_s))

    def rounds(self, always: LoaderSettings) -> None:
        """Try the best few by turns, forwards and backwards, until the time is up."""
        contenders = self._contenders(always)
        if len(contenders) < 2 or not self._children.forked:
            return
        window_s = self._window_s(self._children.left_s / (3 * len(contenders)) - self._children.start_s)
        slowest_s = max(self._cost_s(setting, window_s) for setting in contenders)
        for index in range(ROUNDS):
            if self._children.left_s < slowest_s * len(contenders) or (index >= 3 and self._steady(contenders)):
                return
            for setting in contenders if index % 2 else reversed(contenders):
                (found,) = self._children.visit([self._plan(setting, window_s)])
                if found.error is not None:
                    self.failed[setting] = found.error
                else:
                    self._rounds.setdefault(setting, []).append(found)

    def extra(self, setting: LoaderSettings, beside: LoaderSettings) -> tuple[Tried, Tried] | None:
        """Rounds of one more setting, by turns with one that was tried; None where time is lacking."""
        window_s = self._window_s(self._children.left_s / 6 - self._children.start_s)
        new: list[Visit] = []
        old: list[Visit] = []
        for _ in range(3):
            if self._children.left_s < 2 * self._cost_s(setting, window_s):
                break
            first, second = self._children.visit([self._plan(setting, window_s), self._plan(beside, window_s)])
            if first.error is None and second.error is None:
                new.append(first)
                old.append(second)
        if len(new) < 2:
            return None
        self._rounds[setting] = new
        return _tried(setting, new), _tried(beside, old)

    def tried(self) -> list[Tried]:
        """The figures of every setting that gave some: of its rounds, or of the climb where it has no two rounds."""
        found = []
        for setting, visit in self._climbed.items():
            if setting in self.failed:
                continue
            rounds = self._rounds.get(setting, [])
            if len(rounds) >= 2:
                found.append(_tried(setting, rounds))
            elif visit.batch_s:
                found.append(Tried(setting, visit.batch_s, visit.start_s, *visit.waits_s))
        return found

    def rss_mib(self, setting: LoaderSettings) -> float | None:
        """The most memory that the workers of a setting had to themselves; None where it was not seen."""
        visits = [self._climbed.get(setting), *self._rounds.get(setting, [])]
        return max((v.rss_mib for v in visits if v is not None and v.rss_mib is not None), default=None)

    def _contenders(self, always: LoaderSettings) -> list[LoaderSettings]:
        speeds = {s: statistics.median(v.batch_s) for s, v in self._climbed.items() if v.batch_s}
        if not speeds:
            return []
        best = min(speeds.values())
        near = sorted((s for s in speeds if speeds[s] <= CONTENDS_WITHIN * best), key=lambda s: s.num_workers)
        # The fewest of those that are near, and the fastest: the answer is between them.
        chosen = {*near[: CONTENDERS - 1], min(speeds, key=lambda s: speeds[s])} | ({always} & set(speeds))
        return sorted(chosen, key=lambda s: s.num_workers)

    def _steady(self, contenders: Sequence[LoaderSettings]) -> bool:
        return all(_tried(s, self._rounds[s]).spread <= STEADY for s in contenders if s in self._rounds)

    def _note_climb(self, found: list[Visit]) -> None:
        for visit in found:
            self._climbed[visit.settings] = visit
            if visit.error is not None:
                self.failed[visit.settings] = visit.error

    def _plan(self, settings: LoaderSettings, window_s: float) -> Plan:
        timeout_s = self._children.patience_s(self._batch_s + self._step.wall_s)
        return Plan(settings, window_s, timeout_s, self._step, self._seed)

    def _cost_s(self, settings: LoaderSettings, window_s: float) -> float:
        seen = self._climbed.get(settings)
        start_s = self._batch_s if seen is None else seen.start_s
        return self._children.start_s + 2 * start_s + window_s

    @staticmethod
    def _window_s(wished_s: float) -> float:
        return min(LONGEST_S, max(SHORTEST_S, wished_s))


def _tried(setting: LoaderSettings, rounds: Sequence[Visit]) -> Tried:
    return Tried(
        setting,
        tuple(statistics.median(visit.batch_s) for visit in rounds if visit.batch_s),
        statistics.median(visit.start_s for visit in rounds),
        statistics.median(visit.waits_s[0] for visit in rounds),
        statistics.median(visit.waits_s[1] for visit in rounds),
    )


def with_prefetch(settings: LoaderSettings, factor: int) -> LoaderSettings:
    """The same with another queue."""
    return replace(settings, prefetch_factor=factor)
