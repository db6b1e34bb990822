"""The command as a user meets it: help, mistakes, the whole demo, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from lightning_speedups import __version__
from lightning_speedups.cli import app
from lightning_speedups.demo import images
from lightning_speedups.measuring import processes

COMMAND = (sys.executable, "-c", "from lightning_speedups.cli import main; main()", "demo")


def _invoke(*arguments: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(app, arguments, env={"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"})
    return outcome.exit_code, outcome.output


@pytest.mark.parametrize("arguments", [("--help",), ("demo", "--help")])
def test_help_fits_80_columns(arguments: tuple[str, ...]) -> None:
    code, shown = _invoke(*arguments)
    assert code == 0
    assert "Usage: " in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_version() -> None:
    assert _invoke("--version") == (0, f"lightning-speedups {__version__}\n")


def test_help_and_version_import_nothing_heavy() -> None:
    program = (
        "import sys; import lightning_speedups.cli;"
        "print([m for m in ('torch', 'pytorch_lightning', 'matplotlib', 'sklearn', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--epochs", "0"), "got 0; give a whole number from 1"),
        (("--epochs", "many"), "got many; give a whole number"),
        (("--seed", "-1"), "got -1; give a whole number from 0"),
        (("--seed", str(2**32)), "got 4294967296"),
        (("--speed", "1"), "--speed"),
    ],
)
def test_a_wrong_option_is_named_with_its_value(arguments: tuple[str, ...], told: str) -> None:
    code, shown = _invoke("demo", *arguments)
    assert code == 2
    assert told in " ".join(shown.replace("│", " ").split())


def test_a_report_folder_that_cannot_be_written_is_refused_before_any_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code, shown = _invoke("demo", "--report-dir", str(tmp_path / "file" / "report"))
    assert code == 2
    assert "cannot write to the report folder" in shown
    assert "--report-dir" in shown


def test_a_missing_extra_is_one_line_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "find_spec", lambda name: None)
    code, shown = _invoke("demo")
    assert code == 2
    assert shown.count("\n") == 1
    assert 'needs scikit-learn and Pillow, not installed here: pip install "lightning_speedups[demo]"' in shown


@pytest.mark.slow
def test_the_quick_demo_from_start_to_end(tmp_path: Path, cache: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--quick", "--epochs", "3", "--cache-dir", str(cache)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "wall time of the fit" in done.stdout
    assert "EarlyStopping" in done.stdout
    report = json.loads((tmp_path / "demo_report" / "report.json").read_text())
    stock, pack = report["stock"]["curve"], report["pack"]["curve"]
    assert [point["val_loss"] for point in stock] == [point["val_loss"] for point in pack]
    # Besides the report's folder nothing is left where the user stands.
    assert [path.name for path in tmp_path.iterdir()] == ["demo_report"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C cannot be sent to one process on Windows")
def test_ctrl_c_ends_the_runs_process_and_says_where_the_rest_is(tmp_path: Path, cache: Path) -> None:
    demo = subprocess.Popen(
        [*COMMAND, "--quick", "--cache-dir", str(cache)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 120
        log = tmp_path / "demo_report" / "stock.log"
        while time.monotonic() < deadline and not (log.exists() and "Seed set" in log.read_text()):
            time.sleep(0.2)
        children = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(signal.SIGINT)
        _, told = demo.communicate(timeout=60)
    finally:
        demo.kill()
        demo.communicate()
    assert demo.returncode == 130
    assert "stopped by Ctrl-C; what was measured until then is in" in told
    assert json.loads((tmp_path / "demo_report" / "partial.json").read_text())["unfinished"] == "stock Trainer"
    assert children
    assert not any(processes.alive(child) for child in children)
