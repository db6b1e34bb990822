"""What a dataset is, in a few digests: when they differ, its samples may differ, and an old cache is not used."""

from __future__ import annotations

import hashlib
import marshal
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

import numpy as np
import torch

from lightning_speedups.loading.codec import digest
from lightning_speedups.loading.graph import walk, written_by_the_program

# Private attributes are mostly handles, counters and memos; a module's children and weights are the exception.
_PRIVATE: Final = re.compile(r"(?<![\w'\"])_(?!modules\b|parameters\b|buffers\b)\w")
_HASHED_WHOLE_BYTES: Final = 64 * 2**20
_FORMAT: Final = 1
_CONTAINERS: Final = (list, tuple, dict, set, frozenset)


@dataclass(frozen=True)
class Identity:
    """A dataset's type, length, the digests of its code and settings, and of the samples looked at."""

    type: str
    length: int
    parts: Mapping[str, str]
    samples: Mapping[int, str]

    @property
    def key(self) -> str:
        """One digest of all, with the version of Python, on which the code's depends."""
        told = (_FORMAT, sys.version_info[:2], self.type, self.length, sorted(self.parts.items()))
        text = repr((*told, sorted(self.samples.items())))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def identify(dataset: Any, before: Mapping[str, str], payloads: Mapping[int, bytes]) -> Identity:
    """The identity of a dataset from ``parts_of`` it before its samples were read, and those samples' bytes.

    What reading them has changed (a counter, a list of what was asked for) is left out.
    """
    after = parts_of(dataset)
    changed = {path for path in (*before, *after) if before.get(path) != after.get(path)}
    stable = {path: part for path, part in before.items() if not changed.intersection(_lineage(path))}
    return Identity(
        type(dataset).__qualname__,
        len(dataset),
        stable,
        {index: digest(payload) for index, payload in payloads.items()},
    )


def parts_of(dataset: Any) -> dict[str, str]:
    """Digests of the code and the plain settings that the dataset leads to, by path.

    Code: the compiled functions of the program's classes and functions, transforms included. Settings: numbers,
    strings, arrays, and lists, tuples and dicts of them, in public attributes, closures, defaults, and constants that
    the code names. Of a path only the last part counts, since data may be moved.
    """
    parts: dict[str, str] = {}
    told_whole: set[str] = set()
    for path, value in walk(dataset, "dataset"):
        if _PRIVATE.search(path) or told_whole.intersection(_lineage(path)):
            continue
        told = _setting(value)
        if told is not None:
            told_whole.add(path)
        elif isinstance(value, types.FunctionType):
            told = _code(value.__code__)
        else:
            parts.update(_classes(type(value)))
            told = repr((type(value).__qualname__, len(value) if isinstance(value, _CONTAINERS) else None)).encode()
        if told:
            parts[path] = hashlib.blake2b(told, digest_size=8).hexdigest()
    return parts


def _lineage(path: str) -> set[str]:
    """A path and the paths of all that it lies in."""
    return {path, *(path[: found.start()] for found in re.finditer(r"[.\[]", path))}


def _setting(value: Any) -> bytes | None:
    """The bytes of a plain value; empty for one that says nothing; None for an object that holds others."""
    if isinstance(value, torch.Tensor):
        return _array(value.detach().cpu()) if value.layout is torch.strided else b""
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, (torch.dtype, torch.device, np.generic)):
        return repr(value).encode()
    if value is None or isinstance(value, (PurePath, type, types.ModuleType, types.BuiltinFunctionType)):
        return b""
    try:
        # Version 2: from version 3 on the bytes depend on which of the equal objects are one and the same.
        told = marshal.dumps(value, 2)
        return marshal.dumps(_without_folders(value), 2) if b"/" in told or b"\\" in told else told
    except ValueError:
        return None


def _without_folders(value: Any) -> Any:
    """The same with the last part only of each string that holds a path."""
    if isinstance(value, str):
        return re.split(r"[/\\]", value)[-1]
    if isinstance(value, (list, tuple)):
        return [_without_folders(item) for item in value]
    if isinstance(value, dict):
        return [(_without_folders(key), _without_folders(item)) for key, item in value.items()]
    return value


def _array(array: Any) -> bytes:
    """The bytes of an array, of evenly spaced parts of one that is very large."""
    flat = array.reshape(-1)
    step = max(1, array.nbytes // _HASHED_WHOLE_BYTES)
    plain = flat[::step].contiguous().view(torch.uint8).numpy() if isinstance(array, torch.Tensor) else flat[::step]
    content = repr(plain.tolist()).encode() if plain.dtype.hasobject else plain.tobytes()
    return repr((str(array.dtype), tuple(array.shape))).encode() + content


def _classes(cls: type) -> dict[str, str]:
    """A digest of the functions of each class of the program in the line of ``cls``.

    By name without the module, which is another one in the program itself and in a process that it spawned.
    """
    found = {}
    for at, owner in enumerate(cls.__mro__):
        if not written_by_the_program(owner):
            continue
        told = b""
        for name, value in sorted(vars(owner).items()):
            function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
            if isinstance(function, types.FunctionType):
                told += name.encode() + _code(function.__code__)
        found[f"class {cls.__qualname__}/{at}"] = hashlib.blake2b(told, digest_size=8).hexdigest()
    return found


def _code(code: types.CodeType) -> bytes:
    consts = b"".join(
        _code(const) if isinstance(const, types.CodeType) else _constant(const) for const in code.co_consts
    )
    return code.co_code + repr(code.co_names).encode() + consts


def _constant(value: Any) -> bytes:
    if isinstance(value, frozenset):
        return repr(sorted(map(repr, value))).encode()
    return repr(value).encode()
