"""Walks over the objects that a dataset is made of, without calling any of them. Pure."""

from __future__ import annotations

import functools
import itertools
import logging
import re
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

MOST_OBJECTS = 20_000
MOST_OF_ONE_TYPE = 64
MOST_ITEMS = 10_000

_LEAVES = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    type(None),
    type(Ellipsis),
    np.generic,
    torch.Tensor,
    torch.Generator,
    torch.dtype,
    torch.device,
    types.ModuleType,
    types.CodeType,
    types.BuiltinFunctionType,
    type,
    PurePath,
    re.Pattern,
    logging.Logger,
    logging.Handler,
)
_LIBRARIES = sys.stdlib_module_names | {
    "cv2",
    "h5py",
    "lightning",
    "lightning_fabric",
    "lightning_speedups",
    "lightning_utilities",
    "numpy",
    "pandas",
    "PIL",
    "psutil",
    "pytorch_lightning",
    "scipy",
    "sklearn",
    "torch",
    "torchaudio",
    "torchmetrics",
    "torchvision",
}


def walk(root: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every object that ``root`` reaches, breadth first, with the path to it: ``Eager.h``, ``Subset.dataset.files[0]``.

    Attributes, containers, closures, bound methods, generators and what user-written classes and functions hold at
    their own or at module level are followed; libraries' insides are not. It reads attributes past properties and
    ``__getattr__``, so no code of the program runs. Large containers are sampled: the first objects of each type.
    """
    seen = {id(root)}
    queue: deque[tuple[str, Any]] = deque([(name, root)])
    yielded = 0
    while queue and yielded < MOST_OBJECTS:
        path, value = queue.popleft()
        yield path, value
        yielded += 1
        for child_path, child in _children(path, value):
            if is_leaf(child):
                yield child_path, child
                yielded += 1
            elif id(child) not in seen:
                seen.add(id(child))
                queue.append((child_path, child))


def is_leaf(value: Any) -> bool:
    """Whether nothing is reached through ``value`` that matters here."""
    return isinstance(value, _LEAVES) or (isinstance(value, np.ndarray) and value.dtype != object)


def written_by_the_program(thing: Any) -> bool:
    """Whether a class or function is the program's, or a lesser package's, rather than a well-known library's."""
    module = getattr(thing, "__module__", None) or ""
    return module.partition(".")[0] not in _LIBRARIES


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and isinstance(value, dict):
        yield from _sampled((f"{path}[{key!r:.40}]", item) for key, item in list(value.items())[:MOST_ITEMS])
    elif isinstance(value, (list, tuple, deque)):
        yield from _sampled((f"{path}[{index}]", item) for index, item in enumerate(_first(value)))
    elif isinstance(value, (set, frozenset)):
        yield from _sampled((f"{path}{{}}", item) for item in _first(value))
    elif isinstance(value, np.ndarray):
        yield from _sampled((f"{path}[{index}]", item) for index, item in enumerate(value.flat[:MOST_ITEMS]))
    elif isinstance(value, functools.partial):
        yield from ((f"{path}.func", value.func), (f"{path}.args", value.args), (f"{path}.keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from ((f"{path}.__self__", value.__self__), (f"{path}.__func__", value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _of_function(path, value)
    elif isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        yield from _sampled((f"{path}.{key}", item) for key, item in (frame.f_locals if frame else {}).items())
    # A subclass of a container has attributes as well.
    if not isinstance(value, (types.FunctionType, types.MethodType)):
        yield from attributes(path, value)
        yield from _of_class(path, value)


def attributes(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What ``value`` holds in its ``__dict__`` and slots."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = None
    if isinstance(held, dict):
        yield from ((f"{path}.{key}", item) for key, item in list(held.items()))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = f"_{cls.__name__.lstrip('_')}{slot}" if slot.startswith("__") and not slot.endswith("__") else slot
            descriptor = cls.__dict__.get(name)
            if isinstance(descriptor, types.MemberDescriptorType):
                try:
                    yield f"{path}.{slot}", descriptor.__get__(value)
                except AttributeError:
                    continue


def _of_class(path: str, instance: Any) -> Iterator[tuple[str, Any]]:
    own = getattr(instance, "__dict__", {})
    for owner in type(instance).__mro__:
        if not written_by_the_program(owner):
            continue
        for name, value in list(vars(owner).items()):
            if name in own:
                continue
            if isinstance(value, types.FunctionType) or hasattr(type(value), "cache_info"):
                yield f"{path}.{name}", value
            elif not name.startswith("__") and not isinstance(value, (property, classmethod, staticmethod)):
                yield f"{owner.__name__}.{name}", value


def _of_function(path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for cell_name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"{path}.{cell_name}", cell.cell_contents
        except ValueError:
            continue
    yield from ((f"{path}.<default>", value) for value in function.__defaults__ or ())
    if written_by_the_program(function):
        for name in sorted(_names_in(function.__code__)):
            value = function.__globals__.get(name)
            if value is not None and not isinstance(value, (types.ModuleType, type)):
                yield f"{name}, a global that {path} uses,", value


def _names_in(code: types.CodeType) -> set[str]:
    inner = (_names_in(const) for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*inner)


def _first(container: Any) -> Iterator[Any]:
    return itertools.islice(iter(container), MOST_ITEMS)


def _sampled(items: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The items that are no leaves, the first ``MOST_OF_ONE_TYPE`` of each type; a few leaves for a record of them."""
    counts: dict[type, int] = {}
    for path, item in items:
        counts[type(item)] = counts.get(type(item), 0) + 1
        if counts[type(item)] <= MOST_OF_ONE_TYPE:
            yield path, item
