"""What every benchmark shares: its command line, its result file, and the reference that it is held against.

A benchmark is a file ``benchmarks/NAME.py`` with a function that measures and ends like this::

    def measure(quick: bool) -> harness.Measurement:
        ...
        return harness.Measurement(figures={"speedup": 1.8}, tables=[terminal.table(...)], details={"runs": [...]})

    if __name__ == "__main__":
        sys.exit(harness.main("NAME", measure, __doc__))

Headline figures are plain numbers with their unit in the name (``added_s``, ``gain_pct``); each is held in a band
(see ``references``). Exit code 0: every figure is in its band. 1: one is not, or a band is missing. 2: usage.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import references
from references import Band, ReferenceProblem, short
from rich.console import RenderableType
from rich.text import Text

from lightning_speedups.measuring.budget import cpu_budget
from lightning_speedups.reporting import terminal, text
from lightning_speedups.reporting.files import write_aside
from lightning_speedups.reporting.records import Record

HERE = Path(__file__).resolve().parent
DISTRIBUTIONS = ("lightning_speedups", "torch", "pytorch-lightning", "lightning", "torchmetrics", "numpy", "fairscale")


@dataclass(frozen=True)
class Measurement:
    """What a benchmark found: headline ``figures``, the ``tables`` to print, and ``details`` for the result file."""

    figures: Mapping[str, float]
    tables: Sequence[RenderableType] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result(Record):
    """What ``benchmarks/results/NAME.json`` holds."""

    name: str
    quick: bool
    figures: dict[str, float]
    bands: dict[str, Band]
    misses: tuple[str, ...]
    command: str
    cores: str
    versions: dict[str, str]
    seconds_s: float
    details: dict[str, Any]


def main(
    name: str,
    measure: Callable[[bool], Measurement],
    description: str | None = None,
    argv: Sequence[str] | None = None,
    folder: Path = HERE,
) -> int:
    """Measure, write the result, print, and compare with the reference; returns the exit code.

    Args:
        name: the benchmark's, which its files and its last line carry.
        measure: called once, with whether the quick part is asked for.
        description: what ``--help`` says.
        argv: the command line's arguments; those of the program if None.
        folder: where ``reference/`` and ``results/`` are.
    """
    options = _parser(name, description).parse_args(argv)
    started = time.perf_counter()
    found = measure(options.quick)
    seconds_s = time.perf_counter() - started
    figures = {key: _number(key, value) for key, value in found.figures.items()}
    bands, misses = _held(folder / "reference" / f"{name}.json", figures, options)
    result = Result(
        name=name,
        quick=options.quick,
        figures=figures,
        bands=bands,
        misses=tuple(misses),
        command=f"python benchmarks/{name}.py{' --quick' if options.quick else ''}",
        cores=str(cpu_budget()),
        versions=_versions(),
        seconds_s=seconds_s,
        details=dict(found.details),
    )
    (folder / "results").mkdir(parents=True, exist_ok=True)
    write_aside(folder / "results" / f"{name}.json", json.dumps(result.to_dict(), indent=1).encode())
    for renderable in (*found.tables, _figures_table(result)):
        terminal.show(renderable)
        print()
    for miss in misses:
        print(f"MISSED {miss}")
    print(f"{name}: {' '.join(f'{key}={short(value)}' for key, value in figures.items())}", flush=True)
    return 1 if misses else 0


def _held(
    reference: Path, figures: Mapping[str, float], options: argparse.Namespace
) -> tuple[dict[str, Band], list[str]]:
    quick, reason = options.quick, options.write_reference
    try:
        if reason is not None:
            references.write(reference, figures, quick=quick, reason=reason, band_pct=options.band_pct)
        return references.compare(reference, figures, quick=quick)
    except ReferenceProblem as problem:
        return {}, [str(problem)]


def _parser(name: str, description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"benchmarks/{name}.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="measure the part that CI can afford")
    parser.add_argument(
        "--write-reference",
        metavar="REASON",
        type=_reason,
        help="store a band around each figure that has none yet; REASON says why it is as wide as it is",
    )
    parser.add_argument(
        "--band-pct",
        metavar="PCT",
        type=_percentage,
        default=25.0,
        help="how far a band written so reaches to either side (default 25)",
    )
    return parser


def _reason(words: str) -> str:
    if len(words.split()) < 3:
        raise argparse.ArgumentTypeError(f"say in words why the band is as wide as it is, got {words!r}")
    return words.strip()


def _percentage(words: str) -> float:
    value = float(words)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {words!r}")
    return value


def _number(key: str, value: object) -> float:
    """A figure as a plain Python number, a numpy scalar included."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, bool):
        return int(plain)
    if not isinstance(plain, int | float):
        raise TypeError(f"figure {key!r} must be a number, got {value!r}; what is none belongs into `details`")
    return plain


def _figures_table(result: Result) -> RenderableType:
    rows: list[tuple[str | Text, ...]] = []
    for key, value in result.figures.items():
        band = result.bands.get(key)
        if band is None:
            verdict = Text("missing", style="bold red")
        else:
            verdict = Text("ok", style="green") if band.holds(value) else Text("MISSED", style="bold red")
        rows.append((key, short(value), "none" if band is None else str(band), verdict))
    return terminal.table(
        f"{result.name}: figures and their references",
        ("figure", "value", "reference", "verdict"),
        rows,
        numeric=("value",),
        caption=f"measured in {text.seconds(result.seconds_s)}{' (quick)' if result.quick else ''}; {result.cores}",
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {**found, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "unset")}
