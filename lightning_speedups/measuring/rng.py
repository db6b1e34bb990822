"""The global random streams of Python, numpy and torch: captured, put back, compared."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch


@dataclass(frozen=True, eq=False)
class RngState:
    """The global streams at one moment. ``cuda`` is None where CUDA had not been started, ``mps`` where there is none.

    Compare two states by ``fingerprint``; generators that a program made itself are no part of it.
    """

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch_cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...] | None
    mps: torch.Tensor | None

    @property
    def fingerprint(self) -> str:
        """A digest that is equal exactly when all the streams stand at the same place."""
        digest = hashlib.sha256(repr((self.python, self.numpy[0], self.numpy[2:])).encode())
        tensors = [self.torch_cpu, *(self.cuda or ()), *(() if self.mps is None else (self.mps,))]
        for array in (self.numpy[1], *(tensor.numpy() for tensor in tensors)):
            digest.update(array.tobytes())
        return digest.hexdigest()


def capture() -> RngState:
    """The streams as they stand; draws nothing, and never starts CUDA."""
    cuda_runs: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return RngState(
        python=random.getstate(),
        numpy=cast("tuple[Any, ...]", np.random.get_state(legacy=True)),
        torch_cpu=torch.get_rng_state(),
        cuda=tuple(torch.cuda.get_rng_state_all()) if cuda_runs else None,
        mps=torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
    )


def restore(state: RngState) -> None:
    """Put the streams back where they stood.

    If CUDA was started after the capture, its streams have no earlier place to go back to and stay.
    """
    random.setstate(state.python)
    np.random.set_state(state.numpy)
    torch.set_rng_state(state.torch_cpu)
    if state.cuda is not None:
        torch.cuda.set_rng_state_all(state.cuda)
    if state.mps is not None:
        torch.mps.set_rng_state(state.mps)


def fingerprint() -> str:
    """The digest of the streams as they stand, to show that something drew no random number.

    Example:
        >>> before = fingerprint()
        >>> with preserved():
        ...     _ = torch.rand(3)
        >>> fingerprint() == before
        True
    """
    return capture().fingerprint


@contextmanager
def preserved() -> Iterator[RngState]:
    """Put the streams back at the end of a ``with`` block, also when it raises; gives the state at its start."""
    state = capture()
    try:
        yield state
    finally:
        restore(state)
