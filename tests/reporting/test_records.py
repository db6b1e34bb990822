from __future__ import annotations

import dataclasses
import enum
import json
import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_speedups.reporting.records import Record


class Reason(enum.Enum):
    PATIENCE = "patience"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass(frozen=True)
class Check(Record):
    epoch: int
    value: float


@dataclasses.dataclass(frozen=True)
class Plain:
    wall_s: float


@dataclasses.dataclass(frozen=True)
class Report(Record):
    schema_version: ClassVar[int] = 3

    content: Any
    wall_s: float = 61.2


def to_json_and_back(record: Record) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(json.dumps(record.to_dict(), allow_nan=False), parse_constant=refuse)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner), max_leaves=20
)


def as_lists(value: Any) -> Any:
    if isinstance(value, tuple):
        return [as_lists(item) for item in value]
    return {key: as_lists(item) for key, item in value.items()} if isinstance(value, dict) else value


@given(VALUES)
@settings(deadline=None)
def test_any_report_comes_back_from_json_as_it_went(value):
    assert to_json_and_back(Report(value)) == {"schema_version": 3, "content": as_lists(value), "wall_s": 61.2}


@given(VALUES)
@settings(deadline=None)
def test_any_report_prints_in_eighty_columns(value):
    lines = str(Report(value)).split("\n")
    assert lines[0] == "Report"
    assert max(map(len, lines)) <= 80


def test_nested_records_enums_and_paths_become_json_types():
    content = (Check(1, 0.5), Plain(2.0), Reason.PATIENCE, Level.LOW, Path("a") / "b", {Reason.PATIENCE: 1, 2: ()})
    assert to_json_and_back(Report(content))["content"] == [
        {"epoch": 1, "value": 0.5},
        {"wall_s": 2.0},
        "patience",
        1,
        str(Path("a") / "b"),
        {"patience": 1, "2": []},
    ]


def test_numbers_that_json_has_not_become_their_names():
    assert Report((math.nan, math.inf, -math.inf)).to_dict()["content"] == ["nan", "inf", "-inf"]


def test_numpy_floats_leave_as_plain_floats():
    content = Report((np.float64(0.5), np.float64("nan"))).to_dict()["content"]
    assert content == [0.5, "nan"]
    assert [type(item) for item in content] == [float, str]


@pytest.mark.parametrize("foreign", [torch.zeros(1), {1, 2}, object(), b"bytes", np.int64(1), Check])
def test_a_value_that_json_has_not_is_refused_by_the_name_of_its_field(foreign):
    with pytest.raises(TypeError, match=r"Report\.content\['rows'\]\[1\] holds a \w+"):
        Report({"rows": (1, foreign)}).to_dict()


@pytest.mark.parametrize("keys", [{(1, 2): 0}, {None: 0}, {True: 0}, {1: 0, "1": 0}])
def test_dict_keys_that_would_be_lost_in_json_are_refused(keys):
    with pytest.raises(TypeError, match=r"Report\.content has .*key"):
        Report(keys).to_dict()


def test_a_record_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Check(1, 0.5).epoch = 2  # type: ignore[misc]


def test_the_default_text_names_the_report_and_reads_its_units():
    content = (Check(1, 0.5), Check(2, 0.4))
    assert str(Report(content)).splitlines() == ["Report", "  content  2 x Check", "  wall_s   1 min 01 s"]


def test_a_long_tuple_is_cut_in_text_and_says_how_long_it_is():
    assert "(1000 in all)" in str(Report(tuple(range(1000))))
