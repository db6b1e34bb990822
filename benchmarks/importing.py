"""What the package costs a program that has it installed: seconds to import, modules loaded, time in every Trainer.

The import is measured in fresh processes that have imported Lightning already, as any user of it has. What the entry
points add to a Trainer is measured in one process: Trainers made while the package is hidden from Python's list of
installed distributions, and Trainers made while it is on it, by turns.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from unittest import mock

import harness

from lightning_speedups.measuring.paired import PairedResult, interleaved
from lightning_speedups.measuring.stats import Estimate, median_interval
from lightning_speedups.measuring.trial import run_in_child
from lightning_speedups.reporting import terminal, text

NAMESPACES = ("pytorch_lightning", "lightning.pytorch")
HEAVY = ("fairscale", "matplotlib", "jinja2", "typer", "sklearn", "scipy")
OURS = "lightning_speedups"
CHILD_TIMEOUT_S = 300

_FRESH = """
import json, sys, time
import {namespace}
before = set(sys.modules)
started = time.perf_counter()
import lightning_speedups
import_s = time.perf_counter() - started
lightning_speedups.EarlyStopping
first_use_s = time.perf_counter() - started
print(json.dumps([import_s, first_use_s, sorted(set(sys.modules) - before)]))
"""

Listing = Callable[..., Iterable[importlib.metadata.Distribution]]


def measure(quick: bool) -> harness.Measurement:
    """Both Lightnings by turns for the imports, then each in a process of its own for the Trainers."""
    fresh = {namespace: [] for namespace in NAMESPACES}
    for _ in range(3 if quick else 9):
        for namespace in NAMESPACES:
            fresh[namespace].append(fresh_import(namespace))
    trainers = {namespace: _in_child(namespace, 60 if quick else 300) for namespace in NAMESPACES}
    figures: dict[str, float] = {}
    rows: list[tuple[str, str, str]] = []
    details = {}
    for namespace, prefix in zip(NAMESPACES, ("", "lightning_"), strict=True):
        imports, first_uses, modules = zip(*fresh[namespace], strict=True)
        heavy = sorted({module for added in modules for module in heavy_in(added)})
        added = trainers[namespace].difference_s
        figures |= {
            f"{prefix}import_s": median_interval(imports).median,
            f"{prefix}heavy_modules": len(heavy),
            f"{prefix}trainer_added_ms": added.median * 1e3,
        }
        rows += [
            (namespace, "import of the package after it", _seconds(median_interval(imports))),
            ("", "the same with a first use of EarlyStopping", _seconds(median_interval(first_uses))),
            ("", "modules loaded, of which heavy", f"{len(modules[0])}, {', '.join(heavy) or 'none'}"),
            ("", "a Trainer without the package", _seconds(trainers[namespace].a_s)),
            ("", "what its entry points add", _seconds(added)),
        ]
        details[namespace] = {"imports_s": imports, "modules": modules[0], "trainer": asdict(trainers[namespace])}
    table = terminal.table(
        "What having the package installed costs",
        ("after", "what", "median [95 % interval]"),
        rows,
        caption=f"heavy: {', '.join(HEAVY)}, unless Lightning has loaded it already",
    )
    return harness.Measurement(figures, [table], details)


def fresh_import(namespace: str) -> tuple[float, float, list[str]]:
    """In a new process, after importing ``namespace``: seconds, seconds with a first use, modules added by both."""
    command = [sys.executable, "-c", _FRESH.format(namespace=namespace)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=CHILD_TIMEOUT_S)
    import_s, first_use_s, modules = json.loads(done.stdout.splitlines()[-1])
    return import_s, first_use_s, modules


def heavy_in(modules: Iterable[str]) -> list[str]:
    """Those of ``modules`` that belong to a package which an import must not load."""
    return [module for module in modules if module.partition(".")[0] in HEAVY]


def trainer_pairs(namespace: str, pairs: int) -> PairedResult:
    """Trainers with the package hidden against Trainers with it in sight, once both have been made a few times."""
    trainer_class = importlib.import_module(namespace).Trainer
    for name in ("pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    hidden, in_sight = _listing_without(OURS), _listing_without("")
    for listing, expected in ((hidden, False), (in_sight, True)):
        if _has_our_entry_point(listing, namespace) != expected:
            raise RuntimeError(f"the package is not installed, or cannot be hidden: entry points of {namespace}")

    def seconds_to_make(listing: Listing) -> float:
        with mock.patch.object(importlib.metadata, "distributions", listing):
            started = time.perf_counter()
            trainer_class(
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            return time.perf_counter() - started

    return interleaved(
        lambda: seconds_to_make(hidden), lambda: seconds_to_make(in_sight), pairs=pairs, warm_up=5, a_a=True
    )


def _in_child(namespace: str, pairs: int) -> PairedResult:
    outcome = run_in_child(trainer_pairs, namespace, pairs, timeout_s=CHILD_TIMEOUT_S)
    if outcome.value is None:
        raise RuntimeError(f"{outcome.error}\n{outcome.traceback_text or ''}")
    return outcome.value


def _listing_without(hidden: str) -> Listing:
    """Python's list of installed distributions less one; both sides go through it, so that it costs both the same."""
    everything = importlib.metadata.distributions

    def listing(**context: object) -> list[importlib.metadata.Distribution]:
        # The name as the folder spells it, which `entry_points` reads too; `Distribution.name` would parse a file.
        return [found for found in everything(**context) if found._normalized_name != hidden]

    return listing


def _has_our_entry_point(listing: Listing, namespace: str) -> bool:
    with mock.patch.object(importlib.metadata, "distributions", listing):
        points = importlib.metadata.entry_points(group=f"{namespace}.callbacks_factory")
    return any(point.value.startswith(f"{OURS}.") for point in points)


def _seconds(estimate: Estimate) -> str:
    return f"{text.seconds(estimate.median)} [{text.seconds(estimate.low)}, {text.seconds(estimate.high)}]"


if __name__ == "__main__":
    sys.exit(harness.main("importing", measure, __doc__))
