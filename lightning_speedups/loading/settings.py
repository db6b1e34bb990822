"""The four settings of a ``DataLoader`` that change how fast it loads and not what it loads. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

DEFAULT_PREFETCH = 2
NAMES = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")


@dataclass(frozen=True)
class LoaderSettings:
    """One choice of the four settings, valid as a whole.

    Without workers there is nothing to prefetch and nothing to keep, and torch refuses a loader that says otherwise:
    ``prefetch_factor`` is then None and ``persistent_workers`` False, whatever was asked for.

    Example:
        >>> LoaderSettings(2).as_code()
        'num_workers=2, prefetch_factor=2, persistent_workers=False, pin_memory=False'
    """

    num_workers: int = 0
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory: bool = False

    def __post_init__(self) -> None:
        if self.num_workers < 0:
            raise ValueError(f"num_workers must be 0 or more, got {self.num_workers}")
        if self.num_workers == 0:
            object.__setattr__(self, "prefetch_factor", None)
            object.__setattr__(self, "persistent_workers", False)
        elif self.prefetch_factor is None:
            object.__setattr__(self, "prefetch_factor", DEFAULT_PREFETCH)

    @classmethod
    def of(cls, loader: Any) -> LoaderSettings:
        """The settings that a loader has now."""
        return cls(*(getattr(loader, name) for name in NAMES))

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> LoaderSettings:
        """The settings that ``as_dict`` has written."""
        return cls(**{name: settings[name] for name in NAMES})

    def as_dict(self) -> dict[str, Any]:
        """The settings by their names in ``DataLoader``."""
        return {name: getattr(self, name) for name in NAMES}

    def as_code(self) -> str:
        """The arguments to paste into ``DataLoader(...)``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items() if value is not None)

    def with_workers(self, num_workers: int) -> LoaderSettings:
        """The same with another number of workers."""
        return replace(self, num_workers=num_workers)

    @property
    def in_flight(self) -> int:
        """How many batches may be ready or in the making at once."""
        return self.num_workers * (self.prefetch_factor or 0)

    def __str__(self) -> str:
        if self.num_workers == 0:
            return "0 workers" + (", pinned" if self.pin_memory else "")
        words = [f"{self.num_workers} worker{'s' if self.num_workers > 1 else ''}"]
        if self.prefetch_factor != DEFAULT_PREFETCH:
            words.append(f"prefetch {self.prefetch_factor}")
        words += ["persistent"] * self.persistent_workers + ["pinned"] * self.pin_memory
        return ", ".join(words)
