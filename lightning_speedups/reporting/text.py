"""Numbers and foreign strings as text: one place, so that a report, a table and a page say the same.

Every number helper takes None for a figure that was not measured, and says so.
"""

from __future__ import annotations

import math
import unicodedata

NOT_MEASURED = "not measured"

_TURNS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
_MIB_PER_GIB = 1024
_BYTES_PER_MIB = 2**20


def printable(text: object) -> str:
    """``str(text)`` with everything that could steer a terminal or break an encoder made visible.

    Control characters (an escape sequence, say), marks that turn the writing direction, and lone surrogates (from
    undecodable file names) come out as ``\\x1b``, ``\\u202e`` and ``\\udc80``; tabs become spaces; line breaks stay.
    """
    return "".join(_visible(character) for character in str(text).replace("\r\n", "\n").replace("\t", "    "))


def _visible(character: str) -> str:
    hidden = unicodedata.category(character) in ("Cc", "Cs") or unicodedata.bidirectional(character) in _TURNS
    if character == "\n" or not hidden:
        return character
    return character.encode("unicode_escape").decode("ascii")


def one_line(text: object, limit: int = 80) -> str:
    """``printable(text)`` on one line of at most ``limit`` characters, cut with an ellipsis."""
    line = " ".join(printable(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def number(value: float | None) -> str:
    """A plain figure with four significant digits: ``0.9831``, ``12,345``, ``1.2e-07``."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return count(int(value))
    if math.isfinite(value) and 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def count(value: int | None) -> str:
    """A count with its thousands apart: ``12,345``."""
    return NOT_MEASURED if value is None else f"{value:,d}"


def ratio(value: float | None) -> str:
    """A speed-up: ``3.2x``; two decimals below 2, where they decide."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.2f}x" if abs(value) < 2 else f"{value:.1f}x"


def percent(value: float | None) -> str:
    """A share given in percent: ``12.3 %``, ``0.04 %``."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.2f} %" if abs(value) < 1 else f"{value:.1f} %"


def seconds(value: float | None) -> str:
    """A duration given in seconds: ``12.0 us``, ``850 ms``, ``1.20 s``, ``2 min 05 s``, ``3 h 10 min``."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return f"{value} s"
    sign, size = ("-" if value < 0 else ""), abs(value)
    if size == 0:
        return "0 s"
    if size < 0.9995e-3:
        return f"{sign}{_three_digits(size * 1e6)} us"
    if size < 0.9995:
        return f"{sign}{_three_digits(size * 1e3)} ms"
    if size < 59.95:
        return f"{sign}{_three_digits(size)} s"
    minutes, rest_s = divmod(round(size), 60)
    if minutes < 60:
        return f"{sign}{minutes} min {rest_s:02d} s"
    hours, rest_min = divmod(round(size / 60), 60)
    return f"{sign}{hours:,d} h {rest_min:02d} min"


def mebibytes(value: float | None) -> str:
    """An amount of memory given in MiB: ``0.25 MiB``, ``512 MiB``, ``1.50 GiB``."""
    if value is None:
        return NOT_MEASURED
    if abs(value) < _MIB_PER_GIB:
        return f"{_three_digits(value)} MiB"
    return f"{_three_digits(value / _MIB_PER_GIB)} GiB"


def size_of(value: int | None) -> str:
    """An amount of memory given in bytes: ``12 bytes``, ``3.5 KiB``, then as ``mebibytes``."""
    if value is None:
        return NOT_MEASURED
    if abs(value) < 1024:
        return f"{value} bytes"
    return f"{value / 1024:.1f} KiB" if abs(value) < _BYTES_PER_MIB else mebibytes(value / _BYTES_PER_MIB)


def _three_digits(value: float) -> str:
    size = abs(value)
    if size < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if size < 99.95 else f"{value:,.0f}"
