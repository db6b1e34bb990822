"""The random streams that a sample can draw from: the process's global ones, and generators that a dataset holds."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch

from lightning_speedups.loading.graph import walk
from lightning_speedups.loading.numpy_stream import NumpyStream

# Python's and numpy's modules stand for their hidden global generators: they have its methods.
GLOBAL: Final[Mapping[str, Any]] = {
    "Python's global stream": random,
    "numpy's global stream": np.random,
    "torch's global stream": torch.default_generator,
}
# The generators behind the global streams, which a dataset may hold as well.
_methods: tuple[Any, ...] = (random.random, np.random.random)
_HIDDEN: Final = {id(torch.default_generator), *(id(method.__self__) for method in _methods)}
_numpy_stream = NumpyStream()
_SEEDABLE = (torch.Generator, np.random.RandomState, random.Random)
_SEEDABLE_BITS = (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)


def streams_of(dataset: object) -> Mapping[str, Any]:
    """The global streams on the CPU and every generator that ``dataset`` leads to, by name.

    A generator of numpy over a bit generator that numpy does not ship is left out: there is no general way to seed it.
    """
    found = {path: obj for path, obj in walk(dataset, "dataset") if _can_seed(obj) and id(obj) not in _HIDDEN}
    # A proxy, because a walk does not look into it: whoever keeps the streams would else lead to them by other names.
    return MappingProxyType({**GLOBAL, **found})


def states(streams: Mapping[str, Any]) -> dict[str, Any]:
    """Where each stream stands; draws nothing."""
    return {name: _state(stream) for name, stream in streams.items()}


def put_back(streams: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Put each stream back to where it stood."""
    for name, stream in streams.items():
        _set_state(stream, saved[name])


def moved(streams: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """The names of the streams from which something was drawn since ``saved``."""
    return [name for name, stream in streams.items() if not _same(_state(stream), saved[name])]


def seed(streams: Mapping[str, Any], *key: int | str) -> None:
    """Start every stream anew at a place that depends on ``key`` and on the stream's name alone.

    Example:
        >>> streams = {"mine": torch.Generator()}
        >>> seed(streams, 7, 0, 3)
        >>> first = torch.rand(2, generator=streams["mine"])
        >>> seed(streams, 7, 0, 3)
        >>> torch.equal(first, torch.rand(2, generator=streams["mine"]))
        True
    """
    base = hashlib.blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=8)
    for name, stream in streams.items():
        own = base.copy()
        own.update(name.encode("utf-8", "surrogatepass"))
        _seed(stream, int.from_bytes(own.digest(), "little"))


@contextmanager
def seeded(streams: Mapping[str, Any], *key: int | str) -> Iterator[None]:
    """``seed`` the streams for a ``with`` block and put them back at its end, also when it raises."""
    others = {name: stream for name, stream in streams.items() if stream is not np.random}
    saved = states(others)
    put_back_numpy = _numpy_stream.set_aside()
    try:
        seed(streams, *key)
        yield
    finally:
        put_back_numpy()
        put_back(others, saved)


def _can_seed(obj: Any) -> bool:
    if isinstance(obj, np.random.Generator):
        return isinstance(obj.bit_generator, _SEEDABLE_BITS)
    return isinstance(obj, _SEEDABLE) and not isinstance(obj, random.SystemRandom)


def _state(stream: Any) -> Any:
    if stream is random or isinstance(stream, random.Random):
        return stream.getstate()
    if isinstance(stream, np.random.Generator):
        return stream.bit_generator.state
    return stream.get_state()


def _set_state(stream: Any, state: Any) -> None:
    if stream is random or isinstance(stream, random.Random):
        stream.setstate(state)
    elif isinstance(stream, np.random.Generator):
        stream.bit_generator.state = state
    else:
        stream.set_state(state)


def _seed(stream: Any, number: int) -> None:
    if stream is random or isinstance(stream, random.Random):
        stream.seed(number)
    elif isinstance(stream, np.random.Generator):
        bits: Any = stream.bit_generator
        bits.state = type(bits)(number).state
    elif isinstance(stream, torch.Generator):
        stream.manual_seed(number)
    else:
        stream.seed([number & 0xFFFFFFFF, number >> 32])


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple) and any(isinstance(value, np.ndarray) for value in one):
        return all(_same(value, other[at]) for at, value in enumerate(one))
    return bool(one == other)
