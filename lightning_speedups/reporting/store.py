"""The folder that several callbacks, and several processes after one another, report into.

Each has ``<name>.json``, which holds its report and its section of the page, and ``<name>.png`` where there is a
plot. All share ``report.html``, which every write builds anew from the JSON files.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_speedups.reporting import plots, svg
from lightning_speedups.reporting.files import write_aside
from lightning_speedups.reporting.records import Json, Record
from lightning_speedups.reporting.sections import Section, section_from_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "report.html"
_LARGEST_BYTES = 64 * 2**20
_TITLE = "What lightning_speedups did in this run"


def write_report(
    report_dir: str | os.PathLike[str], name: str, record: Record, section: Section, figure: Figure | None = None
) -> bool:
    """Write a report's files and build the shared page anew, keeping the sections of all others.

    A report must not cost a training run: where the folder cannot be written or the disk is full, this warns in one
    line and returns False. Under several processes only one of them (rank 0) may call it.

    Args:
        report_dir: the folder; made where it is missing.
        name: the callback's name, and the files' after it. Letters that no file name takes are replaced.
        record: what ``<name>.json`` holds, beside the key ``section``.
        section: what the page shows.
        figure: what ``<name>.png`` shows.

    Returns:
        True where everything was written.

    Raises:
        ValueError: for a record with a field called ``section``, or a section whose chart is no SVG drawing.
    """
    folder, stem = Path(report_dir), file_stem(name)
    fields = record.to_dict()
    if "section" in fields:
        raise ValueError(f"{type(record).__name__} has a field named 'section', which the report file needs itself")
    now = datetime.datetime.now(datetime.timezone.utc)
    dated = dataclasses.replace(section, source=f"{stem}.json, written {now:%Y-%m-%d %H:%M} UTC")
    content = json.dumps({**fields, "section": dated.to_dict()}, indent=1, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_aside(folder / f"{stem}.json", content.encode("ascii") + b"\n")
        if figure is not None:
            plots.save_png(figure, folder / f"{stem}.png")
        _build_page(folder)
    except OSError as error:
        warnings.warn(
            f"The report folder {folder} cannot be written ({error.strerror or error}); training goes on and the"
            " report stays in memory. Make room there, or pass another report_dir.",
            stacklevel=2,
        )
        return False
    return True


def file_stem(name: str) -> str:
    """``name`` as a file name: other characters than letters, digits, ``.``, ``-`` and ``_`` become ``_``.

    A name that had to change gets a part of its hash, so that ``a/b`` and ``a_b`` stay two files.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:80]
    if safe == name and name:
        return name
    return f"{safe or 'report'}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def stored_sections(report_dir: str | os.PathLike[str]) -> list[Section]:
    """The sections in a folder: that of ``report.json``, the whole run's, then the others by file name.

    A file that is broken, or not this pack's, is passed over.
    """
    paths = sorted(Path(report_dir).glob("*.json"), key=lambda path: (path.name != "report.json", path.name.lower()))
    read = (_section_in(path) for path in paths)
    return [section for section in read if section is not None]


def _section_in(path: Path) -> Section | None:
    try:
        # The folder is the user's: a data set may lie beside the reports, or a pipe that would never end.
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            return None
        data: Json = json.loads(path.read_bytes())
        if not isinstance(data, dict) or "section" not in data:
            return None
        section = section_from_json(data["section"])
        for chart in section.charts:
            svg.parse(chart.svg)
    except (OSError, ValueError, RecursionError):
        return None
    return section


def _build_page(folder: Path) -> None:
    from lightning_speedups.reporting.html import render_page  # Late: it imports jinja2.

    page = render_page(_TITLE, stored_sections(folder))
    write_aside(folder / PAGE, page.encode("utf-8"))
