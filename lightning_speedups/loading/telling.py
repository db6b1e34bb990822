"""A tuning's findings in words and rows: the decision, the table of trials, the advice. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from lightning_speedups.loading import advice, pinning
from lightning_speedups.loading.conditions import Conditions, Known
from lightning_speedups.loading.decide import Decision, Question, Tried
from lightning_speedups.loading.report import LoaderTrial
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.reporting import text


@dataclass(frozen=True)
class Findings:
    """All that was tried, and what was decided.

    Attributes:
        before: the loader's own settings.
        after: those decided on.
        tried: every setting that gave figures.
        failed: those whose trial failed, with the reason.
        skipped: those that would not have fitted, with the reason.
        rss_mib: memory of the workers of each setting.
        decision: None where it came to none.
        question: what was to be decided; None where it did not come to that.
    """

    before: LoaderSettings
    after: LoaderSettings
    tried: Sequence[Tried]
    failed: Mapping[LoaderSettings, str]
    skipped: Mapping[LoaderSettings, str]
    rss_mib: Mapping[LoaderSettings, float | None]
    decision: Decision | None
    question: Question | None


def change(found: Findings, known: Known, chosen: Tried, gain: float, conditions: Conditions) -> str:
    """The decision in a sentence, with the figures that it rests on."""
    now = next(row for row in found.tried if row.settings == found.before)
    rate = f"{text.number(known.samples_per_s(chosen.batch_s))} samples/s"
    if found.after.num_workers == found.before.num_workers and chosen.settings == found.before:
        others = [row for row in found.tried if row.settings != now.settings]
        if not others:
            return f"unchanged at {found.before} ({rate})"
        rival = min(others, key=lambda row: row.batch_s)
        return (
            f"num_workers={found.before.num_workers} is best ({text.seconds(now.batch_s)} a batch against"
            f" {text.seconds(rival.batch_s)} with {rival.settings}){_why_no_workers(now, known)}"
        )
    assert found.decision is not None
    scope = "" if conditions.step is not None else ", loading alone"
    return (
        f"{found.before} -> {found.after}: {rate} instead of {text.number(known.samples_per_s(now.batch_s))}"
        f" ({text.ratio(gain)}{scope}); {found.decision.reason}, tolerance {100 * found.decision.tolerance:.0f} %"
    )


def rows(found: Findings, known: Known, tolerance: float) -> Iterator[LoaderTrial]:
    """The table of trials, by ascending worker count."""
    by_setting = {row.settings: row for row in found.tried}
    if found.question is None:
        return
    epoch_s = {row.settings: row.epoch_s(found.question) for row in found.tried}
    share = tolerance if found.decision is None else found.decision.tolerance
    within = (1 + share) * min(epoch_s.values(), default=0.0)
    everything = {*by_setting, *found.failed, *found.skipped}
    for settings in sorted(everything, key=lambda s: (s.num_workers, s.in_flight)):
        row = by_setting.get(settings)
        if row is None:
            why = found.skipped.get(settings) or f"failed: {found.failed.get(settings)}"
            yield LoaderTrial(settings.as_dict(), None, None, None, None, why)
            continue
        yield LoaderTrial(
            settings=settings.as_dict(),
            samples_per_s=known.samples_per_s(row.batch_s),
            low=known.samples_per_s(max(row.rounds_s)),
            high=known.samples_per_s(min(row.rounds_s)),
            rss_mib=_rss_mib(settings, found, known),
            verdict=_verdict(settings, found, is_fast=epoch_s[settings] <= within),
        )


def advised(found: Findings, known: Known | None, loader: Any, method: str, conditions: Conditions) -> Iterator[str]:
    """What else would help, and what to mind."""
    pins = conditions.device in pinning.DEVICES
    if known is None:
        if found.before.pin_memory and not pins:
            yield advice.pinning_ignored(conditions.device)
        return
    length = len(loader.dataset) if hasattr(type(loader.dataset), "__len__") else None
    hidden = found.decision is not None and found.decision.limit is False
    yield from advice.about_data(known.probe, length, hidden)
    yield from advice.about_workers(found.before, found.after, known.probe, method, threads_here())
    threads = None if known.check is None else known.check.threads
    yield from advice.about_threads(threads, found.after, conditions.cpus.usable, conditions.ranks)
    yield from advice.about_pinning(found.before, known.probe, conditions.device, pins)


def threads_here() -> int | None:
    """The threads of this process; None where the system does not tell."""
    try:
        return psutil.Process().num_threads()
    except psutil.Error:
        return None


def _why_no_workers(now: Tried, known: Known) -> str:
    batch_s = known.probe.batch_s or 0.0
    if now.settings.num_workers or batch_s > 4 * advice.HAND_OVER_S:
        return ""
    each_s = batch_s / max(1.0, known.probe.samples_per_batch)
    return f": a sample takes {text.seconds(each_s)}, less than handing it over from a worker"


def _rss_mib(settings: LoaderSettings, found: Findings, known: Known) -> float | None:
    measured = found.rss_mib.get(settings)
    if measured is not None or known.check is None or known.check.uss_mib is None:
        return measured
    return known.check.uss_mib * settings.num_workers


def _verdict(settings: LoaderSettings, found: Findings, is_fast: bool) -> str:
    same_count = settings.num_workers == found.after.num_workers
    if same_count and settings.prefetch_factor == found.after.prefetch_factor:
        return "kept" if settings == found.before else "chosen"
    return "no faster than the chosen one" if is_fast else "slower"
