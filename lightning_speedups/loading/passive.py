"""Tuning without trials: an epoch shows what its settings are worth, the next one what others are."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from lightning_speedups.loading import safety, state
from lightning_speedups.loading.demand import Demand
from lightning_speedups.loading.report import LoaderPlan, LoaderTrial, Refusal
from lightning_speedups.loading.search import Costs, most_workers
from lightning_speedups.loading.session import Session, Tuned
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.loading.standalone import given_to
from lightning_speedups.reporting import text


def note(session: Session, stage: str, index: int, loader: Any) -> None:
    """Remember a loader that is about to be used."""
    if not isinstance(loader, DataLoader):
        session.ready(stage, index, 1, loader, math.inf, 1)
        return
    before = LoaderSettings.of(loader).as_dict()
    earlier = session.tuned.get((stage, index))
    if earlier is not None and earlier.plan.before == before:
        session.take_over(earlier, loader)
        return
    message = "watched; nothing is tried in passive mode"
    plan = LoaderPlan(stage, index, before, before, False, None, (), (), None, None, None, message)
    tuned = Tuned(weakref.ref(loader), plan, session.conditions(stage, index, 1, math.inf, 1))
    tuned.remembered = state.record(loader.dataset, type(loader.dataset).__name__)
    session.tuned[stage, index] = tuned


def between_epochs(session: Session, tuned: Tuned, demand: Demand) -> None:
    """Change the settings for the next epoch where the last one waited; take it back where that did not help."""
    loader = tuned.loader()
    if loader is None or tuned.plan.gain_realised is not None or tuned.plan.refused:
        return
    now = LoaderSettings.of(loader)
    tried = _with_row(tuned.plan, loader, now, demand)
    periods = {_settings(trial): trial.samples_per_s or 0.0 for trial in tried.trials}
    waits = demand.gap_s > tuned.conditions.tolerance * demand.step.wall_s
    before = LoaderSettings.from_dict(tried.before)
    if now != before and len(tried.trials) > 1:
        tuned.plan = _judged(session, tried, loader, periods[now] / periods[before], tuned.conditions.tolerance)
        return
    plan = replace(tried, loading_is_the_limit=waits)
    if len(tuned.plan.trials) > 1 or not waits:
        words = "waits" if waits else "hides loading"
        tuned.plan = replace(plan, message=f"num_workers={now.num_workers} kept: the step {words} ({_told(demand)})")
        return
    refusal = _refusal(session, tuned, loader)
    wanted = now.with_workers(_count(now, demand, tuned.conditions.cpus.usable))
    if refusal is not None or wanted == now:
        why = "the CPUs are all in use" if refusal is None else refusal.message
        tuned.plan = replace(
            plan,
            refused=plan.refused if refusal is None else (*plan.refused, refusal),
            message=f"num_workers={now.num_workers} kept: {why}; the step waits ({_told(demand)})",
        )
    else:
        words = f"{now} -> {wanted} from the next epoch on: the step waits ({_told(demand)})"
        plan = replace(plan, after=wanted.as_dict(), message=words)
        tuned.plan = given_to(loader, plan) if session.applies else plan
    session.say(f"{tuned.plan.stage}_dataloader: {tuned.plan.message}")


def _judged(session: Session, plan: LoaderPlan, loader: Any, gain: float, tolerance: float) -> LoaderPlan:
    if gain > 1 + tolerance:
        message = f"{plan.message}; it was {text.ratio(gain)} as fast: kept"
        return replace(plan, gain_realised=gain, message=message)
    undone = given_to(loader, replace(plan, after=plan.before, before=plan.after))
    message = f"{plan.message}; it was {text.ratio(gain)} as fast: taken back"
    session.say(f"{plan.stage}_dataloader: {message}")
    return replace(undone, before=plan.before, after=plan.before, applied=False, gain_realised=gain, message=message)


def _refusal(session: Session, tuned: Tuned, loader: Any) -> Refusal | None:
    """What can be told against workers from outside, without loading anything."""
    found = next(safety.before_any_trial(loader, None), None)
    if found is None and isinstance(loader.dataset, IterableDataset):
        name = type(loader.dataset).__name__
        found = Refusal(
            "duplicates_data", name, f"{name} is a stream, and only a trial can show that workers share it out"
        )
    changed = session.agreed_changes(tuned, loader)
    if found is None and changed and loader.num_workers == 0:
        found = Refusal("stateful", changed[0], f"loading the epoch changed {changed[0]}, or the program did")
    return session.first_of_all(found)


def _count(now: LoaderSettings, demand: Demand, cpus: int) -> int:
    """Workers enough to load a batch in the time of a step."""
    step_s = max(demand.step.wall_s, 1e-6)
    one_s = demand.gap_s if now.num_workers == 0 else now.num_workers * demand.period_s
    cpu_s = demand.gap_cpu_s if now.num_workers == 0 else one_s
    most = most_workers(Costs(one_s, cpu_s), cpus)
    return max(now.num_workers, min(most, math.ceil(one_s / step_s)))


def _with_row(plan: LoaderPlan, loader: Any, now: LoaderSettings, demand: Demand) -> LoaderPlan:
    rate = (loader.batch_size or 1) / demand.period_s
    row = LoaderTrial(now.as_dict(), rate, rate, rate, None, "a real epoch")
    if any(_settings(trial) == now for trial in plan.trials):
        return plan
    return replace(plan, trials=(*plan.trials, row))


def _settings(trial: LoaderTrial) -> LoaderSettings:
    return LoaderSettings.from_dict(trial.settings)


def _told(demand: Demand) -> str:
    return f"{text.seconds(demand.gap_s)} of {text.seconds(demand.period_s)} between steps"
