"""Diagnostics that fail closed: one that breaks says so once, switches itself off and lets training go on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

Arguments = ParamSpec("Arguments")
Owner = TypeVar("Owner", bound=Any)


def diagnostic(
    method: Callable[Concatenate[Owner, Arguments], None],
) -> Callable[Concatenate[Owner, Arguments], None]:
    """A method that only looks: where it raises, its object's ``broke(error, what)`` is called, and it runs no more.

    The object says by its attribute ``broken`` that its diagnostics are off. What a method has to put back does not
    belong in a diagnostic: it must happen also when those are off.
    """

    @functools.wraps(method)
    def guarded(self: Owner, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        if self.broken:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever a diagnostic stumbles over must not end a training run
            self.broken = True
            self.broke(error, method.__name__.strip("_").replace("_", " "))

    return cast("Callable[Concatenate[Owner, Arguments], None]", guarded)
