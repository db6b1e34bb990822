"""scikit-learn's handwritten digits as a folder of JPEG files, written once and read by every later run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from lightning_speedups.demo.errors import USAGE, DemoError

CACHE_VARIABLE = "LIGHTNING_SPEEDUPS_CACHE"
FOLDER = "digits-jpeg-384-v1"
COUNT = 1797

# ImageNet's photographs average about 400 x 350 pixels: decoding one of these costs what decoding an image costs.
SIDE_PX = 384
_QUALITY = 90
_STALE_AFTER_S = 3600.0
_INSTALLED_AS = {"sklearn": "scikit-learn", "PIL": "Pillow"}


def require_demo_extra() -> None:
    """Refuse to start without scikit-learn and Pillow.

    Raises:
        DemoError: naming what is missing and the command that installs it.
    """
    missing = [name for module, name in _INSTALLED_AS.items() if find_spec(module) is None]
    if missing:
        raise DemoError(
            f'the demo needs {" and ".join(missing)}, not installed here: pip install "lightning_speedups[demo]"', USAGE
        )


def default_cache_dir() -> Path:
    """Where the platform keeps caches, or what the variable ``LIGHTNING_SPEEDUPS_CACHE`` names."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        parent = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        parent = "~/Library/Caches"
    else:
        parent = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(parent).expanduser() / "lightning_speedups"


def prepare(cache_dir: Path, on_written: Callable[[int], None] = lambda done: None) -> Path:
    """The folder ``<label>/<number>.jpg`` of all images, written first where it is not there.

    The files are written beside their place and moved there by one rename, so that an interrupted run leaves no
    half a cache, and of several runs that start at once the first to finish wins and the others use its files.

    Args:
        cache_dir: the folder that holds the cache; made where missing.
        on_written: called with the number of images written so far, now and then.

    Raises:
        DemoError: the folder cannot be written, or holds less than all images.
    """
    final = cache_dir / FOLDER
    if not final.is_dir():
        try:
            _write_aside(cache_dir, final, on_written)
        except OSError as error:
            raise DemoError(
                f"cannot write the images to the cache folder {cache_dir} ({error.strerror or error});"
                f" name a folder that can be written with --cache-dir or {CACHE_VARIABLE}",
                USAGE,
            ) from error
    found = len(samples(final))
    if found != COUNT:
        raise DemoError(f"the cache {final} holds {found} of {COUNT} images; delete that folder and run again", USAGE)
    return final


def samples(folder: Path) -> list[tuple[Path, int]]:
    """Every image of ``folder`` with its label, in the order of scikit-learn's data set."""
    return sorted(
        ((path, int(path.parent.name)) for path in folder.glob("[0-9]/*.jpg")), key=lambda sample: sample[0].name
    )


def _write_aside(cache_dir: Path, final: Path, on_written: Callable[[int], None]) -> None:
    cache_dir.mkdir(parents=True, exist_ok=True)
    _remove_stale(cache_dir)
    aside = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=cache_dir))
    try:
        _write_all(aside, on_written)
        aside.chmod(0o755)
        try:
            aside.rename(final)
        except OSError:
            # Another run has put its folder there meanwhile, and a folder that holds files is not replaced.
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _remove_stale(cache_dir: Path) -> None:
    """Clear what killed runs left beside the cache; a younger folder may belong to a run that is writing now."""
    for left in cache_dir.glob(f".{FOLDER}-*"):
        if time.time() - left.stat().st_mtime > _STALE_AFTER_S:
            shutil.rmtree(left, ignore_errors=True)


def _write_all(folder: Path, on_written: Callable[[int], None]) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for label in range(10):
        (folder / str(label)).mkdir()
    for index, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        image = Image.fromarray((pixels * (255 / 16)).astype("uint8"))
        image = image.resize((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC)
        image.save(folder / str(label) / f"{index:04d}.jpg", quality=_QUALITY)
        if index % 50 == 49 or index == COUNT - 1:
            on_written(index + 1)
