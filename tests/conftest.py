"""What every test runs under: one thread, quiet logging, a folder of its own, and no process left behind."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
for name in ("pytorch_lightning", "lightning", "lightning.pytorch", "lightning_fabric", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a fresh folder, so that what a Trainer or a report writes by default lands there."""
    monkeypatch.chdir(tmp_path)
