"""Index of the callbacks: where each lives, and how it is bound to a Lightning namespace.

A room writes its callback once, as a class without a base. The index joins it with the stock base class of a
namespace, once per namespace, so that ``isinstance(callback, Callback)`` holds in the program that uses it.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from lightning_speedups import _lightning

ATTACH_VARIABLE = "LIGHTNING_SPEEDUPS_ATTACH"


class _Row(NamedTuple):
    module: str
    base: str


_INDEX = {
    "DataLoaderTuner": _Row("lightning_speedups.loading.callback", "callbacks.Callback"),
    "EarlyStopping": _Row("lightning_speedups.stopping.callback", "callbacks.EarlyStopping"),
    "NoGradEvaluation": _Row("lightning_speedups.evaluation.callback", "callbacks.Callback"),
}
NAMES = tuple(_INDEX)


@functools.cache
def bound_class(name: str, namespace: str) -> type:
    """The callback class ``name`` for one namespace; the same object at every call."""
    row = _INDEX[name]
    hooks = getattr(importlib.import_module(row.module), name)
    base = _lightning.resolve(namespace, row.base)
    members = {
        "__module__": f"lightning_speedups.bound.{namespace.partition('.')[0]}",
        "__qualname__": name,
        "__doc__": hooks.__doc__,
        "namespace": namespace,
        "log": _lightning.HeldWeakly(),
        "log_dict": _lightning.HeldWeakly(),
    }
    return type(name, (hooks, base), members)


class LateClass:
    """A callback's public name, imported before the program has imported a Lightning.

    It behaves as the class that it stands for: call it, derive from it, ask ``isinstance``. Which namespace
    that class belongs to is decided at that moment, not when the name was imported.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = getattr(importlib.import_module(_INDEX[name].module), name).__doc__

    def _now(self) -> type:
        return bound_class(self.__name__, _lightning.preferred_namespace())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make an object of the class that the name stands for now."""
        return self._now()(*args, **kwargs)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self._now(),)

    def __instancecheck__(self, instance: object) -> bool:
        return self.__subclasscheck__(type(instance))

    def __subclasscheck__(self, cls: type) -> bool:
        hooks = getattr(importlib.import_module(_INDEX[self.__name__].module), self.__name__)
        return issubclass(cls, hooks)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(self._now(), attribute)

    def __reduce__(self) -> tuple[Callable[[str], LateClass], tuple[str]]:
        return LateClass, (self.__name__,)

    def __repr__(self) -> str:
        return f"<lightning_speedups.{self.__name__}, bound to a Lightning namespace when an object is made>"


def public_class(name: str) -> Any:
    """What ``lightning_speedups.<name>`` is now: the bound class where the namespace is known, else a late one."""
    if _lightning.imported_namespaces():
        return bound_class(name, _lightning.preferred_namespace())
    return LateClass(name)


def _attached(namespace: str) -> list[Any]:
    """The callbacks that the environment asks for, as JSON: ``[{"name": "EarlyStopping", "args": {...}}]``."""
    requested = os.environ.get(ATTACH_VARIABLE)
    if not requested:
        return []
    return [bound_class(entry["name"], namespace)(**entry.get("args", {})) for entry in json.loads(requested)]


def attached_to_pytorch_lightning() -> list[Any]:
    """Entry point of ``pytorch_lightning``: the callbacks to add to every Trainer; none unless asked for."""
    return _attached(_lightning.PYTORCH_LIGHTNING)


def attached_to_lightning() -> list[Any]:
    """Entry point of ``lightning.pytorch``: the callbacks to add to every Trainer; none unless asked for."""
    return _attached(_lightning.LIGHTNING)
