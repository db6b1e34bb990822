"""What the code that a loop may run says of itself, found without running it: gradients, compiled parts, mode flips.

From the step (and its hooks) on, every function that is named in a function found so far is looked at: methods of the
module's own classes and of its submodules', functions and objects that they hold, functions of the program's modules.
Names decide, not types, so a function too many may be looked at; code of torch, Lightning and torchmetrics is not.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torchmetrics
from torch import nn

from lightning_speedups import _torch
from lightning_speedups.evaluation import source
from lightning_speedups.evaluation.walk import MODULE_PARTS, is_users

# Reached from outside of the step: by Lightning, or by calling a module.
_ALWAYS = ("forward", "__call__")
# Where submodules are made after a callback's ``setup``, so that their classes have to be read from there.
_BUILDERS = ("setup", "configure_model")
_MOST_FUNCTIONS = 5000
_MOST_ENTRIES = 100


@dataclass(frozen=True)
class Need:
    """A call that needs gradients: ``torch.autograd.grad`` in ``Force.energy_force`` at ``model.py:12``."""

    what: str
    function: str
    place: str

    def __str__(self) -> str:
        return f"{self.what} in {self.function}, {self.place}"


@dataclass
class Found:
    """What a scan found.

    Attributes:
        needs: the calls that need gradients, in the order in which they were reached.
        compiled: the names of compiled modules and functions.
        into_train_mode: where a step puts a module into train mode.
        functions: how many functions were looked at.
    """

    needs: list[Need] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)
    into_train_mode: list[str] = field(default_factory=list)
    functions: int = 0


def scan(module: nn.Module, entry_points: Iterable[str], others: Iterable[object] = ()) -> Found:
    """Look at what a loop may run.

    Args:
        module: the module whose step the loop calls.
        entry_points: names of its methods that the loop calls.
        others: objects whose methods of these names the loop calls too, such as the program's callbacks.
    """
    names = [*entry_points, *_ALWAYS]
    reader = _Reader(module)
    for name in names:
        reader.reach(name)
    for other in others:
        for name in names:
            for function in _functions(getattr(other, name, None)):
                if is_users(function):
                    reader.add(function, type(other).__name__, name)
    reader.read()
    return reader.found


class _Reader:
    """The functions found so far, by the name by which others call them, and those still to be read."""

    def __init__(self, module: nn.Module) -> None:
        self.found = Found()
        self._callables: dict[str, list[tuple[types.FunctionType, str]]] = {}
        self._classes: set[type] = set()
        self._reached: set[str] = set()
        self._seen: set[types.CodeType] = set()
        self._queue: list[tuple[types.FunctionType, str, str]] = []
        self._parts = {id(part) for part in module.modules()}
        for name, part in module.named_modules():
            self._know_module(part, name or type(part).__name__)
        for builder in _BUILDERS:
            for function in _functions(getattr(type(module), builder, None)):
                if is_users(function):
                    self._read_builder(function)

    def reach(self, name: str) -> None:
        """Whatever is called so, anywhere in the module, is run."""
        if name not in self._reached:
            self._reached.add(name)
            for function, owner in self._callables.get(name, ()):
                self.add(function, owner, name)

    def add(self, function: types.FunctionType, owner: str, name: str) -> None:
        """This function is run, under this name."""
        if function.__code__ not in self._seen:
            self._seen.add(function.__code__)
            self._queue.append((function, owner, name))

    def read(self) -> None:
        """Read all that is run, and what it runs in turn."""
        while self._queue and len(self._seen) < _MOST_FUNCTIONS:
            function, owner, called = self._queue.pop(0)
            self.found.functions += 1
            shown = f"{owner}.{called}" if owner else called
            calls = source.calls_for_gradients(function)
            if calls:
                # One for each function: where it differentiates, rather than where it prepares to.
                call = min(calls, key=lambda each: each.what in source.PREPARATIONS)
                self.found.needs.append(Need(call.what, shown, source.place_of(function, call.line)))
            if source.compiles(function):
                self.found.compiled.append(f"what {shown} compiles")
            # Hooks around the step may put back what they changed before.
            if not called.startswith("on_"):
                flips = (source.place_of(function, line) for line in source.calls_of_train(function))
                self.found.into_train_mode += [f"{shown} ({place})" for place in flips]
            names = source.names_in(function.__code__)
            for name in names:
                self._follow(function, name, names, shown)
                self.reach(name)

    def _follow(self, function: types.FunctionType, name: str, names: set[str], shown: str) -> None:
        value = source.outer_value(function, name)
        turned_on = source.turned_on_by(value.__self__) if isinstance(value, types.MethodType) else None
        if turned_on is not None:
            decorated = inspect.unwrap(function)
            self.found.needs.append(Need(turned_on, shown, source.place_of(decorated, None)))
        elif value is None:
            for imported in source.imported_as(function, name):
                self._follow_module(imported, names, set())
        elif isinstance(value, types.ModuleType):
            self._follow_module(value, names, set())
        else:
            self._use(value, name)

    def _follow_module(self, module: types.ModuleType, names: set[str], seen: set[str]) -> None:
        """What a function names of a module's, and of the modules within it, as in ``package.module.function``."""
        if not is_users(module) or module.__name__ in seen:
            return
        seen.add(module.__name__)
        for name in names & set(vars(module)):
            value = vars(module)[name]
            if isinstance(value, types.ModuleType):
                self._follow_module(value, names, seen)
            else:
                self._use(value, name)

    def _use(self, value: Any, name: str) -> None:
        """A global or closed-over value that a function names."""
        if isinstance(value, type):
            if is_users(value):
                self._know_class(value)
                for function in _functions(getattr(value, "__init__", None)):
                    self.add(function, value.__name__, "__init__")
        else:
            self._know_value(value, name, "")
            for function in _functions(value):
                if is_users(function):
                    self.add(function, "", name)

    def _know_module(self, part: nn.Module, shown: str) -> None:
        cls = type(part)
        if _torch.is_compiled(part):
            self.found.compiled.append(shown)
        self._know_class(cls)
        if isinstance(part, torchmetrics.Metric):
            # Its own ``forward`` calls these.
            for name in ("update", "compute"):
                for function in _functions(getattr(cls, name)):
                    if is_users(function):
                        self.add(function, cls.__name__, name)
        for name, value in list(vars(part).items()):
            if name in ("_forward_hooks", "_forward_pre_hooks"):
                for hook in value.values():
                    self._know_value(hook, "forward", cls.__name__)
            elif name not in MODULE_PARTS:
                self._know_value(value, name, cls.__name__)

    def _know_value(self, value: Any, name: str, owner: str, depth: int = 2) -> None:
        """Something that a module holds or a function names: it may be called by its name, or its methods may."""
        if _torch.is_compiled(value):
            self.found.compiled.append(f"{owner}.{name}" if owner else name)
        for function in _functions(value):
            if is_users(function):
                self._callables.setdefault(name, []).append((function, owner))
        if isinstance(value, nn.Module):
            # In a list, an object or a global: where ``named_modules`` does not see it.
            for inner, part in value.named_modules():
                if id(part) not in self._parts:
                    self._parts.add(id(part))
                    self._know_module(part, f"{name}.{inner}" if inner else name)
        if depth == 0 or isinstance(value, type | types.FunctionType | nn.Module):
            return
        inside: Iterable[tuple[str, Any]] = ()
        if isinstance(value, dict):
            inside = ((name, each) for each in islice(value.values(), _MOST_ENTRIES))
        elif isinstance(value, list | tuple):
            inside = ((name, each) for each in value[:_MOST_ENTRIES])
        elif is_users(type(value)):
            self._know_class(type(value))
            inside = list(getattr(value, "__dict__", {}).items())
        for inner, each in inside:
            self._know_value(each, inner, owner, depth - 1)

    def _know_class(self, cls: type) -> None:
        if cls in self._classes or not is_users(cls):
            return
        self._classes.add(cls)
        overridden: dict[str, set[str]] = {}
        for base in filter(is_users, cls.__mro__):
            for name, value in list(vars(base).items()):
                if name in overridden and not overridden[name] & {"super", base.__name__}:
                    continue
                if _torch.is_compiled(value):
                    self.found.compiled.append(f"{base.__name__}.{name}")
                for function in _functions(value):
                    overridden[name] = overridden.get(name, set()) | source.names_in(function.__code__)
                    self._callables.setdefault(name, []).append((function, base.__name__))
                    if name in self._reached:
                        self.add(function, base.__name__, name)

    def _read_builder(self, function: types.FunctionType) -> None:
        if source.compiles(function):
            self.found.compiled.append(f"what {function.__name__} compiles")
        for name in source.names_in(function.__code__):
            value = source.outer_value(function, name)
            if isinstance(value, type) and issubclass(value, nn.Module):
                self._know_class(value)


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """The Python functions behind a callable: unwrapped from methods, partials, properties and decorators."""
    if isinstance(value, property | functools.cached_property):
        value = value.fget if isinstance(value, property) else value.func
    if isinstance(value, functools.partial | functools.partialmethod):
        value = value.func
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        yield value
        inner = inspect.unwrap(value, stop=lambda each: not hasattr(each, "__wrapped__"))
        if inner is not value and isinstance(inner, types.FunctionType):
            yield inner
