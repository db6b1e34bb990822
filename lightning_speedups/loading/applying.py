"""Settings written to a live ``DataLoader``, all four or none."""

from __future__ import annotations

from typing import Any

from lightning_speedups import _torch
from lightning_speedups.loading.settings import NAMES, LoaderSettings


class NotApplied(Exception):
    """A loader did not take its settings, and has its old ones back."""


def apply(loader: Any, settings: LoaderSettings) -> None:
    """Give a loader other settings, between two of its iterations.

    Its live persistent workers are shut down first: they would go on as they are, and the new number be ignored.

    Raises:
        NotApplied: the loader keeps one of the values, as a subclass with properties of its own can.
    """
    before = LoaderSettings.of(loader)
    if settings == before:
        return
    try:
        write(loader, settings)
    except (AttributeError, TypeError, ValueError) as error:
        write(loader, before, strict=False)
        raise NotApplied(f"{type(loader).__name__} refuses {settings} ({error})") from error
    found = LoaderSettings.of(loader)
    if found != settings:
        write(loader, before, strict=False)
        raise NotApplied(f"{type(loader).__name__} was given {settings} and says {found}")
    _torch.end_live_workers(loader)


def write(loader: Any, settings: LoaderSettings, strict: bool = True) -> None:
    """Set the four attributes past the guard that ``DataLoader`` has on ``persistent_workers``."""
    for name in NAMES:
        try:
            object.__setattr__(loader, name, getattr(settings, name))
        except AttributeError:
            if strict:
                raise


def copied(loader: Any, settings: LoaderSettings, **attributes: Any) -> Any:
    """A second loader over the same dataset and sampler, with other settings and no workers alive yet."""
    copy = object.__new__(type(loader))
    copy.__dict__.update(vars(loader))
    copy.__dict__["_iterator"] = None
    write(copy, settings)
    for name, value in attributes.items():
        object.__setattr__(copy, name, value)
    return copy
