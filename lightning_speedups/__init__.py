"""Callbacks and strategies for a stock PyTorch Lightning ``Trainer`` that make training faster, or say what is slow.

Importing this package imports neither Lightning nor torch: public names are looked up when they are used, in the
Lightning namespace that the program has imported by then.

Example:
    >>> import lightning_speedups as ls
    >>> callback = ls.EarlyStopping("val_loss", patience=10, restore_best=True)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lightning_speedups import callbacks
from lightning_speedups._version import __version__

if TYPE_CHECKING:
    from lightning_speedups.evaluation.callback import NoGradEvaluation
    from lightning_speedups.evaluation.context import evaluating
    from lightning_speedups.loading.cached import CachedDataset
    from lightning_speedups.loading.callback import DataLoaderTuner
    from lightning_speedups.loading.per_sample_seed import PerSampleSeed
    from lightning_speedups.loading.standalone import tune_dataloader
    from lightning_speedups.measuring.budget import Limits
    from lightning_speedups.stopping.callback import EarlyStopping

__all__ = [
    "CachedDataset",
    "DataLoaderTuner",
    "EarlyStopping",
    "Limits",
    "NoGradEvaluation",
    "PerSampleSeed",
    "__version__",
    "evaluating",
    "tune_dataloader",
]

_ELSEWHERE = {
    "CachedDataset": "lightning_speedups.loading.cached",
    "PerSampleSeed": "lightning_speedups.loading.per_sample_seed",
    "Limits": "lightning_speedups.measuring.budget",
    "evaluating": "lightning_speedups.evaluation.context",
    "tune_dataloader": "lightning_speedups.loading.standalone",
}


def __getattr__(name: str) -> Any:
    if name in callbacks.NAMES:
        return callbacks.public_class(name)
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
