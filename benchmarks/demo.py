"""The demo's two runs, repeated: how much sooner the pack is done, and how much sooner it is as good.

Each pair has a seed of its own, and pairs take turns in which run goes first. Where the pack's run never has the
stock run's best accuracy, its speed-up to that accuracy counts as 0: it would take for ever.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

import harness

from lightning_speedups.demo import images
from lightning_speedups.demo.compare import Comparison, accuracy, compare
from lightning_speedups.demo.demo import QUICK_EVERY
from lightning_speedups.demo.measures import RunResult, RunSettings
from lightning_speedups.demo.runs import run_in_process
from lightning_speedups.measuring.stats import Estimate, fewest_for, median_interval
from lightning_speedups.reporting import terminal, text

EPOCHS = 40


def measure(quick: bool) -> harness.Measurement:
    """One pair of a quarter of the images, or as many pairs of all images as a 95 % interval needs."""
    images.require_demo_extra()
    folder = images.prepare(images.default_cache_dir())
    plain = RunSettings(pack=False, images=str(folder), every=QUICK_EVERY if quick else 1, epochs=EPOCHS, seed=0)
    with tempfile.TemporaryDirectory() as logs:
        pairs = [
            _pair(dataclasses.replace(plain, seed=seed), Path(logs), pack_first=seed % 2 == 1)
            for seed in range(1 if quick else fewest_for())
        ]
    wall = median_interval(pair.stock.wall_s / pair.pack.wall_s for pair in pairs)
    goal = median_interval(_speedup_to_goal(pair) for pair in pairs)
    # The same program runs in both, so that anything but 1 here is the pack's own cost or the machine's noise.
    pace = median_interval(_epoch_s(pair.pack) / _epoch_s(pair.stock) for pair in pairs)
    given_up = median_interval(100 * (pair.stock.final_test_acc - pair.pack.final_test_acc) for pair in pairs)
    figures = {
        "wall_speedup": wall.median,
        "same_accuracy_speedup": goal.median,
        "epoch_time_ratio": pace.median,
        "test_points_given_up": given_up.median,
    }
    summary = {
        "wall time, stock over pack": wall,
        "time to the stock run's best accuracy, the same": goal,
        "time of an epoch, pack over stock": pace,
        "test accuracy given up, in points": given_up,
    }
    details = {"pairs": [pair.to_dict() for pair in pairs]}
    return harness.Measurement(figures, [_table(pairs), _summary(summary)], details)


def _pair(settings: RunSettings, logs: Path, *, pack_first: bool) -> Comparison:
    """Two runs after one another; where one fails, its error quotes the log's last line."""
    results: dict[bool, RunResult] = {}
    for pack in (pack_first, not pack_first):
        print(f"seed {settings.seed}: {'with the pack' if pack else 'stock Trainer'}", file=sys.stderr, flush=True)
        results[pack] = run_in_process(dataclasses.replace(settings, pack=pack), logs / "run.log")
    return compare(results[False], results[True])


def _speedup_to_goal(pair: Comparison) -> float:
    pack_s = pair.pack.seconds_to(pair.stock.best.val_acc)
    return 0.0 if pack_s is None else pair.stock.best.end_s / pack_s


def _epoch_s(run: RunResult) -> float:
    return median_interval(run.epochs_s).median


def _table(pairs: list[Comparison]) -> terminal.RenderableType:
    rows = []
    for seed, pair in enumerate(pairs):
        wall, goal = pair.rows[0], pair.rows[1]
        tests = f"{accuracy(pair.stock.final_test_acc)}, {accuracy(pair.pack.final_test_acc)}"
        rows.append((str(seed), wall.stock, wall.pack, wall.verdict, goal.verdict, str(pair.pack.epochs_run), tests))
    return terminal.table(
        "Stock Trainer and pack, pair by pair",
        ("seed", "stock", "pack", "wall time", "same accuracy", "epochs", "test accuracy"),
        rows,
        numeric=("seed", "stock", "pack", "epochs"),
        caption=f"{EPOCHS} epochs planned; other programs used up to {_busiest(pairs):.0f} % of the CPUs meanwhile",
    )


def _busiest(pairs: list[Comparison]) -> float:
    return max(run.others_cpu_pct for pair in pairs for run in (pair.stock, pair.pack))


def _summary(summary: dict[str, Estimate]) -> terminal.RenderableType:
    return terminal.table(
        "All pairs",
        ("what", "median", "from", "to", "pairs"),
        [
            (what, text.number(found.median), text.number(found.low), text.number(found.high), str(found.n))
            for what, found in summary.items()
        ],
        numeric=("median", "from", "to", "pairs"),
        caption="95 % interval of the median from six pairs on; the whole range below that",
    )


if __name__ == "__main__":
    sys.exit(harness.main("demo", measure, __doc__))
