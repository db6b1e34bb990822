"""A sample as bytes and back, bit for bit: tensors, arrays, images, numbers, strings, and what holds them.

The bytes are a header (a layout as JSON, equal for samples of the same shape) and the raw data behind it. Reading
makes new objects that share nothing with the bytes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from lightning_speedups.loading.dense import Reader, UnsupportedSampleError, array_in, array_out, tensor_in, tensor_out

_FORMS: Final = (
    "tensors, numpy arrays and scalars, PIL images, numbers, strings, bytes, None; tuples, lists, dicts of them"
)
_HEADER_LENGTH: Final = struct.Struct("<I")
_INT64: Final = struct.Struct("<q")
_FLOAT: Final = struct.Struct("<d")


def encode(sample: Any) -> bytes:
    """The bytes of a sample; the same sample gives the same bytes every time.

    Raises:
        UnsupportedSampleError: naming the type that cannot be kept, and where it is.
    """
    data: list[bytes] = []
    header = json.dumps(_out(sample, "sample", data), separators=(",", ":")).encode()
    return b"".join((_HEADER_LENGTH.pack(len(header)), header, *data))


def decode(payload: Any) -> Any:
    """The sample whose ``encode`` gave ``payload``: new, writable objects."""
    view = memoryview(payload)
    start = _HEADER_LENGTH.size + _HEADER_LENGTH.unpack_from(view)[0]
    return _in(_layout(bytes(view[_HEADER_LENGTH.size : start])), Reader(view, start))


def digest(payload: bytes | memoryview) -> str:
    """A short digest of a sample's bytes."""
    return hashlib.blake2b(payload, digest_size=16).hexdigest()


@functools.lru_cache(maxsize=4096)
def _layout(header: bytes) -> Any:
    return json.loads(header)


def _out(value: Any, where: str, data: list[bytes]) -> list[Any]:
    """The layout of ``value``; its raw bytes are appended to ``data``."""
    kind = type(value)
    if kind in _WRITERS:
        return _WRITERS[kind](value, where, data)
    if kind in (tuple, list):
        return [kind.__name__, [_out(item, f"{where}[{at}]", data) for at, item in enumerate(value)]]
    if kind is dict:
        return [
            "dict",
            [[_out(k, f"a key of {where}", data), _out(v, f"{where}[{k!r}]", data)] for k, v in value.items()],
        ]
    if isinstance(value, np.generic):
        return ["scalar", array_out(np.asarray(value), where, data)]
    if "PIL.Image" in sys.modules and isinstance(value, sys.modules["PIL.Image"].Image):
        return _image_out(value, where, data)
    raise UnsupportedSampleError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be cached; what can be: {_FORMS}."
        " Return one of those from the dataset and make the object in `transform`"
    )


def _in(layout: Any, reader: Reader) -> Any:
    return _READERS[layout[0]](layout, reader)


def _scalar_in(layout: Any, reader: Reader) -> Any:
    return array_in(layout[1], reader)[()]


def _image_out(image: Any, where: str, data: list[bytes]) -> list[Any]:
    image.load()
    palette = None
    if image.palette is not None:
        palette = [image.palette.mode, _out(bytes(image.getpalette(None) or ()), where, data)]
    kept = []
    for key, value in image.info.items():
        # Notes of the file's format that are no plain values say nothing about the pixels.
        own: list[bytes] = []
        try:
            kept.append([_out(key, where, own), _out(value, where, own)])
        except UnsupportedSampleError:
            continue
        data.extend(own)
    return ["image", image.mode, list(image.size), palette, ["dict", kept], _out(image.tobytes(), where, data)]


def _image_in(layout: Any, reader: Reader) -> Any:
    from PIL import Image

    _, mode, size, palette, info, pixels = layout
    colours = None if palette is None else _in(palette[1], reader)
    notes = _in(info, reader)
    image = Image.frombytes(mode, tuple(size), _in(pixels, reader))
    if colours is not None:
        image.putpalette(colours, palette[0])
    image.info = notes
    return image


def _int_out(value: int, where: str, data: list[bytes]) -> list[Any]:
    if -(2**63) <= value < 2**63:
        data.append(_INT64.pack(value))
        return ["int"]
    return ["long", _out(hex(value), where, data)]


def _bytes_out(value: bytes, where: str, data: list[bytes]) -> list[Any]:
    data.append(value)
    return ["bytes", len(value)]


def _str_out(value: str, where: str, data: list[bytes]) -> list[Any]:
    return ["str", _bytes_out(value.encode("utf-8", "surrogatepass"), where, data)[1]]


def _float_out(value: float, where: str, data: list[bytes]) -> list[Any]:
    data.append(_FLOAT.pack(value))
    return ["float"]


def _complex_out(value: complex, where: str, data: list[bytes]) -> list[Any]:
    data.append(_FLOAT.pack(value.real) + _FLOAT.pack(value.imag))
    return ["complex"]


_WRITERS: Final[dict[type, Callable[[Any, str, list[bytes]], list[Any]]]] = {
    torch.Tensor: tensor_out,
    np.ndarray: array_out,
    np.memmap: array_out,
    int: _int_out,
    float: _float_out,
    complex: _complex_out,
    str: _str_out,
    bytes: _bytes_out,
    bool: lambda value, where, data: ["bool", value],
    type(None): lambda value, where, data: ["none"],
}
_READERS: Final[dict[str, Callable[[Any, Reader], Any]]] = {
    "tensor": tensor_in,
    "array": array_in,
    "scalar": _scalar_in,
    "image": _image_in,
    "tuple": lambda layout, reader: tuple(_in(item, reader) for item in layout[1]),
    "list": lambda layout, reader: [_in(item, reader) for item in layout[1]],
    "dict": lambda layout, reader: {_in(key, reader): _in(value, reader) for key, value in layout[1]},
    "int": lambda layout, reader: _INT64.unpack(reader.take(8))[0],
    "long": lambda layout, reader: int(_in(layout[1], reader), 16),
    "float": lambda layout, reader: _FLOAT.unpack(reader.take(8))[0],
    "complex": lambda layout, reader: complex(*(_FLOAT.unpack(reader.take(8))[0] for _ in range(2))),
    "str": lambda layout, reader: str(reader.take(layout[1]), "utf-8", "surrogatepass"),
    "bytes": lambda layout, reader: bytes(reader.take(layout[1])),
    "bool": lambda layout, reader: layout[1],
    "none": lambda layout, reader: None,
}
