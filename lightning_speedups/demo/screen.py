"""What the demo prints when both runs are over: the comparison, and what each callback did."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from lightning_speedups.demo.compare import Comparison, Row
from lightning_speedups.demo.page import share
from lightning_speedups.reporting import terminal, text

_COLOUR = {True: "green", False: "red", None: "dim"}


def summary(comparison: Comparison) -> RenderableType:
    """The comparison as a table, and below it each callback's own account and its share of the gain."""
    parts: list[RenderableType] = [_table(comparison)]
    if comparison.warning:
        parts.append(Text(comparison.warning, style="yellow"))
    parts.append(Text("\nWhat each callback did", style="bold"))
    for account in comparison.pack.callbacks:
        parts += [Padding(Text(account.call, style="cyan"), (0, 0, 0, 1)), Padding(Text(account.text), (0, 0, 0, 3))]
    return Group(*parts, Text(), _gains(comparison))


def _table(comparison: Comparison) -> RenderableType:
    noise = f"{comparison.noise_pct:.0f} %"
    return terminal.table(
        "The same program with a stock Trainer and with the pack",
        ("measure", "stock", "pack", "verdict"),
        [(row.measure, row.stock, row.pack, _verdict(row)) for row in comparison.rows],
        numeric=("stock", "pack"),
        caption=f"One run each, same seed; times less than {noise} apart are called no difference. One test"
        f" image is {100 / comparison.stock.test_images:.2f} points.",
    )


def _verdict(row: Row) -> Text:
    return Text(row.verdict, style=_COLOUR[row.better])


def _gains(comparison: Comparison) -> RenderableType:
    return terminal.table(
        "Whose gain it is",
        ("cause", "time saved", "share", "how"),
        [(gain.cause, text.seconds(gain.gain_s), share(gain.share_pct), gain.how) for gain in comparison.gains],
        numeric=("time saved", "share"),
    )
