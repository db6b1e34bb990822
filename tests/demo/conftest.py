"""The digits as JPEG files, written once for all tests of the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_speedups.demo import images


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with all images in it."""
    folder = tmp_path_factory.mktemp("cache")
    images.prepare(folder)
    return folder
