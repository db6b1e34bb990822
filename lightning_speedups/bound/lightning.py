"""The callbacks for a ``Trainer`` of ``lightning.pytorch``.

Example:
    >>> from lightning_speedups.bound.lightning import EarlyStopping
"""

from lightning_speedups import _lightning, callbacks


def __getattr__(name: str) -> type:
    if name not in callbacks.NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(callbacks.NAMES)}")
    return callbacks.bound_class(name, _lightning.LIGHTNING)
