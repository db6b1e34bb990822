"""What each stop rule saves and what it gives up, over real training curves; and that the default decides as stock.

Curves are trained in the run (``stopping/curves.py``), then every rule is replayed over every curve
(``stopping/replay.py``), so the rules are compared on the same curves, pair by pair. On a few curves the real
callback stands in a real Trainer beside the stock one (``stopping/stock.py``).
"""

from __future__ import annotations

import logging
import sys
import warnings
from dataclasses import asdict
from typing import Any

import harness
import torch
from rich.console import Console
from rich.progress import track
from stopping.curves import recipes, train
from stopping.replay import STOP_RULES
from stopping.show import kinds_table, plot_of, rules_table
from stopping.stock import engine_mismatches, trainer_mismatches
from stopping.summary import by_kind, summarise

from lightning_speedups.reporting import plots

EPOCHS = 100
HEADLINE = "patience 10"


def measure(quick: bool) -> harness.Measurement:
    """Train curves, replay every stop rule over each, and compare the default with stock (~4 min; quick: ~1 min)."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    # Quick: one run of each net and noise level, at a constant rate.
    chosen = recipes()[::3] if quick else recipes()
    # One line that is rewritten; nothing at all where no one looks.
    progress = track(chosen, "training curves", console=Console(stderr=True), transient=True)
    curves = [train(recipe, EPOCHS) for recipe in progress]
    rows = [summarise(rule, curves) for rule in STOP_RULES]
    (headline,) = (row for row in rows if row.rule.label == HEADLINE)
    kinds = by_kind(headline.rule, curves)
    decisions_differ, decisions = engine_mismatches(curves)
    fits_differ, fits = trainer_mismatches(curves[::9])
    picture = harness.HERE / "results" / "early_stopping.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plots.save_png(plot_of(rows), picture)
    figures = {
        "curves": len(curves),
        "stock_mismatches": decisions_differ + fits_differ,
        "saved_pct": headline.saved_pct.median,
        "steps_saved": headline.steps_saved,
        "given_up_points": headline.test_mean,
        "worst_given_up_points": headline.test_worst,
        "gained_over_last_points": -headline.test_mean_to_last,
    }
    details: dict[str, Any] = {
        "headline_rule": HEADLINE,
        "decisions_compared": decisions,
        "fits_compared": fits,
        "plot": picture.name,
        "rules": {row.rule.label: {**asdict(row), "rule": row.rule.family} for row in rows},
        "kinds": {kind: {**asdict(row), "rule": row.rule.family} for kind, row in kinds.items()},
    }
    return harness.Measurement(figures, [rules_table(rows, EPOCHS), kinds_table(kinds)], details)


if __name__ == "__main__":
    sys.exit(harness.main("early_stopping", measure, __doc__))
