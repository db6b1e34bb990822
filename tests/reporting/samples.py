"""Sample sections, and a string that tries to break out of its place."""

from __future__ import annotations

import os
import subprocess
import sys

from lightning_speedups.reporting import plots
from lightning_speedups.reporting.sections import Chart, Code, Fact, Section, Table

HOSTILE = (
    "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)> $\\frac{1}{2}$ \"'&amp; --> ]]> </style>"
    " [red]x[/red] \x1b[31m \x00 \ud800 \u202e {{ 7*7 }} %s"
)
HOSTILE_AND_LONG = HOSTILE + "x" * 10_000


def run_python(program: str, *arguments: str) -> str:
    """What a fresh process prints that runs ``program`` with this one's import path."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def small_figure(words: str = "Loss by epoch"):
    with plots.style():
        figure, axes = plots.new_figure(words, x_label=words, y_label=words)
        axes.plot([0, 1, 2], [3.0, 2.0, 2.5], color=plots.BLUE, label=plots.label(words))
        if words.strip():
            axes.legend()
    return figure


def chart(words: str = "Loss by epoch") -> Chart:
    return Chart(plots.to_svg(small_figure(words), title=words, description=words), words)


def sample_section(title: str = "EarlyStopping", words: str = "Stopped after epoch 23 of 60.") -> Section:
    return Section(
        title=title,
        summary=words,
        facts=(Fact(words, words, words),),
        tables=(
            Table(words, ("epoch", words), (("1", words), ("2", "0.4")), ("epoch",)),
            Table(words, ("epoch", words), tuple((str(epoch), words[:90]) for epoch in range(30))),
        ),
        charts=(chart(words), chart(words)),
        notes=(words,),
        code=(Code(words, words), Code("no caption")),
    )
