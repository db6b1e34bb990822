"""The loaders of one fit: tuned when they are ready, decided on again when the step is known. Knows of no Lightning."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from lightning_speedups import _torch
from lightning_speedups.loading import applying, memo, state
from lightning_speedups.loading.children import Gather
from lightning_speedups.loading.conditions import Conditions, Known
from lightning_speedups.loading.decide import Question, Tried, persists
from lightning_speedups.loading.demand import Demand
from lightning_speedups.loading.report import LoaderPlan
from lightning_speedups.loading.room import Room
from lightning_speedups.loading.search import worth_again_s
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.loading.standalone import from_cache, given_to, not_a_loader
from lightning_speedups.loading.tuner import Tuner
from lightning_speedups.measuring.budget import CpuBudget
from lightning_speedups.reporting import text

T = TypeVar("T")
Say = Callable[[str], None]

# The parts of the time budget: before the fit for training and for validation; the rest for the second decision.
TRAIN_SHARE = 0.65
VAL_SHARE = 0.15
# In so few epochs the second decision, after the first of them, comes too late to count on.
_FEW_EPOCHS = 4


@dataclass(frozen=True)
class Setting:
    """What the user asked for and what the machine has; ``may_persist`` is False where loaders are made anew."""

    apply: bool
    time_budget_s: float
    tolerance: float
    cpus: CpuBudget
    room: Room
    device: str
    ranks: int
    cache: Path | None
    gather: Gather
    may_persist: bool = True


@dataclass
class Tuned:
    """One loader and what is known of it. The loader itself is not held."""

    loader: weakref.ReferenceType[Any]
    plan: LoaderPlan
    conditions: Conditions
    known: Known | None = None
    chosen: Tried | None = None
    remembered: state.State = field(default_factory=dict)


class Session:
    """What one fit's tuning does, and its report.

    Args:
        setting: what was asked for and what the machine has.
        say: tells the user something.
        warn: warns the user.
    """

    def __init__(self, setting: Setting, say: Say, warn: Say) -> None:
        self._setting, self._say, self._warn = setting, say, warn
        self.tuned: dict[tuple[str, int], Tuned] = {}
        self._without: dict[tuple[str, int], LoaderPlan] = {}
        self.spent_s = 0.0

    @property
    def plans(self) -> tuple[LoaderPlan, ...]:
        """The plans so far, those of training first."""
        everything = {**{key: tuned.plan for key, tuned in self.tuned.items()}, **self._without}
        return tuple(everything[key] for key in sorted(everything, key=lambda key: (key[0] != "train", *key)))

    @property
    def applies(self) -> bool:
        """Whether settings are to be changed, and not only advised."""
        return self._setting.apply

    def say(self, message: str) -> None:
        """Tell the user something."""
        self._say(message)

    def first_of_all(self, value: T | None) -> T | None:
        """What the first rank that has something says."""
        return next((found for found in self._setting.gather(value) if found is not None), None)

    def ready(self, stage: str, index: int, count: int, loader: Any, batches: float, epochs: float) -> None:
        """A loader is about to be used: tune it, or give it what was found for the one before it."""
        started = time.perf_counter()
        try:
            if not isinstance(loader, DataLoader):
                self._without[stage, index] = not_a_loader(stage, index, loader)
                return
            earlier = self.tuned.get((stage, index))
            if earlier is not None and LoaderSettings.of(loader).as_dict() == earlier.plan.before:
                self.take_over(earlier, loader)
                return
            conditions = self.conditions(stage, index, count, batches, epochs)
            self._tune(loader, conditions)
        finally:
            self.spent_s += time.perf_counter() - started

    def once_more(self, tuned: Tuned, demand: Demand, epochs: float) -> None:
        """Decide again on a loader at the end of an epoch, knowing the step that it has to feed."""
        started = time.perf_counter()
        try:
            loader = tuned.loader()
            if loader is not None:
                self._decide_again(tuned, loader, demand, epochs)
        finally:
            self.spent_s += time.perf_counter() - started

    def realised(self, tuned: Tuned, demand: Demand) -> None:
        """Note what the settings have brought in a whole epoch."""
        now = LoaderSettings.from_dict(tuned.plan.after)
        if not tuned.plan.applied or tuned.known is None or not tuned.known.probe.batch_s:
            return
        before = LoaderSettings.from_dict(tuned.plan.before)
        gain = _period_without_s(before, tuned, demand.step.wall_s) / demand.period_s
        tuned.plan = replace(tuned.plan, gain_realised=gain)
        self._say(
            f"{_name(tuned)}: {now}, measured over {demand.steps} steps: {text.seconds(demand.period_s)} a step,"
            f" {text.seconds(demand.gap_s)} of it between steps; {text.ratio(gain)} of what {before} would give"
        )

    def watch(self, tuned: Tuned) -> None:
        """Workers that persist miss what the program changes in the dataset: look whether it does."""
        loader = tuned.loader()
        if loader is None or not loader.persistent_workers or not tuned.plan.applied:
            return
        changed = self.agreed_changes(tuned, loader)
        if not changed or LoaderSettings.from_dict(tuned.plan.before).persistent_workers:
            return
        settings = replace(LoaderSettings.of(loader), persistent_workers=False)
        applying.apply(loader, settings)
        tuned.plan = replace(tuned.plan, after=settings.as_dict())
        self._warn(
            f"{_name(tuned)}: the program changed {changed[0]} between epochs, which workers that persist do not see:"
            " persistent_workers=False from the next epoch on; the last epoch was loaded with the earlier value"
        )

    def keep_streams(self) -> None:
        """Persistent workers that were not asked for by the program leave its random stream as it would be."""
        for tuned in self.tuned.values():
            loader = tuned.loader() if tuned.plan.applied and not tuned.plan.before["persistent_workers"] else None
            if loader is not None and loader.persistent_workers:
                _torch.draws_as_if_workers_were_new(loader)

    def roll_back(self) -> list[str]:
        """Give every loader its own settings again; the names of those that had others."""
        undone = []
        for tuned in self.tuned.values():
            loader = tuned.loader()
            if loader is not None and tuned.plan.applied:
                applying.apply(loader, LoaderSettings.from_dict(tuned.plan.before))
                tuned.plan = replace(tuned.plan, applied=False, message=f"{tuned.plan.message} (rolled back)")
                undone.append(_name(tuned))
        return undone

    def forget(self) -> None:
        """Keep the plans and nothing that they came from."""
        for tuned in self.tuned.values():
            tuned.known, tuned.chosen, tuned.remembered = None, None, {}

    def conditions(self, stage: str, index: int, count: int, batches: float, epochs: float) -> Conditions:
        """Under which a loader is used, one of ``count`` of its stage."""
        setting = self._setting
        share = TRAIN_SHARE if stage == "train" else VAL_SHARE
        # Loaders of both stages are alive at once, and how many the other stage has may not be known yet: one at least.
        return Conditions(
            stage=stage,
            index=index,
            batches=batches,
            epochs=epochs,
            cpus=setting.cpus,
            room=setting.room.shared((count + max(1, self._others(stage))) * setting.ranks),
            budget_s=share * setting.time_budget_s / count,
            tolerance=setting.tolerance,
            device=setting.device,
            ranks=setting.ranks,
            keeps_workers=stage == "train" and setting.may_persist and epochs >= _FEW_EPOCHS,
        )

    def _others(self, stage: str) -> int:
        return sum(1 for other, _ in (*self.tuned, *self._without) if other != stage)

    def _tune(self, loader: Any, conditions: Conditions) -> None:
        key = self._key(loader, conditions)
        kept = self._kept(key)
        if kept is not None:
            plan, known, chosen = from_cache(conditions.stage, conditions.index, loader, kept), None, None
        else:
            tuner = Tuner(loader, conditions, self._setting.gather)
            plan, known, chosen = tuner.plan(), tuner.known, tuner.chosen
        self._settle(Tuned(weakref.ref(loader), plan, conditions, known, chosen), loader)
        if kept is None and plan.trials:
            self._keep(key, plan)

    def _settle(self, tuned: Tuned, loader: Any) -> None:
        """Apply the plan where that is wanted, and say it."""
        if self._setting.apply:
            tuned.plan = given_to(loader, tuned.plan)
        if tuned.plan.after.get("num_workers"):
            tuned.remembered = state.record(loader.dataset, type(loader.dataset).__name__)
        self.tuned[tuned.conditions.stage, tuned.conditions.index] = tuned
        advised = "" if tuned.plan.applied or not tuned.plan.changed else "; advised only"
        self._say(f"{_name(tuned)}: {tuned.plan.message}{advised}")
        for line in tuned.plan.advice:
            self._say(f"{_name(tuned)}: {line}")

    def take_over(self, earlier: Tuned, loader: Any) -> None:
        """A loader that was made anew gets the settings of the one that it replaces."""
        earlier.loader = weakref.ref(loader)
        if earlier.plan.applied:
            earlier.plan = given_to(loader, earlier.plan)

    def _decide_again(self, tuned: Tuned, loader: Any, demand: Demand, epochs: float) -> None:
        waits = demand.gap_s > self._setting.tolerance * demand.step.wall_s
        if tuned.known is None or tuned.known.probe.batch_s is None:
            tuned.plan = replace(tuned.plan, loading_is_the_limit=waits)
            return
        limit = _was_limit(LoaderSettings.from_dict(tuned.plan.before), tuned.known, demand, self._setting.tolerance)
        tuned.plan = replace(tuned.plan, loading_is_the_limit=limit)
        if tuned.chosen is None:
            return
        unchanged = not self.agreed_changes(tuned, loader) and not hasattr(loader.dataset, "set_epoch")
        worth_s = worth_again_s(demand.gap_s, demand.period_s, tuned.conditions.finite_batches * epochs)
        conditions = replace(
            tuned.conditions,
            step=demand.step,
            epochs=epochs,
            budget_s=min(worth_s, max(0.0, self._setting.time_budget_s - self.spent_s)),
            may_persist=self._setting.may_persist and unchanged,
            # Where steps do not wait, more workers have nothing to give.
            most_workers=None if waits else max(1, LoaderSettings.of(loader).num_workers),
        )
        tuner = Tuner(loader, conditions, self._setting.gather, tuned.known)
        found = tuner.plan()
        if tuner.chosen is not None or found.refused:
            self._merge(tuned, found, loader)
        elif persists(tuned.chosen, self._question(tuned, conditions)):
            kept = replace(LoaderSettings.of(loader), persistent_workers=True)
            words = f"{kept}: starting workers anew would take more than a little of each epoch"
            self._merge(tuned, replace(found, after=kept.as_dict(), message=words), loader)

    def _merge(self, tuned: Tuned, found: LoaderPlan, loader: Any) -> None:
        """Join the second decision to the first: the settings of the program stay what all is compared with."""
        first = tuned.plan
        changed_now = found.after != LoaderSettings.of(loader).as_dict()
        if changed_now and (self._setting.apply and first.before != {}):
            found = given_to(loader, replace(found, before=LoaderSettings.of(loader).as_dict()))
        beside = tuple(replace(trial, verdict=f"{trial.verdict}, beside the step") for trial in found.trials)
        after = found.after if (found.applied or not self._setting.apply) else LoaderSettings.of(loader).as_dict()
        tuned.plan = replace(
            first,
            after=after,
            applied=self._setting.apply and after != first.before,
            trials=first.trials + beside,
            refused=first.refused + tuple(r for r in found.refused if r not in first.refused),
            message=f"{first.message}; with the step known: {found.message}",
        )
        if changed_now:
            self._say(f"{_name(tuned)}: with the step known: {found.message}")

    def _question(self, tuned: Tuned, conditions: Conditions) -> Question:
        known = tuned.known
        return Question(
            current=LoaderSettings.from_dict(tuned.plan.after),
            alone_s=0.0 if known is None else known.probe.batch_s or 0.0,
            batches=conditions.finite_batches,
            epochs=conditions.epochs,
            step_s=conditions.step_s,
            tolerance=conditions.tolerance,
            may_persist=conditions.may_persist,
            keeps_workers=conditions.keeps_workers,
        )

    def agreed_changes(self, tuned: Tuned, loader: Any) -> tuple[str, ...]:
        """What the program has changed in the dataset since it was last looked at, on any rank."""
        if not tuned.remembered:
            return ()
        now = state.record(loader.dataset, type(loader.dataset).__name__)
        told = self._setting.gather(state.changes(tuned.remembered, now))
        tuned.remembered = now
        return next((changed for changed in told if changed), ())

    def _key(self, loader: Any, conditions: Conditions) -> str | None:
        if self._setting.cache is None:
            return None
        return memo.fingerprint(
            loader,
            stage=conditions.stage,
            index=conditions.index,
            cpus=conditions.cpus.usable,
            ranks=conditions.ranks,
            device=conditions.device,
        )

    def _kept(self, key: str | None) -> LoaderSettings | None:
        """An earlier run's settings, where every rank finds the same."""
        if key is None or self._setting.cache is None:
            return None
        told = self._setting.gather(memo.read(self._setting.cache, key))
        return told[0] if all(kept == told[0] for kept in told) else None

    def _keep(self, key: str | None, plan: LoaderPlan) -> None:
        if key is None or self._setting.cache is None:
            return
        try:
            memo.write(self._setting.cache, key, LoaderSettings.from_dict(plan.after))
        except OSError as error:
            self._warn(f"the plan cannot be kept in {self._setting.cache} ({error}); the next run measures again")


def _period_without_s(before: LoaderSettings, tuned: Tuned, step_s: float) -> float:
    """Seconds from step to step with the program's own settings: one after the other without workers."""
    assert tuned.known is not None
    batch_s = tuned.known.probe.batch_s or 0.0
    if before.num_workers == 0:
        return step_s + batch_s
    return max(step_s, batch_s / before.num_workers)


def _was_limit(before: LoaderSettings, known: Known, demand: Demand, tolerance: float) -> bool:
    """Whether steps would have waited with the program's own settings."""
    batch_s, step_s = known.probe.batch_s or 0.0, demand.step.wall_s
    if before.num_workers == 0:
        return batch_s > tolerance * step_s
    return batch_s / before.num_workers > (1 + tolerance) * step_s


def _name(tuned: Tuned) -> str:
    where = f"{tuned.plan.stage}_dataloader"
    return where if tuned.plan.index == 0 else f"{where} {tuned.plan.index}"
