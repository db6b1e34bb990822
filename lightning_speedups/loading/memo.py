"""Plans kept in a file from run to run, each under a fingerprint of what it was measured for."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.reporting.files import write_aside

_FORMAT = 1


def fingerprint(loader: Any, **conditions: Any) -> str:
    """A digest of all that a plan depends on and that can be told without loading a sample.

    A dataset whose decoding got slower, or whose files moved to another disk, is not told from what it was.
    """
    dataset = loader.dataset
    told = {
        "dataset": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        "length": len(dataset) if hasattr(type(dataset), "__len__") else None,
        "collate": getattr(loader.collate_fn, "__qualname__", type(loader.collate_fn).__qualname__),
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "sampler": type(loader.sampler).__qualname__,
        "before": LoaderSettings.of(loader).as_dict(),
        "torch": torch.__version__,
        **conditions,
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def read(path: Path, key: str) -> LoaderSettings | None:
    """The settings kept under ``key``; None where there are none, or the file is another's or broken."""
    kept = _load(path).get(key)
    try:
        return None if kept is None else LoaderSettings.from_dict(kept)
    except (KeyError, TypeError, ValueError):
        return None


def write(path: Path, key: str, settings: LoaderSettings) -> None:
    """Keep ``settings`` under ``key``, beside those of other loaders.

    Raises:
        OSError: the file cannot be written.
    """
    plans = {**_load(path), key: settings.as_dict()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, json.dumps({"format": _FORMAT, "plans": plans}, indent=1).encode())


def _load(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(kept, dict) or kept.get("format") != _FORMAT or not isinstance(kept.get("plans"), dict):
        return {}
    return dict(kept["plans"])
