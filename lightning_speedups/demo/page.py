"""The demo's files: ``report.json``, ``report.html`` and the drawings as PNG."""

from __future__ import annotations

import json
from pathlib import Path

from lightning_speedups.demo import plots as drawings
from lightning_speedups.demo.compare import NOT_REACHED, Comparison, Gain, Row
from lightning_speedups.demo.measures import CallbackAccount, RunSettings
from lightning_speedups.demo.pack import PARTS
from lightning_speedups.reporting import plots, text
from lightning_speedups.reporting.files import write_aside
from lightning_speedups.reporting.html import render_page
from lightning_speedups.reporting.sections import Chart, Code, Fact, Section, Table

TITLE = "A stock Trainer and the same Trainer with lightning_speedups"


def write_files(folder: Path, comparison: Comparison, settings: RunSettings, machine: str) -> list[Path]:
    """Write all files and return their paths.

    Args:
        folder: exists and can be written.
        comparison: what to report.
        settings: what the runs were told.
        machine: versions and cores, in a line.

    Raises:
        OSError: where a file cannot be written.
    """
    figures = {
        "accuracy.png": drawings.accuracy_over_time(comparison.stock, comparison.pack),
        "wall_time.png": drawings.where_the_time_went(comparison.stock, comparison.pack),
    }
    charts = (
        Chart(plots.to_svg(figures["accuracy.png"], title="Validation accuracy over wall time"), _accuracy_words()),
        Chart(plots.to_svg(figures["wall_time.png"], title="Where the wall time went"), "Both bars start at the fit."),
    )
    main = _main_section(comparison, settings, charts, machine)
    of_callbacks = zip(comparison.pack.callbacks, comparison.gains, strict=False)
    sections = [main, *(_callback_section(account, gain) for account, gain in of_callbacks)]
    # The key ``section`` lets a callback that reports into this folder later keep the demo's part of the page.
    data = {**comparison.to_dict(), "machine": machine, "section": main.to_dict()}
    files = {
        "report.html": render_page(TITLE, sections, lead=f"{comparison.headline} {comparison.warning}".strip()).encode(
            "utf-8"
        ),
        "report.json": json.dumps(data, indent=1, allow_nan=False).encode("ascii"),
    }
    for name, content in files.items():
        write_aside(folder / name, content)
    for name, figure in figures.items():
        plots.save_png(figure, folder / name)
    return [folder / name for name in (*files, *figures)]


def method(settings: RunSettings, comparison: Comparison) -> tuple[str, ...]:
    """How it was measured, for a reader who wants to judge the figures."""
    taken = "all images" if settings.every == 1 else f"one image in {settings.every}"
    return (
        f"Two processes, one after the other, seed {settings.seed}: the same program, images ({taken}), batch order and"
        " weights at the start. The stock run is the classic recipe: fixed epochs, no loader workers, 32-bit. Nothing"
        " is tuned against either.",
        f"One run each. Times less than {comparison.noise_pct:.0f} % apart are called no difference: no finer can the"
        " epochs that both ran be compared (and never finer than 5 %). benchmarks/demo.py repeats the pair and gives"
        " intervals.",
        "Training is everything outside evaluation. An evaluation counts from the end of the batch before it, and the"
        " sanity check is one. Start-up before the fit is in no figure.",
        "Validation picks the epoch, so its accuracy flatters; the test images took part in nothing, and one of them is"
        f" {100 / comparison.stock.test_images:.2f} points. Peak memory is"
        " that of the process and its workers, looked at once a second from outside.",
    )


def _accuracy_words() -> str:
    return "Epoch by epoch both have the same curve, from one seed. Stars mark the best epochs, dots the ends."


def _main_section(comparison: Comparison, settings: RunSettings, charts: tuple[Chart, ...], machine: str) -> Section:
    rows = {row.measure: row for row in comparison.rows}
    wall, goal = comparison.rows[0], comparison.rows[1]
    test = rows["test accuracy of the weights left"]
    return Section(
        title="The two runs side by side",
        summary="A program that trains a small CNN on JPEG images of handwritten digits, without and with the pack.",
        facts=(
            Fact("Wall time", wall.verdict, _instead(wall)),
            Fact(goal.measure.capitalize(), goal.verdict, _instead(goal)),
            Fact("Test accuracy", test.pack, f"{test.stock} for the stock run"),
        ),
        tables=(_comparison_table(comparison), _gain_table(comparison)),
        charts=charts,
        notes=(*method(settings, comparison), machine),
        code=(Code(pack_lines(), "What the pack's run adds to the Trainer"),),
    )


def _instead(row: Row) -> str:
    return f"the stock run took {row.stock}" if row.verdict == NOT_REACHED else f"{row.pack} instead of {row.stock}"


def pack_lines() -> str:
    """The lines that a user adds for the pack."""
    calls = "\n".join(f"    {part.call}," for part in PARTS)
    return f"import lightning_speedups as ls\n\ntrainer = pl.Trainer(max_epochs=..., callbacks=[\n{calls}\n])"


def _comparison_table(comparison: Comparison) -> Table:
    return Table(
        "Stock Trainer and pack",
        ("measure", "stock", "pack", "verdict"),
        tuple((row.measure, row.stock, row.pack, row.verdict) for row in comparison.rows),
        numeric=("stock", "pack"),
    )


def _gain_table(comparison: Comparison) -> Table:
    return Table(
        "Whose gain it is",
        ("cause", "time saved", "share", "how"),
        tuple((gain.cause, text.seconds(gain.gain_s), share(gain.share_pct), gain.how) for gain in comparison.gains),
        numeric=("time saved", "share"),
    )


def share(pct: float | None) -> str:
    """A share of the gain as text; where the pack was not faster there is none."""
    return "none" if pct is None else f"{pct:.0f} %"


def _callback_section(account: CallbackAccount, gain: Gain) -> Section:
    return Section(
        title=account.name,
        summary=text.one_line(account.text.partition("\n")[0], 300),
        facts=(Fact("Its share of the gain", share(gain.share_pct), f"{text.seconds(gain.gain_s)}: {gain.how}"),),
        code=(Code(account.call, "As the demo made it"), Code(account.text, "What it reports")),
    )
