"""What a dataset remembers: a record of its state, to see whether loading samples changes it. Calls no user code."""

from __future__ import annotations

import hashlib
import itertools
import operator
import random
import types
from collections import deque
from typing import Any

import numpy as np
import torch

from lightning_speedups.loading.graph import walk

State = dict[str, Any]

_LARGEST_HASHED_BYTES = 2**20
_SAMPLES = 4096
_TEXT = 200


def record(root: Any, name: str) -> State:
    """The state of everything that ``root`` reaches, by path: numbers, lengths, digests of arrays, generators.

    Large arrays are sampled and large containers looked at in part, so that a change inside can be missed.
    """
    return {path: _state(value) for path, value in walk(root, name)}


def changes(before: State, after: State) -> tuple[str, ...]:
    """The paths whose state differs, the outermost only."""
    paths = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    return tuple(path for path in paths if not any(path != other and path.startswith(other) for other in paths))


def describe(path: str, state: State) -> str:
    """What the thing at ``path`` is, where that says why it changed."""
    kind = state.get(path)
    return kind[0] if isinstance(kind, tuple) and kind and kind[0] in _NAMED else ""


_GENERATOR = "a random generator of its own"
_CACHE = "a cache"
_ITERATOR = "an iterator that is used up"
_NAMED = (_GENERATOR, _CACHE, _ITERATOR)


def _state(value: Any) -> Any:
    if isinstance(value, (bool, int, float, complex, type(None))):
        return value
    if isinstance(value, (str, bytes)):
        return value[:_TEXT], len(value)
    if isinstance(value, torch.Tensor):
        return _array(value.detach().cpu().numpy()) if _plain(value) else (str(value.dtype), tuple(value.shape))
    if isinstance(value, np.ndarray):
        return _array(value) if value.dtype != object else value.shape
    generator = _generator_state(value)
    if generator is not None:
        return _GENERATOR, generator
    if hasattr(type(value), "cache_info"):
        return _CACHE, value.cache_info().currsize
    if isinstance(value, types.GeneratorType):
        return _ITERATOR, None if value.gi_frame is None else value.gi_frame.f_lasti
    if isinstance(value, (dict, list, set, frozenset, tuple, deque)):
        return (_CACHE if isinstance(value, dict) else type(value).__name__), len(value)
    if isinstance(value, itertools.count):
        return repr(value)
    if type(value).__module__ == "builtins" and type(value).__name__.endswith("iterator"):
        return _ITERATOR, operator.length_hint(value, -1)
    return type(value).__qualname__


def _generator_state(value: Any) -> str | None:
    if isinstance(value, torch.Generator):
        return hashlib.sha256(value.get_state().numpy().tobytes()).hexdigest()
    if isinstance(value, random.Random):
        return hashlib.sha256(repr(value.getstate()).encode()).hexdigest()
    if isinstance(value, np.random.Generator):
        return hashlib.sha256(repr(value.bit_generator.state).encode()).hexdigest()
    if isinstance(value, np.random.RandomState):
        return hashlib.sha256(repr(value.get_state(legacy=False)).encode()).hexdigest()
    return None


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.dtype != torch.bfloat16


def _array(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    if array.nbytes > _LARGEST_HASHED_BYTES:
        flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        step = max(1, array.size // _SAMPLES)
        array = np.asarray(flat[::step])
    return str(array.dtype), array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
