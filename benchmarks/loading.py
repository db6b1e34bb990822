"""What DataLoaderTuner chooses for seven real loaders, against the best of an exhaustive grid and the usual advice.

For each loader: the tuner runs in a real fit; every cell of the grid is measured; then the chosen setting, the grid's
best cell, the untouched loader and "num_workers = CPU count" are measured by turns, as whole epochs of training.
``CachedDataset`` is measured on the JPEG loader, from its second epoch on.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import harness
import torch
from caching.epochs import decoding_against_cached
from loaders.cases import CASES, QUICK, Case
from loaders.training import EPOCHS_PLANNED, Tuned, epoch_s, folder_for, tuned
from rich.console import Console
from rich.progress import track

from lightning_speedups.demo import images
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.measuring.stats import Estimate, ratio_interval
from lightning_speedups.reporting import terminal, text

REPEATS = 7
QUICK_REPEATS = 3
BUDGET_S = 20.0
LATENCY_CASES = ("reads of 5 ms", "reads of 20 ms")


@dataclass(frozen=True)
class Outcome:
    """One loader: the setting chosen against others, as ratios of speed (above 1: the chosen one is faster)."""

    name: str
    chosen: str
    best: str
    against_best: Estimate
    against_untouched: Estimate
    against_cpu_count: Estimate
    changed: bool
    tuning_s: float
    saved_s: float
    message: str

    @property
    def tuning_pct(self) -> float:
        """Tuning time in percent of what it saves over twenty epochs; 0 where nothing was changed."""
        return 100 * self.tuning_s / self.saved_s if self.changed and self.saved_s > 0 else 0.0


def measure(quick: bool) -> harness.Measurement:
    """All loaders (about 25 min on 2 cores); quick: two of them, with three repeats (about 2 min)."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    cases, repeats = (QUICK, QUICK_REPEATS) if quick else (CASES, REPEATS)
    with tempfile.TemporaryDirectory() as folder:
        progress = track(cases, "loaders", console=Console(stderr=True), transient=True)
        outcomes = [_outcome(case, Path(folder), repeats, quick) for case in progress]
        cached = None if quick else _cached(Path(folder))
    figures = _figures(outcomes)
    if cached is not None:
        figures["cached_speedup"] = 1 / cached.median
    details: dict[str, Any] = {"loaders": [asdict(outcome) for outcome in outcomes]}
    return harness.Measurement(figures, [_table(outcomes)], details)


def _outcome(case: Case, base: Path, repeats: int, quick: bool) -> Outcome:
    dataset = case.dataset(folder_for(base, case))
    found = tuned(case, dataset, BUDGET_S)
    best = _best(case, dataset, quick)
    cpu_count = LoaderSettings(os.cpu_count() or 1)
    rivals = (found.settings, best, LoaderSettings(), cpu_count)
    times: dict[LoaderSettings, list[float]] = {settings: [] for settings in rivals}
    for repeat in range(repeats):
        for settings in sorted(times, key=str, reverse=repeat % 2 == 1):
            times[settings].append(epoch_s(case, dataset, settings))
    mine = times[found.settings]
    untouched = times[LoaderSettings()]
    saved_s = EPOCHS_PLANNED * (sorted(untouched)[repeats // 2] - sorted(mine)[repeats // 2])
    return _as_outcome(case, found, best, {settings: _ratio(mine, their) for settings, their in times.items()}, saved_s)


def _as_outcome(
    case: Case, found: Tuned, best: LoaderSettings, ratios: dict[LoaderSettings, Estimate], saved_s: float
) -> Outcome:
    return Outcome(
        name=case.name,
        chosen=str(found.settings),
        best=str(best),
        against_best=ratios[best],
        against_untouched=ratios[LoaderSettings()],
        against_cpu_count=ratios[LoaderSettings(os.cpu_count() or 1)],
        changed=found.plan.changed,
        tuning_s=found.seconds_s,
        saved_s=saved_s,
        message=found.plan.message,
    )


def _best(case: Case, dataset: Any, quick: bool) -> LoaderSettings:
    """The best cell of the grid, each cell measured once."""
    cells = [
        LoaderSettings(workers, prefetch, persistent)
        for workers in case.workers
        for prefetch in ((2,) if quick else (2, 4))
        for persistent in ((True,) if quick else (False, True))
    ]
    return min(dict.fromkeys(cells), key=lambda settings: epoch_s(case, dataset, settings))


def _ratio(mine: Sequence[float], theirs: Sequence[float]) -> Estimate:
    return ratio_interval(list(zip(mine, theirs, strict=True)))


def _cached(folder: Path) -> Estimate:
    files = images.samples(images.prepare(images.default_cache_dir()))
    return decoding_against_cached(files, folder / "cache", pairs=REPEATS).ratio


def _figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    medians = sorted(outcome.against_best.median for outcome in outcomes)
    waiting = [outcome for outcome in outcomes if outcome.name in LATENCY_CASES]
    return {
        "loaders": len(outcomes),
        "against_best": medians[len(medians) // 2],
        "worst_interval_against_best": min(outcome.against_best.high for outcome in outcomes),
        "worst_interval_against_untouched": min(outcome.against_untouched.high for outcome in outcomes),
        "better_than_cpu_count": sum(outcome.against_cpu_count.low > 1 for outcome in outcomes),
        "longest_tuning_s": max(outcome.tuning_s for outcome in outcomes),
        "tuning_pct_of_saved": max(outcome.tuning_pct for outcome in outcomes),
        "latency_speedup": min(outcome.against_untouched.median for outcome in waiting),
    }


def _table(outcomes: Sequence[Outcome]) -> Any:
    rows = [
        (
            outcome.name,
            outcome.chosen,
            outcome.best,
            _short(outcome.against_best),
            _short(outcome.against_untouched),
            _short(outcome.against_cpu_count),
            text.seconds(outcome.tuning_s),
        )
        for outcome in outcomes
    ]
    return terminal.table(
        "The chosen setting's speed in training, against",
        ("loader", "chosen", "best", "the best", "untouched", "CPU count", "tuning"),
        rows,
        caption="ratios of samples/s over whole epochs, worker start included: median [95 % interval]; above 1 the"
        " chosen setting is faster",
    )


def _short(estimate: Estimate) -> str:
    return f"{estimate.median:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


if __name__ == "__main__":
    sys.exit(harness.main("loading", measure, __doc__))
