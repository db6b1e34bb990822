"""What a page shows of one report: a section of facts, tables, charts, notes and code, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from lightning_speedups.reporting.records import Json, Record

_Part = TypeVar("_Part")


@dataclasses.dataclass(frozen=True)
class Fact(Record):
    """One figure that stands out: ``Fact("Wall time", "3.2x", "61 s instead of 195 s")``."""

    label: str
    value: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Table(Record):
    """A table; the first column names its rows, the columns named in ``numeric`` align right.

    Raises:
        ValueError: where a row does not have one cell for each column.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_shape(self.title, self.columns, self.rows, self.numeric)


@dataclasses.dataclass(frozen=True)
class Chart(Record):
    """A drawing as inline SVG (``plots.to_svg`` makes one), with a caption that says what to see in it."""

    svg: str
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class Code(Record):
    """Lines to copy, shown as they are."""

    text: str
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class Section(Record):
    """What one report says on a page.

    Args:
        title: whose report it is.
        summary: one or two sentences: what was done and what it brought. The page's first screen shows it.
        facts: the few figures that matter most.
        tables: the measurements.
        charts: the drawings.
        notes: what a reader must know to judge the figures.
        code: what to paste.
        source: the file and time that the section comes from.
    """

    title: str
    summary: str
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()
    code: tuple[Code, ...] = ()
    source: str = ""


def check_shape(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], numeric: Collection[str]) -> None:
    """Refuse a table whose rows do not fit its columns.

    Raises:
        ValueError: naming the table, the row and both lengths.
    """
    for index, row in enumerate(rows):
        if len(row) != len(columns):
            raise ValueError(
                f"row {index} of the table {title!r} has {len(row)} cells for {len(columns)} columns; give one each"
            )
    unknown = [header for header in numeric if header not in columns]
    if unknown:
        raise ValueError(f"numeric columns {unknown} of the table {title!r} are not among {list(columns)}")


def section_from_json(data: Json) -> Section:
    """The section whose ``to_dict()`` is ``data``.

    Raises:
        ValueError: where ``data`` is anything else, so that a foreign file is told from a section.
    """
    return _part(
        Section,
        data,
        facts=_tuple_of(lambda item: _part(Fact, item)),
        tables=_tuple_of(lambda item: _part(Table, item, columns=_texts, rows=_tuple_of(_texts), numeric=_texts)),
        charts=_tuple_of(lambda item: _part(Chart, item)),
        notes=_texts,
        code=_tuple_of(lambda item: _part(Code, item)),
    )


def _part(cls: type[_Part], data: Json, **readers: Callable[[Json], Any]) -> _Part:
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    if not isinstance(data, dict) or set(data) - {"schema_version"} != set(names):
        raise ValueError(f"not a {cls.__name__}: expected the keys {names}, got {data!r:.80}")
    return cls(**{name: readers.get(name, _text)(data[name]) for name in names})


def _text(data: Json) -> str:
    if not isinstance(data, str):
        raise ValueError(f"expected a text, got {data!r:.80}")
    return data


def _tuple_of(reader: Callable[[Json], Any]) -> Callable[[Json], tuple[Any, ...]]:
    def read(data: Json) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise ValueError(f"expected a list, got {data!r:.80}")
        return tuple(reader(item) for item in data)

    return read


_texts = _tuple_of(_text)
