"""Tunes one loader: proof, trials, decision. Knows of no Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from lightning_speedups.loading import pinning, safety, telling
from lightning_speedups.loading.children import Answer, Children, Gather, alone
from lightning_speedups.loading.conditions import Conditions, Known
from lightning_speedups.loading.decide import Decision, Question, Tried, decide, is_jittery, persists
from lightning_speedups.loading.probe import Probe, probe
from lightning_speedups.loading.report import LoaderPlan, Refusal
from lightning_speedups.loading.room import Needs, Room, too_large
from lightning_speedups.loading.search import Costs, candidates, hides, thinned, verdict_s, wanted, worth_s
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.loading.steps import Step
from lightning_speedups.loading.trials import Trials, with_prefetch
from lightning_speedups.loading.workers_check import check_map, check_stream
from lightning_speedups.measuring.memory import MIB
from lightning_speedups.reporting import text

_PROBE_S = 20.0
_CHECK_S = 10.0
_PREFETCH = (4, 8)
# A pickled dataset that is larger would be multiplied by the number of workers.
_PICKLE_SHARE = 0.25
# What a worker is taken for where the system does not tell (about what a forked one of torch's has, measured).
_WORKER_MIB = 64.0
_BATCHES_A_WORKER = 4
# What one trial takes in the time of a batch: the first ones that workers make, and two of each that count.
_BATCHES_A_VISIT = 4
_CLIMB_SHARE = 0.6
# Trials that make no sense to begin: the children of a probe, a check and two settings, and a batch in each.
_LEAST_CHILDREN = 4


class _Settled(Exception):
    """The answer is known before, or without, any trial."""


class Tuner:
    """One tuning of one loader. ``plan`` does it; ``known`` is what it found out, for the next one.

    ``chosen`` holds the figures of the setting that it decided on, None where it did not get to a decision.

    Nothing of the loader is run in this process, and nothing of it is changed.
    """

    def __init__(self, loader: Any, conditions: Conditions, gather: Gather = alone, known: Known | None = None) -> None:
        self._loader, self._conditions, self.known = loader, _agreed(conditions, gather), known
        self._before = self._after = LoaderSettings.of(loader)
        self._method = safety.start_method(loader)
        self._children = Children(loader, self._method, self._conditions.budget_s, gather)
        self._refused: list[Refusal] = []
        self._skipped: dict[LoaderSettings, str] = {}
        self._trials: Trials | None = None
        self._decision: Decision | None = None
        self.chosen: Tried | None = None
        self._gain: float | None = None
        self._limit: bool | None = None

    def plan(self) -> LoaderPlan:
        """Find the settings. Every rank must call it."""
        try:
            message = self._search()
        except _Settled as settled:
            message, self._after = str(settled), self._before
        self._after = self._pinned_where_useful(self._after)
        return self._plan(message)

    def _search(self) -> str:
        self._refuse(safety.before_any_trial(self._loader, self._most_pickled_bytes()))
        known = self._learned()
        costs = known.costs(self._conditions.step_s)
        if costs is None:
            raise _Settled("unchanged: the loader gave no batch to measure")
        self._worth_it(costs)
        self._refuse(safety.after_probe(self._loader, known.probe))
        conditions = self._conditions
        counts = candidates(costs, conditions.cpus.usable, self._before.num_workers, self._most_workers())
        if max(counts) > self._before.num_workers:
            self._let_workers_prove_themselves(known)
        fitting = [count for count in counts if self._fits(self._before.with_workers(count))]
        if not fitting:
            raise _Settled(self._refused[-1].message)
        in_time = int(
            _CLIMB_SHARE * self._children.left_s / (self._children.start_s + _BATCHES_A_VISIT * costs.batch_s)
        )
        few = thinned(fitting, (self._before.num_workers, *wanted(costs)), in_time)
        settings = [self._before.with_workers(count) for count in few]
        return self._decided(self._tried(settings, costs))

    def _learned(self) -> Known:
        """What the loader costs without workers."""
        if self.known is None:
            answers = self._children.ask(probe, self._conditions.seed, timeout_s=_PROBE_S)
            failed = next((answer for answer in answers if answer.error is not None), None)
            if failed is not None:
                self._settle("worker_died", "0 workers", f"loading in a child process failed: {failed.error}")
            self.known = Known(_merged(self._children.own.value, [answer.value for answer in answers]))
        return self.known

    def _worth_it(self, costs: Costs) -> None:
        """Stop where loading hides behind the step, or costs too little for trials to pay."""
        conditions = self._conditions
        if hides(costs, conditions.tolerance):
            self._limit = False
            if self._before.num_workers == 0:
                raise _Settled(
                    f"leave it: loading ({text.seconds(costs.batch_s)} a batch) hides behind the step"
                    f" ({text.seconds(costs.step_s)})"
                )
        batches, epochs = conditions.finite_batches, conditions.epochs
        worth = max(
            worth_s(costs, conditions.cpus.usable, batches, epochs),
            verdict_s(costs, batches, epochs),
            conditions.least_s,
        )
        self._children.limit(self._children.spent_s + worth)
        if self._children.left_s < _LEAST_CHILDREN * (self._children.start_s + costs.batch_s):
            raise _Settled(
                f"num_workers={self._before.num_workers} kept: loading takes {text.seconds(costs.batch_s)} a batch"
                " without workers, and this run has too few of them left to earn back the time of any trial"
            )

    def _let_workers_prove_themselves(self, known: Known) -> None:
        seen = known.probe
        if known.check is None:
            silent_s = self._children.patience_s(seen.batch_s or 0.0)
            if seen.iterable:
                how = (seen.records, seen.exhausted, silent_s)
                answers = self._children.ask(check_stream, *how, timeout_s=_CHECK_S + silent_s)
            else:
                answers = self._children.ask(check_map, seen.records, silent_s, timeout_s=_CHECK_S + silent_s)
            failed = next((answer for answer in answers if answer.error is not None), None)
            if failed is not None:
                self._settle("worker_died", "2 workers", self._why_workers_failed(failed))
            greediest = max((answer.value for answer in answers), key=lambda found: found.uss_mib or 0.0)
            self.known = replace(known, check=greediest)
            self._refuse(
                refusal for answer in answers for refusal in safety.after_check(self._loader, seen, answer.value)
            )

    def _tried(self, settings: list[LoaderSettings], costs: Costs) -> list[Tried]:
        self._trials = Trials(self._children, self._conditions.step or Step(), costs.batch_s, self._conditions.seed)
        self._trials.climb(settings, self._before)
        self._trials.rounds(self._before)
        for setting, error in self._trials.failed.items():
            self._refused.append(Refusal("worker_died", str(setting), f"the trial of {setting} failed: {error}"))
        tried = self._trials.tried()
        if not any(row.settings == self._before for row in tried):
            failure = self._trials.failed.get(self._before, "there was no time for it")
            why = self._skipped.get(self._before, failure)
            raise _Settled(f"num_workers={self._before.num_workers} kept: it could not be measured itself ({why})")
        return tried

    def _decided(self, tried: list[Tried]) -> str:
        question = self._question()
        decision = self._decision = decide(tried, question)
        self._gain, self._limit = decision.gain, decision.limit
        if decision.noisy_pct is not None:
            self._settle("too_noisy", str(self._before), decision.reason)
        chosen = next(row for row in tried if row.settings == decision.settings)
        chosen, self._gain = self._with_longer_queue(chosen, question, decision.gain)
        self.chosen, self._after = chosen, chosen.settings
        if persists(chosen, question):
            self._after = replace(self._after, persistent_workers=True)
        assert self.known is not None
        return telling.change(self._findings(), self.known, chosen, self._gain, self._conditions)

    def _with_longer_queue(self, chosen: Tried, question: Question, gain: float) -> tuple[Tried, float]:
        """Prefetch more where waits come in bursts, if that is measured to help."""
        assert self._trials is not None
        for factor in _PREFETCH if is_jittery(chosen, question) else ():
            longer = with_prefetch(chosen.settings, factor)
            if factor <= (chosen.settings.prefetch_factor or 0) or not self._fits(longer):
                continue
            pair = self._trials.extra(longer, chosen.settings)
            if pair is None or pair[0].batch_s > (1 - question.tolerance - pair[0].spread) * pair[1].batch_s:
                break
            chosen, gain = pair[0], gain * pair[1].batch_s / pair[0].batch_s
        return chosen, gain

    def _question(self) -> Question:
        assert self.known is not None
        conditions = self._conditions
        return Question(
            current=self._before,
            alone_s=self.known.probe.batch_s or 0.0,
            batches=conditions.finite_batches,
            epochs=conditions.epochs,
            step_s=conditions.step_s,
            tolerance=conditions.tolerance,
            may_persist=conditions.may_persist,
            keeps_workers=conditions.keeps_workers,
        )

    def _fits(self, settings: LoaderSettings) -> bool:
        assert self.known is not None
        seen, check = self.known.probe, self.known.check
        worker_mib = check.uss_mib if check is not None and check.uss_mib is not None else _WORKER_MIB
        needs = Needs.of(settings, seen.batch_bytes, seen.tensors, int(worker_mib * MIB))
        refusal = too_large(settings, needs, self._conditions.room)
        if refusal is not None:
            self._refused.append(refusal)
            self._skipped[settings] = refusal.message
        return refusal is None

    def _pinned_where_useful(self, settings: LoaderSettings) -> LoaderSettings:
        """Pin where the device can use it and it is measured faster; never elsewhere."""
        device = self._conditions.device
        if device not in pinning.DEVICES:
            return replace(settings, pin_memory=False)
        seen = None if self.known is None else self.known.probe
        if settings.pin_memory or seen is None or seen.unpinnable is not None or not seen.batch_bytes:
            return settings
        in_background = settings.num_workers > 0
        saved_s = min(self._children.agree(pinning.saves_s(seen.batch_bytes, device, in_background)))
        beside_s = self._conditions.step_s or seen.batch_s or 0.0
        return replace(settings, pin_memory=saved_s > pinning.LEAST_GAIN * beside_s)

    def _refuse(self, refusals: Iterator[Refusal]) -> None:
        """Stop where any rank has a reason to, with the same one on all."""
        told = self._children.agree(_all(refusals))
        first: list[Refusal] = next((found for found in told if found), [])
        self._refused += first
        if first:
            raise _Settled(first[0].message)

    def _settle(self, kind: Any, where: str, message: str) -> None:
        self._refused.append(Refusal(kind, where, message))
        raise _Settled(message)

    def _why_workers_failed(self, answer: Answer) -> str:
        hint = ""
        if self._method == "fork" and (answer.timed_out or "timed out" in (answer.error or "")):
            hint = (
                f"; a process with {telling.threads_here()} live threads can deadlock when it is forked: pass"
                " multiprocessing_context='forkserver' to the DataLoader"
            )
        return f"num_workers kept: loading with two workers failed ({answer.error}){hint}"

    def _most_workers(self) -> int:
        """No more workers than find work for a while: an epoch has so many batches."""
        by_epoch = max(1, int(self._conditions.finite_batches // _BATCHES_A_WORKER))
        asked = self._conditions.most_workers
        return by_epoch if asked is None else min(by_epoch, asked)

    def _most_pickled_bytes(self) -> int | None:
        ram = self._conditions.room.ram_bytes
        return None if ram is None else int(_PICKLE_SHARE * ram)

    def _findings(self) -> telling.Findings:
        trials = self._trials
        tried = [] if trials is None else trials.tried()
        return telling.Findings(
            before=self._before,
            after=self._after,
            tried=tried,
            failed={} if trials is None else trials.failed,
            skipped=self._skipped,
            rss_mib={} if trials is None else {row.settings: trials.rss_mib(row.settings) for row in tried},
            decision=self._decision,
            question=None if self.known is None else self._question(),
        )

    def _plan(self, message: str) -> LoaderPlan:
        found, known = self._findings(), self.known
        return LoaderPlan(
            stage=self._conditions.stage,
            index=self._conditions.index,
            before=self._before.as_dict(),
            after=self._after.as_dict(),
            applied=False,
            loading_is_the_limit=self._limit,
            trials=() if known is None else tuple(telling.rows(found, known, self._conditions.tolerance)),
            refused=tuple(self._refused),
            cacheable=None if known is None else known.cacheable,
            gain_predicted=self._gain,
            gain_realised=None,
            message=message,
            advice=tuple(telling.advised(found, known, self._loader, self._method, self._conditions)),
        )


def _agreed(conditions: Conditions, gather: Gather) -> Conditions:
    """The same conditions on every rank: the least that any of them has."""
    everyones: list[Conditions] = gather(conditions)
    rooms = [each.room for each in everyones]
    return replace(
        conditions,
        batches=min(each.batches for each in everyones),
        epochs=min(each.epochs for each in everyones),
        cpus=min((each.cpus for each in everyones), key=lambda cpus: cpus.usable),
        budget_s=min(each.budget_s for each in everyones),
        room=Room(
            _least(room.ram_bytes for room in rooms),
            _least(room.shm_bytes for room in rooms),
            _least(room.open_files for room in rooms),
        ),
    )


def _least(figures: Iterator[int | None]) -> int | None:
    return min((figure for figure in figures if figure is not None), default=None)


def _merged(own: Probe, probes: list[Probe]) -> Probe:
    """The slowest rank's time with this rank's records: another rank's sampler reads other ones."""
    slowest = max(probes, key=lambda found: found.batch_s or 0.0)
    return replace(
        own,
        batch_s=slowest.batch_s,
        cpu_s=slowest.cpu_s,
        batch_bytes=max(found.batch_bytes for found in probes),
        tensors=max(found.tensors for found in probes),
        deterministic=own.deterministic if len({found.deterministic for found in probes}) == 1 else None,
        changed=max((found.changed for found in probes), key=len),
    )


def _all(refusals: Iterator[Refusal]) -> list[Refusal]:
    """Every refusal; what cannot be looked through is one as well, and is told to the other ranks like any."""
    try:
        return list(refusals)
    except Exception as error:  # noqa: BLE001  a user's objects may raise anything when they are looked at
        why = f"num_workers kept: the dataset could not be looked through ({type(error).__name__}: {error})"
        return [Refusal("stateful", "dataset", why)]
