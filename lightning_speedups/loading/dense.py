"""Tensors and arrays as raw bytes and back, in the order in which they lie in memory."""

from __future__ import annotations

import ast
import functools
import math
from typing import Any, Final

import numpy as np
import torch

_NAMES: Final = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64"
    " complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
)
_DTYPES: Final = {name: getattr(torch, name) for name in _NAMES.split()}


class UnsupportedSampleError(TypeError):
    """A sample holds something that cannot be kept as bytes and given back equal."""


class Reader:
    """A place in the bytes; each ``take`` moves on."""

    def __init__(self, view: memoryview, at: int) -> None:
        self._view, self._at = view, at

    def take(self, nbytes: int) -> memoryview:
        """The next bytes, not copied."""
        start, self._at = self._at, self._at + nbytes
        return self._view[start : self._at]

    def copy(self, nbytes: int) -> np.ndarray[Any, Any]:
        """The next bytes as a new, writable array."""
        return np.array(np.frombuffer(self.take(nbytes), np.uint8))


def tensor_out(tensor: torch.Tensor, where: str, data: list[bytes]) -> list[Any]:
    """The layout of a tensor; its bytes are appended to ``data``.

    Raises:
        UnsupportedSampleError: for a tensor with a graph, on a device, sparse, or of a packed dtype.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    odd = [
        what
        for what, true in (
            (f"on {tensor.device}", tensor.device.type != "cpu"),
            (f"of layout {tensor.layout}", tensor.layout is not torch.strided),
            (f"of dtype {tensor.dtype}", name not in _DTYPES),
            ("part of a graph (requires_grad)", tensor.requires_grad),
        )
        if true
    ]
    if odd:
        raise UnsupportedSampleError(
            f"{where} is a tensor {' and '.join(odd)}; a cached one is plain, dense and on the CPU. Return such a one"
            " from the dataset and convert it in `transform`"
        )
    plain = tensor.resolve_conj().resolve_neg()
    order = _memory_order(plain.stride())
    if not plain.permute(order).is_contiguous():
        order = list(range(plain.dim()))
    dense = plain.permute(order).contiguous()
    # Not ``reshape``: a dimension of size 1 may keep a stride that does not allow a view as bytes.
    flat = dense.as_strided((dense.numel(),), (1,))
    data.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return ["tensor", name, list(tensor.shape), order if order != sorted(order) else None]


def tensor_in(layout: Any, reader: Reader) -> torch.Tensor:
    """The tensor whose layout this is, with the strides that it had."""
    _, name, shape, order = layout
    dtype = _DTYPES[name]
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    flat = torch.from_numpy(reader.copy(math.prod(shape) * dtype.itemsize)).view(dtype)
    if order is None:
        return flat.reshape(shape)
    return flat.reshape([shape[dim] for dim in order]).permute(_inverse(order))


def array_out(array: np.ndarray[Any, Any], where: str, data: list[bytes]) -> list[Any]:
    """The layout of an array; its bytes are appended to ``data``.

    Raises:
        UnsupportedSampleError: for an array of Python objects.
    """
    if array.dtype.hasobject:
        raise UnsupportedSampleError(
            f"{where} is an array of Python objects (dtype {array.dtype}), which cannot be cached; return numbers,"
            " strings of a fixed width, or a list"
        )
    order = _memory_order(array.strides)
    if not array.transpose(order).flags.c_contiguous:
        order = list(range(array.ndim))
    data.append(array.transpose(order).tobytes())
    return ["array", _descr(array.dtype), list(array.shape), order]


def array_in(layout: Any, reader: Reader) -> np.ndarray[Any, Any]:
    """The array whose layout this is, with the strides that it had."""
    _, descr, shape, order = layout
    dtype = _dtype(descr)
    in_memory = [shape[dim] for dim in order]
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return np.zeros(shape, dtype)
    return np.ndarray(in_memory, dtype, reader.copy(nbytes)).transpose(_inverse(order))


def _descr(dtype: np.dtype[Any]) -> str:
    """A dtype as text, as in the header of a ``.npy`` file."""
    return repr(np.lib.format.dtype_to_descr(dtype))  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=256)
def _dtype(descr: str) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(ast.literal_eval(descr))  # type: ignore[no-untyped-call]
    return dtype


def _memory_order(strides: tuple[int, ...]) -> list[int]:
    """The dimensions from the outermost in memory to the innermost."""
    return sorted(range(len(strides)), key=lambda dim: -strides[dim])


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
