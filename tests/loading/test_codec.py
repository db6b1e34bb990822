"""What is kept as bytes comes back equal to the bit, whatever its shape, and shares nothing with the bytes."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from lightning_speedups.loading.codec import decode, encode
from lightning_speedups.loading.dense import UnsupportedSampleError

DTYPES = (torch.bool, torch.uint8, torch.uint16, torch.int64, torch.bfloat16, torch.float16, torch.float32)
DTYPES = (*DTYPES, torch.float64, torch.complex64, torch.float8_e4m3fn)

numbers = st.integers() | st.floats() | st.complex_numbers() | st.booleans() | st.none()
texts = st.text(st.characters()) | st.text() | st.binary()
plain_dtypes = hnp.scalar_dtypes() | hnp.unicode_string_dtypes() | hnp.byte_string_dtypes()
arrays = hnp.arrays(plain_dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    raw = draw(st.binary(min_size=(n := math.prod(shape) * dtype.itemsize), max_size=n))
    if dtype == torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    whole = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
    turned = whole.permute(draw(st.permutations(range(len(shape)))))
    return turned[::2] if turned.dim() and draw(st.booleans()) else turned


leaves = numbers | texts | arrays | tensors() | arrays.filter(lambda a: a.ndim == 0).map(lambda a: a[()])
samples = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


def identical(one, other) -> bool:
    """Equal in type, structure and every bit, told without the code under test."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        alike = (one.dtype, one.shape) == (other.dtype, other.shape)
        return alike and (not one.numel() or raw(one) == raw(other))
    if isinstance(one, (np.ndarray, np.generic)):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, (float, complex)):
        return np.array(one).tobytes() == np.array(other).tobytes()
    return bool(one == other)


def raw(tensor: torch.Tensor) -> bytes:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).reshape(-1).view(torch.uint8).numpy().tobytes()


@settings(max_examples=300, deadline=None)
@example(torch.zeros(2, dtype=torch.uint16)[::2])
@given(samples)
def test_every_sample_comes_back_identical(sample):
    payload = encode(sample)

    assert identical(decode(payload), sample)
    assert encode(sample) == payload


@pytest.mark.parametrize("dims", [(2, 0, 1), (1, 0, 2), (2, 1, 0)])
def test_a_dense_tensor_keeps_its_order_in_memory_so_that_sums_over_it_round_the_same(dims):
    tensor = torch.randn(6, 5, 4).permute(dims)
    back = decode(encode(tensor))

    assert torch.equal(back, tensor)
    assert back.stride() == tensor.stride()
    assert torch.equal(back.sum(), tensor.sum())


def test_a_tensor_with_gaps_comes_back_without_them():
    tensor = torch.randn(6, 5, 4)[::2]
    back = decode(encode(tensor))

    assert torch.equal(back, tensor)
    assert back.is_contiguous()
    assert back.untyped_storage().nbytes() == tensor.nbytes


def test_a_view_of_a_conjugate_comes_back_as_the_numbers_that_it_shows():
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()

    assert torch.equal(decode(encode(tensor)), torch.tensor([1 - 2j, 3 + 4j]))


def test_a_structured_array_keeps_its_fields():
    array = np.array([("a", 1, (1.5, 2.5)), ("b", 2, (3.5, 4.5))], [("name", "U3"), ("n", ">i4"), ("xy", "f8", 2)])

    assert identical(decode(encode(array)), array)


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16"]
)
def test_an_image_of_any_mode_comes_back_equal(mode):
    image = Image.new(mode, (7, 5))
    image.info = {"dpi": (72.0, 72.0), "note": "x"}

    assert decode(encode(image)) == image


@pytest.mark.parametrize("colours", [4, 256])
def test_an_image_with_a_palette_keeps_colours_and_transparency(colours):
    image = Image.effect_noise((16, 16), 60).convert("RGB").quantize(colours)
    image.info["transparency"] = 2
    back = decode(encode(image))

    assert back == image
    assert back.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


def test_an_image_read_from_a_file_comes_back_loaded_with_its_pixels_and_plain_notes():
    file = io.BytesIO()
    Image.effect_noise((16, 16), 60).convert("RGB").save(file, "JPEG")
    image = Image.open(file)
    image.info["odd"] = object()
    back = decode(encode(image))

    assert type(back) is Image.Image
    assert back.tobytes() == image.tobytes()
    assert back.info == {key: value for key, value in image.info.items() if key != "odd"}


def test_what_comes_back_can_be_written_to_and_the_bytes_stay():
    payload = encode((torch.zeros(3), np.zeros(3), [0]))
    tensor, array, items = decode(payload)
    tensor.fill_(7), array.fill(7), items.append(7)

    assert identical(decode(payload), (torch.zeros(3), np.zeros(3), [0]))


@pytest.mark.parametrize(
    ("sample", "named"),
    [
        ({1, 2}, r"sample is a builtins\.set"),
        ((0, {"x": object()}), r"sample\[1\]\['x'\] is a builtins\.object"),
        ([torch.nn.Parameter(torch.zeros(1))], r"sample\[0\] is a torch\.nn\.parameter\.Parameter"),
        (torch.zeros(1, requires_grad=True), "requires_grad"),
        (torch.zeros(2, 2).to_sparse(), "sparse_coo"),
        (torch.zeros(1, device="meta"), "on meta"),
        (np.array([object()]), "Python objects"),
        ({frozenset(): 1}, "a key of sample is a builtins.frozenset"),
    ],
)
def test_anything_else_is_refused_with_its_type_and_place(sample, named):
    with pytest.raises(UnsupportedSampleError, match=named):
        encode(sample)
