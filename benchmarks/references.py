"""The stored reference of a benchmark: a band for each headline figure, and the reason for its width.

``benchmarks/reference/NAME.json`` holds::

    {"figures": {"speedup": {"low": 1.5, "high": 2.4, "reason": "1.6 to 2.2 in five runs on 2 cores"}},
     "quick":   {"speedup": {"low": 1.1, "reason": "3 pairs only: an interval of +-0.4"}}}

``low`` and ``high`` may each be left out, and both where the reason says why nothing can be held. ``quick`` holds
the bands that differ with ``--quick``; the others are those of ``figures``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lightning_speedups.reporting.files import write_aside
from lightning_speedups.reporting.records import Record

PARTS = ("figures", "quick")


class ReferenceProblem(Exception):
    """The stored reference cannot be used; the message says what to write."""


@dataclass(frozen=True)
class Band(Record):
    """Where a figure must lie, and why the band is as wide as it is."""

    low: float | None
    high: float | None
    reason: str

    def holds(self, value: float) -> bool:
        """Whether a value lies in the band; what is no number never does, unless nothing is held."""
        if self.low is None and self.high is None:
            return True
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.low is not None and self.low == self.high:
            return f"exactly {self.low:.4g}"
        if self.low is None:
            return "not held" if self.high is None else f"at most {self.high:.4g}"
        return f"at least {self.low:.4g}" if self.high is None else f"{self.low:.4g} to {self.high:.4g}"


def short(value: float) -> str:
    """A figure as the last line of a benchmark gives it."""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def compare(file: Path, figures: Mapping[str, float], *, quick: bool) -> tuple[dict[str, Band], list[str]]:
    """The band of each figure that has one, and what is wrong in a sentence each.

    Raises:
        ReferenceProblem: there is no reference, or it cannot be read.
    """
    how = f'write one with --write-reference "REASON"{" --quick" if quick else ""}'
    if not file.exists():
        raise ReferenceProblem(f"there is no reference {_name(file)}; {how}")
    stored = _read(file)
    held_now = stored["quick"] if quick else stored["figures"]
    known = {**stored["figures"], **held_now}
    misses = [f"{key}={short(value)} has no reference; {how}" for key, value in figures.items() if key not in known]
    misses += [
        f"{key}={short(value)}, reference {known[key]} ({known[key].reason})"
        for key, value in figures.items()
        if key in known and not known[key].holds(value)
    ]
    misses += [
        f"{key} has a reference and was not measured; drop the one or restore the other"
        for key in held_now
        if key not in figures
    ]
    return {key: known[key] for key in figures if key in known}, misses


def write(file: Path, figures: Mapping[str, float], *, quick: bool, reason: str, band_pct: float) -> None:
    """Add the bands that are missing; those that are stored stay, so that none is loosened without being seen.

    Raises:
        ReferenceProblem: the stored file cannot be read, or a figure is no number.
    """
    stored = _read(file) if file.exists() else {part: {} for part in PARTS}
    part = stored["quick" if quick else "figures"]
    for key, value in figures.items():
        if key in part or (quick and key in stored["figures"]):
            continue
        if not math.isfinite(value):
            raise ReferenceProblem(f"{key} is {value}, around which there is no band; measure it again")
        margin = abs(value) * band_pct / 100
        part[key] = Band(value - margin, value + margin, reason)
    plain = {name: {key: _to_json(band) for key, band in bands.items()} for name, bands in stored.items() if bands}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_aside(file, (json.dumps(plain, indent=2) + "\n").encode())


def _read(file: Path) -> dict[str, dict[str, Band]]:
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReferenceProblem(f"{_name(file)} is no JSON ({error})") from error
    if not isinstance(stored, dict) or not set(stored) <= set(PARTS):
        raise ReferenceProblem(f'{_name(file)} must be an object with the keys "figures" and "quick" only')
    if not all(isinstance(bands, dict) for bands in stored.values()):
        raise ReferenceProblem(f'{_name(file)}: "figures" and "quick" must be objects that hold one band a figure')
    return {
        part: {key: _band(f"{_name(file)}, {key}", entry) for key, entry in stored.get(part, {}).items()}
        for part in PARTS
    }


def _band(where: str, entry: object) -> Band:
    if not isinstance(entry, dict) or not set(entry) <= {"low", "high", "reason"}:
        raise ReferenceProblem(f'{where} must be an object with the keys "low", "high" and "reason", got {entry!r}')
    low, high, reason = entry.get("low"), entry.get("high"), entry.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise ReferenceProblem(f'{where} needs a "reason": why the band is as wide as it is')
    for bound in (low, high):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int | float)):
            raise ReferenceProblem(f"{where} has the bound {bound!r}, which is no number")
    if low is not None and high is not None and low > high:
        raise ReferenceProblem(f"{where} has a low of {low} above its high of {high}")
    return Band(low, high, reason)


def _to_json(band: Band) -> dict[str, float | str]:
    bounds = {name: bound for name, bound in (("low", band.low), ("high", band.high)) if bound is not None}
    return {**bounds, "reason": band.reason}


def _name(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"
