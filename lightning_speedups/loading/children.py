"""The child processes in which a loader is tried, on all ranks together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lightning_speedups.loading.applying import copied
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.loading.visits import Plan, Visit, visit, visits
from lightning_speedups.measuring.trial import TrialOutcome, run_in_child

T = TypeVar("T")
Gather = Callable[[Any], list[Any]]

# What a child gets beyond the work that it is asked for: its start and, unless forked, the import of torch.
FORKED_START_S = 0.1
FRESH_START_S = 4.0
PATIENCE_S = 3.0


def alone(value: Any) -> list[Any]:
    """What all ranks say where there is one."""
    return [value]


@dataclass(frozen=True)
class Answer:
    """What one rank's child said."""

    value: Any
    error: str | None
    timed_out: bool

    @classmethod
    def of(cls, outcome: TrialOutcome[Any]) -> Answer:
        """The part of an outcome that the ranks tell one another."""
        return cls(outcome.value, outcome.error, outcome.timed_out)


class Children:
    """Runs functions on a loader in children, at the same time on all ranks, and keeps the time.

    Args:
        loader: what is tried; this process's is never iterated.
        start_method: how its workers would start; children start in the same way.
        budget_s: seconds for all of it.
        gather: gives every rank's value to every rank.
    """

    def __init__(self, loader: Any, start_method: str, budget_s: float, gather: Gather = alone) -> None:
        # The copy has no live workers: a child that ended those would end the parent's.
        self._loader = copied(loader, LoaderSettings.of(loader))
        self._start_method, self._budget_s, self._gather = start_method, budget_s, gather
        self._started, self._slowest_s = time.perf_counter(), 0.0
        self.own = Answer(None, None, False)
        self.start_s = FORKED_START_S if start_method == "fork" else FRESH_START_S

    @property
    def forked(self) -> bool:
        """Whether children cost next to nothing to start."""
        return self._start_method == "fork"

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning, by the slowest rank's clock at the last answer: the same on all ranks."""
        return self._slowest_s

    @property
    def left_s(self) -> float:
        """Seconds that are left of the budget."""
        return max(0.0, self._budget_s - self.spent_s)

    def patience_s(self, batch_s: float) -> float:
        """How long workers may be silent before they count as hanging; a dead one is noticed no sooner."""
        return PATIENCE_S + 3 * self.start_s + 10 * batch_s

    def limit(self, budget_s: float) -> None:
        """Lower the budget, once it is known what tuning is worth."""
        self._budget_s = min(self._budget_s, budget_s)

    def ask(self, fn: Callable[..., T], *args: Any, timeout_s: float) -> list[Answer]:
        """Every rank's answer to ``fn(loader, *args)``; this rank's is kept in ``own``."""
        outcome = run_in_child(
            fn, self._loader, *args, timeout_s=self.start_s + timeout_s, start_method=self._start_method
        )
        self.own = Answer.of(outcome)
        return self.agree(self.own)

    def agree(self, value: Any) -> list[Any]:
        """Every rank's value, and the time with it."""
        told = self._gather((time.perf_counter() - self._started, value))
        self._slowest_s = max(elapsed for elapsed, _ in told)
        return [value for _, value in told]

    def visit(self, plans: Sequence[Plan]) -> list[Visit]:
        """A trial of each plan, merged over the ranks: the slowest rank is what a step waits for."""
        if self.forked:
            return [self._merged([plan], self.ask(visit, plan, timeout_s=_limit_s([plan])))[0] for plan in plans]
        return self._merged(plans, self.ask(visits, tuple(plans), timeout_s=_limit_s(plans)))

    def _merged(self, plans: Sequence[Plan], answers: list[Answer]) -> list[Visit]:
        failed = next((answer for answer in answers if answer.error is not None), None)
        if failed is not None:
            return [Visit(plan.settings, error=failed.error) for plan in plans]
        per_rank = [answer.value if isinstance(answer.value, tuple) else (answer.value,) for answer in answers]
        by_setting = [{found.settings: found for found in found_there} for found_there in per_rank]
        return [_slowest([ranks[plan.settings] for ranks in by_setting]) for plan in plans]


def _limit_s(plans: Sequence[Plan]) -> float:
    return sum(plan.window_s + plan.timeout_s for plan in plans) + PATIENCE_S


def _slowest(found: list[Visit]) -> Visit:
    failed = next((one for one in found if one.error is not None), None)
    if failed is not None:
        return failed
    memory = [one.rss_mib for one in found if one.rss_mib is not None]
    return replace(
        found[0],
        batch_s=tuple(max(rates) for rates in zip(*(one.batch_s for one in found), strict=False)),
        start_s=max(one.start_s for one in found),
        waits_s=max(one.waits_s for one in found),
        rss_mib=max(memory) if memory else None,
        threads=max((one.threads or 0 for one in found), default=None),
    )
