"""One page, one file: sections in, HTML out that needs no network and shows every string as it is."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from lightning_speedups._version import __version__
from lightning_speedups.reporting import svg
from lightning_speedups.reporting.sections import Section
from lightning_speedups.reporting.text import printable


def render_page(title: str, sections: Sequence[Section], *, lead: str = "", generated_by: str = "") -> str:
    """The sections as one HTML page.

    The first screen holds the title, the lead and each section's summary. The page loads nothing: its content
    security policy forbids scripts, requests and every style but its own. It follows the reader's light or dark
    setting, and tables wider than the screen scroll in their own box.

    Args:
        title: the page's name.
        sections: in the order in which they are shown.
        lead: what was done and what it brought, in a sentence or two.
        generated_by: the program or command that made it, for the footer.

    Raises:
        ValueError: for a chart that is no SVG drawing.
    """
    css = _package_text("page.css")
    return _template().render(
        title=title,
        lead=lead,
        sections=[_shown(section, number) for number, section in enumerate(sections, start=1)],
        generated_by=generated_by or f"lightning_speedups {__version__}",
        css=Markup(css),  # The package's own file, not a user's string.
        css_hash=base64.b64encode(hashlib.sha256(css.encode()).digest()).decode("ascii"),
    )


def _shown(section: Section, number: int) -> dict[str, Any]:
    charts = [
        # Markup is safe here: ``svg.parse`` keeps drawing elements only.
        {"svg": Markup(svg.to_text(svg.parse(chart.svg), f"s{number}c{index}-")), "caption": chart.caption}
        for index, chart in enumerate(section.charts, start=1)
    ]
    return {"id": f"section-{number}", "content": section, "charts": charts}


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(_package_text("page.html"))


def _package_text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
