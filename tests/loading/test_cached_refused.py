"""What cannot be cached is refused with the reason; a cache that fails, fails alone."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset

from lightning_speedups.loading import cached, sample_store
from lightning_speedups.loading.cacheable import NotCacheableError, why_not_cacheable
from lightning_speedups.loading.cached import CachedDataset, CacheSpaceError
from lightning_speedups.loading.handles import shared_handles
from lightning_speedups.loading.per_sample_seed import PerSampleSeed
from lightning_speedups.measuring import rng
from tests.loading.cache_cases import Rows, row, same
from tests.loading.test_cached import whole_epoch

OWN = np.random.default_rng(0)


class Random(Rows):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def __getitem__(self, index):
        return self.draw(index), index


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda index: random.random(), "Python's global stream"),
        (lambda index: np.random.randn(), "numpy's global stream"),
        (lambda index: torch.rand(()), "torch's global stream"),
        (lambda index: OWN.random(), "OWN, a global that dataset.draw uses"),
        (lambda index: os.urandom(4), "differs between two accesses"),
        (lambda index: random.random() < 1e-9, "Python's global stream"),
    ],
    ids=["python", "numpy", "torch", "own", "system", "seldom applied"],
)
def test_a_random_sample_is_refused_with_how_to_split_the_transform(tmp_path, draw, named):
    before = rng.fingerprint()

    with pytest.raises(NotCacheableError, match=rf"(?s){named}.*pass it as `transform`"):
        CachedDataset(Random(draw), tmp_path)
    assert rng.fingerprint() == before
    assert list(tmp_path.iterdir()) == []
    assert "cannot be cached" in (told := why_not_cacheable(Random(draw))) or "repeat one draw" in told


def test_a_sample_that_seeds_a_stream_itself_can_be_cached(tmp_path):
    def draw(index):
        torch.manual_seed(index)
        return torch.rand(2)

    data = CachedDataset(Random(draw), tmp_path)
    data.fill()

    assert [torch.equal(data[index][0], draw(index)) for index in range(20)] == [True] * 20
    assert why_not_cacheable(Random(draw)) is None


def test_a_sample_that_is_random_though_those_looked_at_are_not_is_refused_when_it_is_made(tmp_path):
    data = CachedDataset(Random(lambda index: torch.rand(()) if index == 7 else 0), tmp_path)

    assert data[6] == (0, 6)
    with pytest.raises(NotCacheableError, match="sample 7 of Random draws random numbers"):
        data[7]
    with pytest.raises(NotCacheableError, match="sample 7 of Random draws random numbers"):
        whole_epoch(data, num_workers=1)
    # The loader, and with it its worker, lives as long as the error that came out of it.
    gc.collect()
    assert [data[index] for index in range(20) if index != 7] == [(0, index) for index in range(20) if index != 7]
    assert data.cached == 19


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class NoLength:
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    ("dataset", "error", "told"),
    [
        (Stream(), TypeError, "got the IterableDataset Stream: its samples have no index"),
        (NoLength(), TypeError, "NoLength has no __len__"),
        (3, TypeError, "int has no __getitem__"),
        (Rows(0), ValueError, "Rows is empty"),
        (Random(lambda index: {index}), TypeError, r"sample\[0\] is a builtins\.set"),
        (Subset(PerSampleSeed(Rows()), [0]), NotCacheableError, r"PerSampleSeed\(CachedDataset\("),
    ],
)
def test_what_cannot_be_cached_is_refused_with_the_reason(tmp_path, dataset, error, told):
    with pytest.raises(error, match=told):
        CachedDataset(dataset, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"verify": -1}, "`verify` must be a number of samples, 0 or more, got -1"),
        ({"verify": True}, "got True"),
        ({"verify": 1.5}, "got 1.5"),
        ({"transform": 3}, "`transform` must be callable with a sample, or None, got 3"),
    ],
)
def test_a_bad_argument_is_refused(tmp_path, arguments, told):
    with pytest.raises(ValueError, match=told):
        CachedDataset(Rows(), tmp_path, **arguments)


def test_a_cache_that_would_not_fit_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(
        CacheSpaceError, match=r"caching 20 samples of Rows needs about \d+ bytes .* has 100 bytes free"
    ):
        CachedDataset(Rows(), tmp_path, free_bytes=100)
    assert list(tmp_path.rglob("*.samples")) == []


def test_room_is_needed_only_for_what_is_not_cached_yet(tmp_path):
    CachedDataset(Rows(), tmp_path).fill()

    assert CachedDataset(Rows(), tmp_path, free_bytes=0).cached == 20


def test_a_disk_that_fills_up_ends_the_caching_and_not_the_training(tmp_path, monkeypatch):
    data = CachedDataset(Rows(), tmp_path)
    assert same(data[5], row(5))
    append = sample_store._append

    def full(path, size, content):
        append(path, size, content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sample_store, "_append", full)
    with pytest.warns(UserWarning, match="No space left on device.*are made anew each time"):
        assert same(data[6], row(6))
    assert all(map(same, data, map(row, range(20))))
    monkeypatch.undo()
    again = CachedDataset(Rows(), tmp_path)
    assert again.cached == 1
    assert all(map(same, again, map(row, range(20))))


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="this system cannot limit the size of a file")
def test_a_write_that_fails_takes_back_what_it_had_written(tmp_path):
    import resource

    file = tmp_path / "file"
    sample_store._append(file, 0, b"kept")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            sample_store._append(file, 4, bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
    assert file.read_bytes() == b"kept"


def test_it_holds_no_file_open_and_can_be_copied(tmp_path):
    data = CachedDataset(Rows(), tmp_path)
    data.fill()
    data[3]

    assert list(shared_handles(data, "data")) == []
    assert same(copy.deepcopy(data)[4], row(4))
    assert len(pickle.dumps(data)) < 2000


def test_ranks_that_start_at_once_use_one_folder(tmp_path):
    caches = [CachedDataset(Rows(), tmp_path) for _ in range(3)]
    for index in range(20):
        assert same(caches[index % 3][index], row(index))

    assert {cache.folder for cache in caches} == {caches[0].folder}
    assert [cache.cached for cache in caches] == [20] * 3


class Pictures(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.png"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            return {"image": image.convert("RGB"), "label": np.int64(index), "size": image.size}


def test_images_in_dicts_of_varying_size_come_back_equal(tmp_path):
    for index in range(4):
        Image.effect_noise((8 + index, 9), 50).save(tmp_path / f"{index}.png")
    source = Pictures(tmp_path)
    data = CachedDataset(source, tmp_path / "cache")

    for _ in range(2):
        for index in range(4):
            assert data[index] == source[index]


def test_a_relative_folder_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = CachedDataset(Rows(), "cache")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    data.fill()

    assert data.folder.is_relative_to(tmp_path / "cache")
    assert isinstance(data.folder, Path)
    assert cached.SampleStore(data.folder, 20).present == 20
