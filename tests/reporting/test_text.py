from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_speedups.reporting import text

ANY_TEXT = st.text(st.characters(codec=None, categories=None))


@pytest.mark.parametrize(
    ("helper", "value", "expected"),
    [
        (text.ratio, 3.2, "3.2x"),
        (text.ratio, 1.015, "1.01x"),
        (text.seconds, 1.2, "1.20 s"),
        (text.seconds, 0.0, "0 s"),
        (text.seconds, 12e-6, "12.0 us"),
        (text.seconds, 0.99996e-3, "1.00 ms"),
        (text.seconds, 0.85, "850 ms"),
        (text.seconds, 0.9999, "1.00 s"),
        (text.seconds, 59.96, "1 min 00 s"),
        (text.seconds, 125, "2 min 05 s"),
        (text.seconds, 3599.6, "1 h 00 min"),
        (text.seconds, -11400, "-3 h 10 min"),
        (text.seconds, math.inf, "inf s"),
        (text.mebibytes, 512, "512 MiB"),
        (text.mebibytes, 1536, "1.50 GiB"),
        (text.size_of, 12, "12 bytes"),
        (text.size_of, 3584, "3.5 KiB"),
        (text.size_of, 512 * 2**20, "512 MiB"),
        (text.percent, 12.34, "12.3 %"),
        (text.percent, 0.04, "0.04 %"),
        (text.count, 12345, "12,345"),
        (text.number, 0.98312, "0.9831"),
        (text.number, 12345.6, "12,346"),
        (text.number, 1.2e-7, "1.2e-07"),
        (text.number, math.nan, "nan"),
        (text.number, 40.0, "40"),
    ],
)
def test_a_figure_reads_with_its_unit(helper, value, expected):
    assert helper(value) == expected


@pytest.mark.parametrize(
    "helper", [text.number, text.count, text.ratio, text.percent, text.seconds, text.mebibytes, text.size_of]
)
def test_a_figure_that_is_missing_is_said_to_be_not_measured(helper):
    assert helper(None) == "not measured"


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-6, max_value=1e7))
@settings(deadline=None)
def test_a_duration_keeps_its_sign_and_never_shows_sixty_of_a_unit(value):
    shown = text.seconds(value)
    assert text.seconds(-value) == f"-{shown}"
    assert " 60 s" not in f" {shown}"
    assert " 60 min" not in f" {shown}"


@given(ANY_TEXT)
@settings(deadline=None)
def test_printable_text_encodes_and_holds_no_control_character(words):
    shown = text.printable(words)
    shown.encode("utf-8")
    assert not any(ord(character) < 32 and character != "\n" for character in shown)
    assert not {"\x7f", "\x9b", "\u202e", "\u2066"} & set(shown)


@given(ANY_TEXT, st.integers(5, 100))
@settings(deadline=None)
def test_one_line_is_one_line_within_its_limit(words, limit):
    line = text.one_line(words, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1


def test_ordinary_words_stay_as_they_are():
    words = "val_loss — größer, 損失, 🙂\nsecond line"
    assert text.printable(words) == words
