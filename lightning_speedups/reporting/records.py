"""The base of every report: frozen data with units in its field names, JSON and a terminal text, nothing else."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
import textwrap
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from lightning_speedups.reporting import text

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_WIDTH = 80
_SHOWN_ITEMS = 12
_UNITS: dict[str, Callable[[Any], str]] = {
    "_s": text.seconds,
    "_mib": text.mebibytes,
    "_bytes": text.size_of,
    "_pct": text.percent,
}


@dataclasses.dataclass(frozen=True)
class Record:
    """A report, or a part of one. Subclasses are frozen dataclasses that hold tuples where others hold lists.

    A subclass raises ``schema_version`` when a field changes its name or meaning, and writes its own ``__str__``
    where the plain list of fields is not what a reader wants first.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Pause(Record):
        ...     length_s: float
        >>> Pause(1.5).to_dict()
        {'schema_version': 1, 'length_s': 1.5}
        >>> print(Pause(1.5))
        Pause
          length_s  1.50 s
    """

    schema_version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Json]:
        """The fields as JSON types, ``schema_version`` first.

        Nested dataclasses and mappings become dicts, tuples become lists, an enum its value, a path its text.
        Infinite and undefined numbers become ``"inf"``, ``"-inf"`` and ``"nan"``: JSON has no such numbers, and
        strict parsers refuse a file that pretends otherwise.

        Raises:
            TypeError: names the field that holds something else.
        """
        return {"schema_version": self.schema_version, **_fields_to_json(self, type(self).__name__)}

    def __str__(self) -> str:
        fields = dataclasses.fields(self)
        width = max((len(field.name) for field in fields), default=0)
        lines = [type(self).__name__]
        for field in fields:
            lead = f"  {field.name:<{width}}  "
            shown = _field_to_text(field.name, getattr(self, field.name))
            lines += textwrap.wrap(
                shown, max(_WIDTH, len(lead) + 20), initial_indent=lead, subsequent_indent=" " * len(lead)
            ) or [lead.rstrip()]
        return "\n".join(lines)


def _fields_to_json(record: Any, where: str) -> dict[str, Json]:
    return {
        field.name: _to_json(getattr(record, field.name), f"{where}.{field.name}")
        for field in dataclasses.fields(record)
    }


def _to_json(value: Any, where: str) -> Json:
    if isinstance(value, enum.Enum):
        return _to_json(value.value, where)
    if value is None or isinstance(value, bool):
        return value
    # The plain type and not a subclass of it: numpy's float64 is a float, and must not travel further as numpy's.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, tuple | list):
        return [_to_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict):
        return _mapping_to_json(value, where)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields_to_json(value, where)
    raise TypeError(
        f"{where} holds a {type(value).__name__}, which a report cannot hold; it takes None, bool, int, float, str,"
        " an enum, a path, and tuples, dicts and dataclasses of these. Convert it before the report is made."
    )


def _mapping_to_json(mapping: dict[Any, Any], where: str) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for key, value in mapping.items():
        plain = key.value if isinstance(key, enum.Enum) else key
        if not isinstance(plain, str | int) or isinstance(plain, bool):
            raise TypeError(f"{where} has the key {key!r}; a report's dict takes str, int and enum keys.")
        name = str(plain)
        if name in result:
            raise TypeError(f"{where} has two keys that read {name!r} in JSON; rename one of them.")
        result[name] = _to_json(value, f"{where}[{name!r}]")
    return result


def _field_to_text(name: str, value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        as_unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), None)
        return as_unit(value) if as_unit else text.number(value)
    if isinstance(value, tuple | list) and any(dataclasses.is_dataclass(item) for item in value):
        return f"{len(value)} x {type(value[0]).__name__}"
    if isinstance(value, dict):
        return ", ".join(f"{text.one_line(key)}: {_field_to_text(str(key), item)}" for key, item in value.items())
    if isinstance(value, tuple | list):
        shown = [_field_to_text(name, item) for item in value[:_SHOWN_ITEMS]]
        return ", ".join(shown + [f"... ({len(value)} in all)"] * (len(value) > _SHOWN_ITEMS)) or "none"
    if value is None:
        return "none"
    return text.printable(value)
