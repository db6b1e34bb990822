"""``lightning-speedups demo`` from start to end: images, the stock run, the pack's run, the comparison, the files."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from lightning_speedups._version import __version__
from lightning_speedups.demo import images, page, screen
from lightning_speedups.demo.compare import Comparison, compare
from lightning_speedups.demo.errors import INTERRUPTED, USAGE, DemoError
from lightning_speedups.demo.measures import EpochPoint, RunResult, RunSettings
from lightning_speedups.demo.plots import PACK, STOCK
from lightning_speedups.demo.runs import Progress, run_in_process
from lightning_speedups.demo.watch import Watch
from lightning_speedups.measuring.budget import cpu_budget
from lightning_speedups.reporting import terminal
from lightning_speedups.reporting.files import write_aside

QUICK_EVERY = 4
PARTIAL = "partial.json"


@dataclass
class _SoFar:
    """What is known at any moment, in case that it ends there."""

    finished: dict[str, RunResult] = field(default_factory=dict)
    running: str = ""
    points: list[EpochPoint] = field(default_factory=list)


def run_demo(*, epochs: int, seed: int, report_dir: Path, cache_dir: Path, quick: bool) -> Comparison:
    """Train twice, compare, print and write the report.

    Args:
        epochs: planned for both runs.
        seed: of both runs.
        report_dir: where the files go; made where missing.
        cache_dir: where the images are kept.
        quick: take one image in four.

    Raises:
        DemoError: says what is wrong and what to do; also on Ctrl-C during a run, with what was measured written.
    """
    images.require_demo_extra()
    folder = _checked_folder(report_dir)
    with Watch() as watch:
        folder_of_images = _prepared(cache_dir, watch)
        settings = RunSettings(
            pack=False, images=str(folder_of_images), every=QUICK_EVERY if quick else 1, epochs=epochs, seed=seed
        )
        so_far = _SoFar()
        with _partial_kept(folder, so_far):
            stock = _run(STOCK, settings, folder, watch, so_far)
            pack = _run(PACK, replace(settings, pack=True), folder, watch, so_far)
    comparison = compare(stock, pack)
    terminal.show(screen.summary(comparison))
    try:
        paths = page.write_files(folder, comparison, settings, machine())
        (folder / PARTIAL).unlink(missing_ok=True)
    except OSError as error:
        raise DemoError(f"cannot write the report to {folder} ({error.strerror or error}); make room there") from error
    terminal.show(f"\nReport: {paths[0]}\nbeside it: {', '.join(path.name for path in paths[1:])}")
    return comparison


def machine() -> str:
    """Versions and usable cores, in a line."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "pytorch-lightning", "Pillow"))
    return (
        f"Python {platform.python_version()}, {packages}, lightning_speedups {__version__};"
        f" {cpu_budget().usable} usable CPU cores; {platform.system()} {platform.machine()}."
    )


def _checked_folder(report_dir: Path) -> Path:
    """The folder, found writable now rather than after minutes of training."""
    folder = report_dir.expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise DemoError(
            f"cannot write to the report folder {folder} ({error.strerror or error}); name another with --report-dir",
            USAGE,
        ) from error


def _prepared(cache_dir: Path, watch: Watch) -> Path:
    folder = cache_dir.expanduser().absolute()
    if not (folder / images.FOLDER).is_dir():
        watch.begin("writing JPEGs", images.COUNT, f"{images.COUNT:,} images, once")
    return images.prepare(folder, watch.images)


def _run(name: str, settings: RunSettings, folder: Path, watch: Watch, so_far: _SoFar) -> RunResult:
    def on_progress(progress: Progress) -> None:
        so_far.points = progress.points
        watch.epochs(progress.epochs, progress.points, settings.epochs)

    so_far.running, so_far.points = name, []
    watch.begin(name, settings.epochs, "starting")
    result = run_in_process(settings, folder / f"{'pack' if settings.pack else 'stock'}.log", on_progress)
    watch.finished(result)
    so_far.finished[name] = result
    return result


@contextmanager
def _partial_kept(folder: Path, so_far: _SoFar) -> Iterator[None]:
    """Write what is known where the runs end in an error or by Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise DemoError(f"stopped by Ctrl-C; {_write_partial(folder, so_far)}", INTERRUPTED) from None
    except DemoError as error:
        raise DemoError(f"{error}; {_write_partial(folder, so_far)}", error.exit_code) from error


def _write_partial(folder: Path, so_far: _SoFar) -> str:
    """Write what is known, and say where it is."""
    data = {
        "finished": {name: result.to_dict() for name, result in so_far.finished.items()},
        "unfinished": so_far.running,
        "curve": [point.to_dict() for point in so_far.points],
    }
    try:
        write_aside(folder / PARTIAL, json.dumps(data, indent=1).encode("ascii"))
    except OSError as error:
        return f"what was measured until then could not be written to {folder} ({error.strerror or error})"
    return f"what was measured until then is in {folder / PARTIAL}"
