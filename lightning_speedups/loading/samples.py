"""Samples and batches looked at: their digest, their size in bytes, whether they can be pinned."""

from __future__ import annotations

import collections.abc
import dataclasses
import hashlib
import pickle
from typing import Any

import numpy as np
import torch


def digest(sample: Any) -> str | None:
    """A digest of every byte of a sample; None for one that cannot be read byte by byte."""
    found = hashlib.sha256()
    try:
        _feed(sample, found.update)
    # A user's class may raise anything when it is pickled; such samples cannot be compared, and that is the answer.
    except Exception:  # noqa: BLE001
        return None
    return found.hexdigest()


def _feed(value: Any, update: Any) -> None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        update(plain.view(torch.uint8).numpy().tobytes() if plain.numel() and plain.dim() else repr(plain).encode())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        update(f"{value.dtype}{value.shape}".encode())
        update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, collections.abc.Mapping):
        for key, item in value.items():
            update(repr(key).encode())
            _feed(item, update)
    elif isinstance(value, (list, tuple)):
        update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _feed(item, update)
    elif isinstance(value, (str, bytes, int, float, complex, type(None))):
        update(f"{type(value).__name__}{value!r}".encode())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, update)
    elif hasattr(value, "tobytes"):
        # Pillow's images, whose pickle holds more than their pixels.
        update(repr((type(value).__name__, getattr(value, "size", None), getattr(value, "mode", None))).encode())
        update(value.tobytes())
    else:
        update(pickle.dumps(value))


def size_bytes(batch: Any) -> int:
    """The bytes of the tensors and arrays in a batch, wherever they are in it."""
    return sum(tensor.nbytes for tensor in tensors(batch))


def tensors(batch: Any, depth: int = 0) -> list[Any]:
    """The tensors and arrays in a batch."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return [batch]
    if depth > 8 or isinstance(batch, (str, bytes)):
        return []
    if isinstance(batch, collections.abc.Mapping):
        inner = list(batch.values())
    elif isinstance(batch, (list, tuple)):
        inner = list(batch)
    else:
        inner = list(getattr(batch, "__dict__", {}).values())
    return [tensor for item in inner for tensor in tensors(item, depth + 1)]


def unpinnable(batch: Any, depth: int = 0) -> str | None:
    """The name of a type in a batch that hides its tensors from the pinning thread; None where it sees them all."""
    if isinstance(batch, (torch.Tensor, str, bytes)) or hasattr(batch, "pin_memory") or depth > 8:
        return None
    if isinstance(batch, collections.abc.Mapping):
        inner = list(batch.values())
    elif isinstance(batch, (list, tuple)):
        inner = list(batch)
    else:
        return type(batch).__name__ if tensors(batch) else None
    return next((name for item in inner if (name := unpinnable(item, depth + 1)) is not None), None)
