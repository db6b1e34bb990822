from __future__ import annotations

import io
import os
import pty
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from lightning_speedups.reporting import terminal
from tests.reporting.samples import HOSTILE, HOSTILE_AND_LONG

COLUMNS = ("measure", "stock", "pack")
TABLE = terminal.table(
    "Stock and pack",
    COLUMNS,
    [("Wall time", "195 s", Text("61.2 s", style="green")), ("Samples/s", "9", "12,345")],
    numeric=COLUMNS[1:],
    caption="seed 7",
)


def shown_on_a_terminal() -> str:
    reader, writer = pty.openpty()
    try:
        with os.fdopen(writer, "w", encoding="utf-8") as stream:
            terminal.show(TABLE, stream)
            return os.read(reader, 100_000).decode()
    finally:
        os.close(reader)


def test_a_table_shows_every_cell_aligned():
    assert terminal.render(TABLE).splitlines() == [
        "Stock and pack",
        "measure     stock     pack",
        "──────────────────────────",
        "Wall time   195 s   61.2 s",
        "Samples/s       9   12,345",
        "seed 7",
    ]


@given(st.lists(st.lists(st.text(max_size=60), min_size=4, max_size=4), max_size=5), st.text(max_size=200))
@settings(deadline=None, max_examples=50)
def test_any_table_fits_the_width_and_holds_no_escape_sequence(rows, title):
    shown = terminal.render(terminal.table(title, "abcd", rows, numeric="d"), width=60)
    assert max(map(cell_len, shown.splitlines()), default=0) <= 60
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)


def test_markup_and_escape_sequences_in_a_name_are_shown_not_obeyed():
    shown = terminal.render(terminal.table(HOSTILE, ["name"], [[HOSTILE]], caption=HOSTILE), width=400)
    assert shown.count("[red]x[/red]") == 3
    assert shown.count(r"\x1b[31m \x00 \ud800 \u202e") == 3


def test_a_cell_of_ten_thousand_letters_is_folded_and_loses_none():
    shown = terminal.render(terminal.table("t", ["name", "value"], [[HOSTILE_AND_LONG, "1"]]))
    assert shown.count("x") >= 10_000
    assert max(map(len, shown.splitlines())) <= 80


def test_a_plain_string_is_rendered_as_it_is():
    assert terminal.render("[bold]loss[/bold]") == "[bold]loss[/bold]"


def test_colour_appears_on_a_terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[32m61.2 s" in shown_on_a_terminal()


def test_no_color_is_heeded_on_a_terminal(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = shown_on_a_terminal()
    assert "61.2 s" in shown
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", shown)


def test_a_file_gets_plain_text_in_one_write():
    class Counting(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += bool(text)
            return super().write(text)

    file = Counting()
    terminal.show(TABLE, file)
    assert file.writes == 1
    assert "\x1b" not in file.getvalue()


def test_a_stream_that_takes_ascii_only_is_no_error():
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    terminal.show(terminal.table("größer", ["損失"], [["🙂"], ["loss"]]), stream)
    stream.seek(0)
    assert [line.strip() for line in stream] == ["gr??er", "??", "----", "?", "loss"]


@pytest.mark.parametrize(
    ("rows", "numeric", "message"),
    [
        ([("a", "b", "c"), ("a", "b")], (), "row 1 of the table 't' has 2 cells for 3 columns"),
        ([("a", "b", "c")], ("gain",), r"numeric columns \['gain'\] of the table 't' are not among"),
    ],
)
def test_a_table_of_uneven_shape_is_refused(rows, numeric, message):
    with pytest.raises(ValueError, match=message):
        terminal.table("t", COLUMNS, rows, numeric=numeric)
