"""The digits are written as JPEG files once, whole or not at all, whatever else happens."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from lightning_speedups.demo import images
from lightning_speedups.demo.errors import DemoError


def _asides(folder: Path) -> list[Path]:
    return list(folder.glob(f".{images.FOLDER}-*"))


def test_every_digit_is_a_jpeg_of_the_stated_size_under_its_label(cache: Path) -> None:
    found = images.samples(cache / images.FOLDER)
    assert [label for _, label in found] == load_digits().target.tolist()
    with Image.open(found[0][0]) as image:
        assert (image.format, image.size) == ("JPEG", (images.SIDE_PX, images.SIDE_PX))


def test_a_second_run_writes_nothing(cache: Path) -> None:
    told: list[int] = []
    before = (cache / images.FOLDER).stat().st_mtime_ns
    assert images.prepare(cache, told.append) == cache / images.FOLDER
    assert told == []
    assert (cache / images.FOLDER).stat().st_mtime_ns == before


def _interrupt(done: int) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_first_run_leaves_no_half_a_cache(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        images.prepare(tmp_path, _interrupt)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_cleared_and_a_run_that_is_writing_is_not_disturbed(tmp_path: Path) -> None:
    left, writing = tmp_path / f".{images.FOLDER}-left", tmp_path / f".{images.FOLDER}-writing"
    for folder in (left, writing):
        (folder / "0").mkdir(parents=True)
    long_ago = time.time() - 2 * 3600
    os.utime(left, (long_ago, long_ago))
    with pytest.raises(KeyboardInterrupt):
        images.prepare(tmp_path, _interrupt)
    assert _asides(tmp_path) == [writing]


@pytest.mark.slow
def test_several_runs_that_start_at_once_end_with_one_whole_cache(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from lightning_speedups.demo import images; images.prepare(pathlib.Path(sys.argv[1]))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stderr=subprocess.PIPE) for _ in range(3)
    ]
    try:
        ended = [(process.wait(120), process.stderr.read() if process.stderr else b"") for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert ended == [(0, b"")] * 3
    assert len(images.samples(tmp_path / images.FOLDER)) == images.COUNT
    assert _asides(tmp_path) == []


def test_a_cache_that_lost_files_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / images.FOLDER / "0").mkdir(parents=True)
    with pytest.raises(DemoError, match=r"holds 0 of 1797 images; delete that folder") as caught:
        images.prepare(tmp_path)
    assert caught.value.exit_code == 2


def test_a_cache_folder_that_cannot_be_written_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DemoError, match=r"cannot write the images .*--cache-dir or LIGHTNING_SPEEDUPS_CACHE"):
        images.prepare(tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    ("system", "variables", "expected"),
    [
        ("linux", {images.CACHE_VARIABLE: "/elsewhere"}, "/elsewhere"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/lightning_speedups"),
        ("linux", {"HOME": "/home/me"}, "/home/me/.cache/lightning_speedups"),
        ("darwin", {"HOME": "/Users/me"}, "/Users/me/Library/Caches/lightning_speedups"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/lightning_speedups"),
    ],
)
def test_the_cache_is_where_the_platform_or_the_user_says(
    monkeypatch: pytest.MonkeyPatch, system: str, variables: dict[str, str], expected: str
) -> None:
    for name in (images.CACHE_VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", system)
    assert images.default_cache_dir() == Path(expected)
