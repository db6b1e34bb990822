"""The ``training`` flags of a module's parts: which are set, and which changed. No Lightning; sets no flag."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

_SHOWN = 4


def in_train_mode(module: nn.Module) -> list[str]:
    """The names of the parts that are in train mode; the module itself is named by its class."""
    return [name or type(part).__name__ for name, part in module.named_modules() if part.training]


def all_in_eval_mode(module: nn.Module) -> bool:
    """Whether nothing in the module is in train mode, so that dropout and batch norm are off throughout.

    The flag of the outermost module alone makes no difference where it has parts: they do the work.
    """
    parts = [part for part in module.modules() if part is not module]
    return not any(part.training for part in parts or [module])


def changed(before: Mapping[str, bool], module: nn.Module) -> list[str]:
    """The parts whose flag is not what it was, by name; parts that were not there before are left out."""
    return [
        name or type(part).__name__
        for name, part in module.named_modules()
        if name in before and part.training != before[name]
    ]


def shown(names: list[str]) -> str:
    """A few of the names, and how many there are."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
