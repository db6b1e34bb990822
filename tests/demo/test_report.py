"""The demo's files hold what the screen shows, and need nothing else to be read."""

from __future__ import annotations

import io
import json
from pathlib import Path

from PIL import Image
from rich.console import Console

from lightning_speedups.demo import page, screen
from lightning_speedups.demo.compare import Comparison, compare
from lightning_speedups.demo.watch import Watch
from lightning_speedups.reporting import terminal
from lightning_speedups.reporting.store import stored_sections
from tests.demo.results import SETTINGS, account, result


def _comparison(text: str = "EarlyStopping: stopped") -> Comparison:
    stock = result(accuracies=(0.5, 0.9, 0.95, 0.94, 0.93, 0.94))
    return compare(stock, result(accuracies=(0.5, 0.9, 0.95), callbacks=(account(text),), others_cpu_pct=50.0))


def test_the_files_are_written_and_whole(tmp_path: Path) -> None:
    comparison = _comparison()
    paths = page.write_files(tmp_path, comparison, SETTINGS, "Python 3")
    assert [path.name for path in paths] == ["report.html", "report.json", "accuracy.png", "wall_time.png"]
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["stock"]["wall_s"] == 12.0
    assert [row["measure"] for row in data["rows"]] == [row.measure for row in comparison.rows]
    for name in ("accuracy.png", "wall_time.png"):
        with Image.open(tmp_path / name) as image:
            assert image.format == "PNG"
            assert image.width > 900


def test_the_page_shows_every_row_and_what_the_callback_said_as_text(tmp_path: Path) -> None:
    comparison = _comparison("<script>alert(1)</script>")
    html = page.write_files(tmp_path, comparison, SETTINGS, "Python 3")[0].read_text()
    assert all(row.verdict in html for row in comparison.rows)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "Other programs used" in html
    assert "http://" not in html.replace("http://www.w3.org", "")


def test_a_diverged_run_is_reported_too(tmp_path: Path) -> None:
    lost = result(accuracies=(0.1, 0.1, 0.1), final_test_acc=float("nan"))
    page.write_files(tmp_path, compare(result(), lost), SETTINGS, "Python 3")
    assert json.loads((tmp_path / "report.json").read_text())["pack"]["final_test_acc"] == "nan"


def test_a_later_report_in_the_folder_keeps_the_demos_section(tmp_path: Path) -> None:
    page.write_files(tmp_path, _comparison(), SETTINGS, "Python 3")
    assert [section.title for section in stored_sections(tmp_path)] == ["The two runs side by side"]


def test_the_screen_fits_80_columns_and_names_each_callback() -> None:
    shown = terminal.render(screen.summary(_comparison()))
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert 'ls.EarlyStopping("val_acc")' in shown
    assert "EarlyStopping: stopped" in shown
    assert "Other programs used" in shown


def test_without_a_terminal_progress_is_plain_lines_of_80_columns() -> None:
    out = io.StringIO()
    run = result()
    with Watch(Console(file=out, width=200)) as watch:
        watch.begin("stock Trainer", 4, "starting")
        for done in range(1, 5):
            watch.epochs(done, list(run.curve[:done]), 4)
            watch.epochs(done + 0.5, list(run.curve[:done]), 4)
        watch.finished(run)
    lines = out.getvalue().splitlines()
    assert lines[0] == "stock Trainer: starting"
    assert lines[1] == "stock Trainer: epoch 1/4, accuracy 50.00 %, 2.00 s"
    assert len(lines) == 6
    assert lines[-1] == "stock Trainer: stopped after 4 epochs, 8.00 s"
    assert "\x1b" not in out.getvalue()


def test_in_a_terminal_the_bars_fit_80_columns() -> None:
    out = io.StringIO()
    with Watch(Console(file=out, width=80, force_terminal=True, color_system=None)) as watch:
        watch.begin("with the pack", 100, "starting")
        watch.epochs(99.5, list(result().curve), 100)
        watch._bars.refresh()
    assert "epoch 100/100, accuracy 94.00 %" in out.getvalue()
    assert "…" not in out.getvalue()
