"""The layout holds: files stay short, layers are kept, private parts are touched in one place each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.private_parts import INHERITED, PACKAGE, foreign_private_names

REPOSITORY = PACKAGE.parent
LONGEST = 400
CODE = ("*.py", "*.css", "*.html")
SOURCES = [
    path
    for folder in ("lightning_speedups", "tests", "benchmarks")
    for pattern in CODE
    for path in (REPOSITORY / folder).rglob(pattern)
]


def test_no_file_is_over_400_lines() -> None:
    lengths = {path.relative_to(REPOSITORY).as_posix(): len(path.read_bytes().splitlines()) for path in SOURCES}

    assert len(lengths) > 30
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST} == {}


def test_private_parts_are_touched_in_their_two_modules_only() -> None:
    used = {module: names - INHERITED for module, names in foreign_private_names().items()}

    assert {module for module, names in used.items() if names} <= {"_lightning.py", "_torch.py"}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter with the project's contracts on the package that lies in ``folder``."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", "pyproject.toml"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def copy_of_the_package(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("measuring/stats.py", "import lightning_speedups.stopping.rules", "Rooms stand side by side"),
        ("stopping/report.py", "import lightning_speedups.demo.images", "Rooms stand side by side"),
        ("stopping/rules.py", "import lightning_speedups._lightning", "Engines know of no Lightning"),
        ("stopping/callback.py", "import pytorch_lightning", "No Lightning is imported by name"),
        ("reporting/text.py", "def late():\n    from lightning.pytorch import Trainer", "No Lightning is imported"),
        ("new_at_the_top.py", "import os", "Rooms stand side by side"),
    ],
)
def test_the_import_contracts_notice_a_breach(module: str, line: str, contract: str, copy_of_the_package: Path) -> None:
    with (copy_of_the_package / PACKAGE.name / module).open("a") as source:
        source.write(f"\n{line}\n")

    linted = lint_imports(copy_of_the_package)

    assert linted.returncode != 0
    verdict = next(line for line in linted.stdout.splitlines() if line.startswith(contract))
    assert "BROKEN" in verdict


def test_the_import_contracts_hold(copy_of_the_package: Path) -> None:
    linted = lint_imports(copy_of_the_package)

    assert linted.returncode == 0, linted.stdout
