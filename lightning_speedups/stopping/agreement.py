"""One value for all ranks: what each rank saw is gathered once, and every rank draws the same conclusion. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Agreed:
    """What all ranks together saw of one metric.

    Attributes:
        value: mean over the ranks that logged it anew, NaN or infinite where any of theirs is; None where none did.
        absent_ranks: the ranks that have never logged it, where others have.
    """

    value: float | None
    absent_ranks: tuple[int, ...]
    known: bool


def agree(known: Sequence[bool], fresh: Sequence[bool], values: Sequence[float]) -> Agreed:
    """Put together what every rank saw.

    Args:
        known: per rank, whether the metric exists there.
        fresh: per rank, whether it has been logged since the last check.
        values: per rank, its value; anything where it is not fresh.

    Example:
        >>> agree([True, True], [True, True], [1.0, 2.0]).value
        1.5
    """
    absent = tuple(rank for rank, exists in enumerate(known) if not exists) if any(known) else ()
    counted = [value for value, is_fresh in zip(values, fresh, strict=True) if is_fresh]
    return Agreed(_mean(counted), absent, any(known))


def _mean(values: list[float]) -> float | None:
    if not values:
        return None
    for value in values:
        if not math.isfinite(value):
            return value
    # Equal values must stay what they are to the last bit, which a sum and a division need not give.
    return values[0] if len(set(values)) == 1 else math.fsum(values) / len(values)
