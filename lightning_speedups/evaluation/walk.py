"""Every tensor that a module or an output holds, with the path by which it is reached. No Lightning, no copies."""

from __future__ import annotations

import dataclasses
import functools
import gc
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor, nn

# Deeper or longer structures than these are data rather than a cache: walking them would cost more than it tells.
_DEEPEST = 5
_LONGEST = 4096
# What a program holds of these is theirs to keep in order, and leads to everything else.
_FRAMEWORKS = frozenset(
    {"functorch", "lightning", "lightning_fabric", "lightning_speedups", "lightning_utilities", "numpy", "torch"}
    | {"pytorch_lightning", "torchmetrics"}
    | sys.stdlib_module_names
) - {"__main__"}
MODULE_PARTS = frozenset(vars(nn.Module()))
_HEAP_TYPE = 1 << 9
LRU_CACHE = type(functools.lru_cache(len))
_PLAIN = (str, bytes, int, float, complex, type(None), type)


def is_users(obj: Any) -> bool:
    """Whether a class, function or module is the program's own, and not of a framework or the standard library."""
    name = obj.__name__ if isinstance(obj, types.ModuleType) else getattr(obj, "__module__", None)
    if name in (None, "builtins"):
        # Made by ``exec`` in a namespace without a name; what is Python's own has no code in Python.
        return isinstance(obj, types.FunctionType) or (isinstance(obj, type) and bool(obj.__flags__ & _HEAP_TYPE))
    return isinstance(name, str) and name.partition(".")[0] not in _FRAMEWORKS


@dataclass(frozen=True)
class Held:
    """A tensor, the path to it from where the walk began, and how to put another in its place (None: no way)."""

    tensor: Tensor
    path: str
    replace: Callable[[Any], None] | None


def tensors_in(value: Any, path: str = "") -> Iterator[Held]:
    """The tensors in an output or a batch: in dicts, sequences, sets, dataclasses and the program's own objects."""
    yield from _walk(value, path, None, _DEEPEST, set())


def tensors_on(module: nn.Module) -> Iterator[tuple[nn.Module, str, Held]]:
    """The tensors that a module and its submodules hold: which module, its name, and where in it.

    Parameters, buffers and plain attributes alike, those in containers and in the program's own objects included.
    """
    seen = {id(part) for part in module.modules()}
    for name, part in module.named_modules():
        for path, value, put in _attributes(part):
            for held in _walk(value, path, put, _DEEPEST, seen):
                yield part, name, held


def whole(path: str) -> str:
    """The attribute that a path leads into: ``cache`` for ``cache['k'][0]``."""
    return re.split(r"[\[({]", path, maxsplit=1)[0]


def samples_in(batch: Any) -> int | None:
    """How many samples a batch holds: what it says itself, or its first tensor's first dimension; None if neither."""
    for attribute in () if isinstance(batch, Tensor | dict | list | tuple) else ("num_graphs", "batch_size"):
        size = getattr(batch, attribute, None)
        if isinstance(size, int):
            return size
    return next((held.tensor.size(0) for held in tensors_in(batch) if held.tensor.dim()), None)


def _attributes(part: nn.Module) -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
    own = (part.named_parameters, part.named_buffers)
    for key, tensor in [pair for named in own for pair in named(recurse=False, remove_duplicate=False)]:
        yield key, tensor, partial(setattr, part, key)
    for key, value in list(vars(part).items()):
        if key not in MODULE_PARTS and not isinstance(value, _PLAIN):
            yield key, value, partial(setattr, part, key)


def _walk(value: Any, path: str, put: Callable[[Any], None] | None, depth: int, seen: set[int]) -> Iterator[Held]:
    if isinstance(value, Tensor):
        # A lazy layer's parameter is none yet: it refuses every question.
        if not nn.parameter.is_lazy(value):
            yield Held(value, path, put)
        return
    if depth == 0 or isinstance(value, _PLAIN) or id(value) in seen:
        return
    seen.add(id(value))
    for inner_path, inner, inner_put in _items(value, path, put):
        yield from _walk(inner, inner_path, inner_put, depth - 1, seen)


def _items(
    value: Any, path: str, put: Callable[[Any], None] | None
) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
    if isinstance(value, nn.Module):
        # Registered submodules are walked by name: this one the program keeps out of sight, in a list or an object.
        for key, inner, inner_put in _attributes(value):
            yield f"{path}.{key}", inner, inner_put
        for key, child in value.named_children():
            yield f"{path}.{key}", child, None
    elif isinstance(value, dict):
        for key, inner in tuple(islice(value.items(), _LONGEST)):
            # No other object is asked how it wants to be shown: that is code of the program's.
            shown = repr(key) if isinstance(key, str | int) else type(key).__name__
            yield f"{path}[{shown}]", inner, partial(value.__setitem__, key)
    elif isinstance(value, list | deque):
        for index, inner in enumerate(tuple(islice(value, _LONGEST))):
            yield f"{path}[{index}]", inner, partial(value.__setitem__, index)
    elif isinstance(value, tuple):
        parts = list(value)
        for index, inner in enumerate(parts[:_LONGEST]):
            if not isinstance(inner, _PLAIN):
                here = None if put is None else partial(_put_in_tuple, value, parts, put, index)
                yield f"{path}[{index}]", inner, here
    elif isinstance(value, set | frozenset):
        for inner in tuple(islice(value, _LONGEST)):
            yield f"{path}{{}}", inner, None
    elif isinstance(value, LRU_CACHE):
        # What it keeps can be seen through the collector alone, and one of its entries cannot be replaced.
        for inner in gc.get_referents(value):
            if isinstance(inner, Tensor | tuple | list | dict):
                yield f"{path}()", inner, partial(empty_cache, value)
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            if (inner := contents(cell)) is not None:
                yield f"{path}()", inner, partial(setattr, cell, "cell_contents")
    elif isinstance(value, types.SimpleNamespace) or dataclasses.is_dataclass(value) or is_users(type(value)):
        for key, inner in tuple(islice(_fields(value), _LONGEST)):
            yield f"{path}.{key}" if path else key, inner, partial(object.__setattr__, value, key)


def empty_cache(cache: Any, _: Any) -> None:
    """In place of putting another tensor into a ``functools`` cache: let it compute anew."""
    cache.cache_clear()


def contents(cell: types.CellType) -> Any:
    """What a closure holds in a cell; None where it holds nothing yet, as in a function that names itself."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """An object's attributes, in its dictionary or in slots; no property of the program's is computed."""
    yield from getattr(value, "__dict__", {}).items()
    for cls in type(value).__mro__:
        for name, slot in list(vars(cls).items()):
            if isinstance(slot, types.MemberDescriptorType) and name != "__dict__" and hasattr(value, name):
                yield name, slot.__get__(value)


def _put_in_tuple(old: Any, parts: list[Any], put: Callable[[Any], None], index: int, inner: Any) -> None:
    parts[index] = inner
    put(type(old)(*parts) if hasattr(old, "_fields") else type(old)(parts))
