"""Tensors that ``inference_mode`` made and a module kept: found by name, and cloned so that training can use them.

Autograd refuses to save such a tensor for backward, and refuses to change it in place, for as long as it lives.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from lightning_speedups.evaluation import source
from lightning_speedups.evaluation.clones import Clones, memory_of
from lightning_speedups.evaluation.walk import LRU_CACHE, Held, empty_cache, is_users, tensors_in, tensors_on, whole

_FROM_FILES = (types.ModuleType, types.FunctionType, LRU_CACHE)


@dataclass(frozen=True)
class Found:
    """An inference tensor that was left on the module.

    Attributes:
        where: such as ``Cache.scale``, or ``Rotary.cos (encoder.rotary)`` on a submodule; a container is named whole.
        line: where the program sets it, such as ``model.py:12``; None where that cannot be read.
        fate: ``"cloned"``, ``"dropped"`` from a ``functools`` cache, or ``"left"`` in a container that takes nothing
            else in its place, such as a set, or in one memory with such a tensor or with one of the program's own.
    """

    where: str
    line: str | None
    fate: Literal["cloned", "dropped", "left"]


class InferenceTensors:
    """The inference tensors that a module held before an evaluation: they are the program's own doing."""

    def __init__(self, module: nn.Module) -> None:
        self._before = {id(held.tensor): weakref.ref(held.tensor) for _, held, _ in _inference_tensors(module)}

    def clone_new(self, module: nn.Module) -> list[Found]:
        """Replace those that have come since by clones; call it outside of inference mode."""
        present = list(_inference_tensors(module))
        # A view of what was there before is the program's own doing too: a clone would cut it off.
        fixed = {memory_of(held.tensor) for _, held, _ in present if self._was_there(held.tensor)}
        pending = [each for each in present if not self._was_there(each[1].tensor)]
        fixed |= {memory_of(held.tensor) for _, held, _ in pending if held.replace is None}
        fixed.discard(None)
        clones = Clones(held.tensor for _, held, _ in pending)
        del present
        found: dict[str, Found] = {}
        # One by one, so that each original can go before the next clone comes.
        while pending:
            owner, held, where = pending.pop(0)
            kept = held.replace is None or memory_of(held.tensor) in fixed
            if held.replace is not None and not kept:
                held.replace(clones.of(held.tensor))
            if where not in found or kept:
                found[where] = Found(where, _line(owner, held.path), "left" if kept else _fate(held))
        return list(found.values())

    def _was_there(self, tensor: Tensor) -> bool:
        before = self._before.get(id(tensor))
        return before is not None and before() is tensor


def _fate(held: Held) -> Literal["cloned", "dropped"]:
    return "dropped" if isinstance(held.replace, partial) and held.replace.func is empty_cache else "cloned"


def _inference_tensors(module: nn.Module) -> Iterator[tuple[type, Held, str]]:
    for part, name, held in tensors_on(module):
        if held.tensor.is_inference():
            yield type(part), held, f"{type(part).__name__}.{whole(held.path)}" + (f" ({name})" if name else "")
    classes = {base for cls in {type(part) for part in module.modules()} for base in cls.__mro__ if is_users(base)}
    for cls in sorted(classes, key=lambda each: (each.__module__, each.__qualname__)):
        for key, value in list(vars(cls).items()):
            yield from _in(value, f"{cls.__name__}.{key}", partial(setattr, cls, key), cls)
    for python_module in _files(classes):
        for key, value in list(vars(python_module).items()):
            yield from _in(value, key, partial(setattr, python_module, key), nn.Module)


def _files(classes: set[type]) -> list[types.ModuleType]:
    """The program's files that define the classes, and those that they import from."""
    names = {cls.__module__ for cls in classes}
    for name in names & set(sys.modules):
        values = [each for each in vars(sys.modules[name]).values() if isinstance(each, _FROM_FILES) and is_users(each)]
        names = names | {getattr(each, "__module__", None) or each.__name__ for each in values}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def _in(value: Any, path: str, put: Callable[[Any], None], cls: type) -> Iterator[tuple[type, Held, str]]:
    """In what a class or the program's file holds: a tensor, a plain container of tensors, a cache; no objects."""
    if isinstance(value, Tensor):
        held = [Held(value, path, put)]
    elif isinstance(value, LRU_CACHE) or (isinstance(value, dict | list) and _begins_with_tensors(value)):
        held = list(tensors_in(value, path))
    else:
        return
    yield from ((cls, each, whole(each.path)) for each in held if each.tensor.is_inference())


def _begins_with_tensors(container: dict[Any, Any] | list[Any]) -> bool:
    first = next(iter(container.values() if isinstance(container, dict) else container), None)
    return isinstance(first, Tensor | tuple | list | dict)


def _line(owner: type, path: str) -> str | None:
    """The line that sets the attribute at the beginning of ``path``, in a class of the program's."""
    attribute = whole(path).partition(".")[0]
    for cls in owner.__mro__:
        for value in vars(cls).values() if is_users(cls) else ():
            if isinstance(value, types.FunctionType) and value.__name__ != "__init__":
                for line in source.assignments_of(value, attribute):
                    return source.place_of(value, line)
    return None
