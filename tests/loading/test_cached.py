"""A cached sample is the dataset's, bit for bit, made once; an old one is never given for a new one."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

import lightning_speedups as ls
from lightning_speedups.loading.cached import CachedDataset, StaleCacheError
from lightning_speedups.measuring import rng
from tests.distributed import REPOSITORY
from tests.loading import cache_cases as cases
from tests.loading.cache_cases import Even, Rows, row, same

PROBES = {0, 10, 19}
OWN = np.random.default_rng(0)


def program(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.loading.cache_cases", *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    try:
        _, told = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, told


def whole_epoch(data, **settings):
    return list(DataLoader(data, batch_size=None, collate_fn=cases.as_is, **settings))


class Variant(Rows):
    """Rows with a transform of its own kind."""

    def __init__(self, transform, count=20):
        super().__init__(count)
        self.transform = transform

    def __getitem__(self, index):
        values, number, name = super().__getitem__(index)
        return self.transform(values), number, name


class Shift:
    def __init__(self, by):
        self.by = by

    def __call__(self, values):
        # A change of ``by`` shows only in samples that the cache does not look at.
        return values + self.by if values.shape[0] == 4 else values


def test_the_package_gives_it_by_name():
    assert ls.CachedDataset is CachedDataset


def test_from_the_second_epoch_on_nothing_is_made_again_and_every_sample_is_the_datasets(tmp_path):
    source = Rows()
    data = CachedDataset(source, tmp_path)
    first = [data[index] for index in range(20)]
    source.asked.clear()
    second = [data[index] for index in range(20)]

    assert source.asked == []
    assert all(map(same, first, map(row, range(20))))
    assert all(map(same, second, map(row, range(20))))
    assert data.cached == len(data) == 20
    assert data.dataset is source


def test_each_sample_is_made_once(tmp_path):
    source = Rows()
    data = CachedDataset(source, tmp_path)
    source.asked.clear()
    for _ in range(3):
        whole_epoch(data)

    assert sorted(source.asked) == list(range(20))


def test_a_later_run_makes_only_the_samples_that_tell_whether_the_dataset_is_the_same(tmp_path):
    whole_epoch(CachedDataset(Rows(), tmp_path))
    source = Rows()
    data = CachedDataset(source, tmp_path)

    assert all(map(same, whole_epoch(data), map(row, range(20))))
    assert set(source.asked) == PROBES


def test_what_reading_changes_in_the_dataset_makes_no_new_cache(tmp_path):
    source = Rows()
    folders = {CachedDataset(source, tmp_path).folder for _ in range(2)}
    source.asked.append(3)

    assert {CachedDataset(source, tmp_path).folder, CachedDataset(Rows(), tmp_path).folder} == folders


@pytest.mark.parametrize(
    "settings",
    [{}, {"persistent_workers": True}, pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.slow)],
)
def test_workers_fill_and_read_one_cache(tmp_path, settings):
    data = CachedDataset(Rows(), tmp_path)
    loader = DataLoader(data, batch_size=None, collate_fn=cases.as_is, num_workers=2, **settings)
    for _ in range(2):
        assert all(map(same, loader, map(row, range(20))))

    assert data.cached == 20
    reader = pickle.loads(pickle.dumps(data))
    reader.dataset.asked.clear()
    assert all(map(same, whole_epoch(reader), map(row, range(20))))
    assert reader.dataset.asked == []


@pytest.mark.parametrize("workers", [0, 2])
def test_fill_makes_all_before_training_and_draws_nothing(tmp_path, workers):
    data = CachedDataset(Rows(), tmp_path)
    before = rng.fingerprint()
    data.fill(num_workers=workers)

    assert data.cached == 20
    assert rng.fingerprint() == before
    data.dataset.asked.clear()
    data.fill()
    assert data.dataset.asked == []


@pytest.mark.slow
def test_several_programs_fill_one_cache_at_once(tmp_path):
    running = [program("fill", tmp_path, workers, 60) for workers in (0, 2, 2)]

    assert [ended(process)[0] for process in running] == [0, 0, 0]
    source = Rows(60)
    data = CachedDataset(source, tmp_path)
    source.asked.clear()
    assert data.cached == 60
    assert all(map(same, whole_epoch(data), map(row, range(60))))
    assert source.asked == []


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "share"), [(".samples", 0.5), (".samples", 1.0), (".index", 0.0), (".index", 0.5)])
def test_a_process_killed_in_the_middle_of_a_write_leaves_what_it_had_committed_and_nothing_torn(
    tmp_path, suffix, share
):
    code, told = ended(program("killed", tmp_path, suffix, share))
    assert code == -signal.SIGKILL, told.decode()

    source = Rows()
    data = CachedDataset(source, tmp_path)
    source.asked.clear()
    assert data.cached == 8
    assert all(map(same, whole_epoch(data), map(row, range(20))))
    assert sorted(source.asked) == list(range(8, 20))
    assert CachedDataset(Rows(), tmp_path).cached == 20


def test_a_sample_whose_bytes_were_damaged_is_made_again(tmp_path):
    first = CachedDataset(Rows(), tmp_path)
    first.fill()
    (file,) = first.folder.glob("*.samples")
    data = bytearray(file.read_bytes())
    # The bytes of the last sample but those that say its layout.
    data[-4:] = bytes(4)
    file.write_bytes(data)

    source = Rows()
    # The last sample is one of those that are looked at.
    again = CachedDataset(source, tmp_path)
    assert all(map(same, whole_epoch(again), map(row, range(20))))
    assert source.asked.count(19) == 3
    later = CachedDataset(Rows(), tmp_path)
    later.dataset.asked.clear()
    assert all(map(same, whole_epoch(later), map(row, range(20))))
    assert later.dataset.asked == []


def test_a_write_to_a_sample_never_reaches_the_cache(tmp_path):
    data = CachedDataset(Rows(), tmp_path, transform=cases.spoil)
    spoilt = [whole_epoch(data) for _ in range(2)]

    assert all((sample[0] == -1).all() for epoch in spoilt for sample in epoch)
    assert all(map(same, whole_epoch(CachedDataset(Rows(), tmp_path)), map(row, range(20))))


def test_a_random_transform_passed_apart_stays_live(tmp_path):
    data = CachedDataset(Rows(), tmp_path, transform=cases.add_noise)
    torch.manual_seed(0)
    first, second = data[3][0] - row(3)[0], data[3][0] - row(3)[0]
    torch.manual_seed(0)

    assert torch.allclose(first, torch.rand(()).expand_as(first), atol=1e-6)
    assert not torch.equal(first, second)


def test_a_batch_is_asked_for_together_where_the_dataset_can(tmp_path):
    class Together(Even):
        def __init__(self):
            super().__init__()
            self.batches = []

        def __getitems__(self, indices):
            self.batches.append(list(indices))
            return [self[index] for index in indices]

    source = Together()
    data = CachedDataset(source, tmp_path)
    batches = [values for values, _ in DataLoader(data, batch_size=5)]

    assert source.batches == [list(range(at, at + 5)) for at in (0, 5, 10, 15)]
    assert torch.equal(torch.cat(batches), torch.stack([row(index)[0][:3] for index in range(20)]))
    assert all(map(same, data.__getitems__([4, -1, 4]), [Even()[4], Even()[19], Even()[4]]))


@pytest.mark.parametrize("index", [20, -21])
def test_an_index_out_of_range_ends_an_iteration(tmp_path, index):
    data = CachedDataset(Rows(), tmp_path)

    with pytest.raises(IndexError, match=f"index {index} is out of range for a dataset of 20"):
        data[index]
    assert len(list(data)) == 20


@pytest.mark.parametrize("index", [np.int64(3), torch.tensor(3), -17])
def test_any_whole_number_is_an_index(tmp_path, index):
    assert same(CachedDataset(Rows(), tmp_path)[index], row(3))


@pytest.mark.parametrize(
    "change",
    [
        lambda: Rows(21),
        lambda: Rows(scale=2.0),
        lambda: Variant(Shift(0)),
        lambda: Subset(Rows(), range(20)),
        lambda: ConcatDataset([Rows(10), Rows(10)]),
    ],
    ids=["length", "samples", "class", "subset", "concatenation"],
)
def test_another_dataset_gets_another_cache(tmp_path, change):
    old, new = CachedDataset(Rows(), tmp_path), CachedDataset(change(), tmp_path)
    old.fill()

    assert new.folder != old.folder
    assert all(map(same, new, change()))


def test_a_setting_of_the_transform_that_shows_in_no_sample_looked_at_makes_another_cache(tmp_path):
    old = CachedDataset(Variant(Shift(1.0)), tmp_path)
    old.fill()
    new = CachedDataset(Variant(Shift(2.0)), tmp_path)

    assert all(same(old[index], new[index]) for index in PROBES)
    assert new.folder != old.folder
    assert torch.equal(new[1][0], row(1)[0] + 2.0)


def test_the_source_of_the_transform_makes_another_cache(tmp_path, monkeypatch):
    folders = []
    for body in ("values + 1.0 * (values.shape[0] == 4)", "values - 1.0 * (values.shape[0] == 4)"):
        (tmp_path / "own_transform.py").write_text(
            f"def half(values):\n    return whole(values)\ndef whole(values):\n    return {body}\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        sys.modules.pop("own_transform", None)
        sys.dont_write_bytecode = True
        import own_transform

        for transform in (own_transform.half, lambda values, called=own_transform.half: called(values)):
            folders.append(CachedDataset(Variant(transform), tmp_path / "cache").folder)

    assert len(set(folders)) == 4


def test_a_table_that_differs_in_a_sample_not_looked_at_makes_another_cache(tmp_path):
    orders = [list(range(20)), list(range(20))]
    orders[1][3:5] = [4, 3]
    folders = {CachedDataset(Subset(Rows(), order), tmp_path).folder for order in orders}

    assert len(folders) == 2


def test_data_that_was_moved_finds_its_cache(tmp_path):
    class Files(Rows):
        def __init__(self, root):
            super().__init__()
            self.root, self.paths = root, [f"{root}/{index}.jpg" for index in range(20)]

    folders = {CachedDataset(Files(root), tmp_path).folder for root in ("/one/data", "/two/data")}

    assert len(folders) == 1


@pytest.mark.slow
def test_the_same_dataset_in_another_process_finds_its_cache(tmp_path):
    folder = CachedDataset(Rows(), tmp_path).folder
    for seed in ("1", "2"):
        command = (
            "import sys; from tests.loading.cache_cases import *; print(CachedDataset(Rows(), sys.argv[1]).folder)"
        )
        told = subprocess.run(
            [sys.executable, "-c", command, str(tmp_path)],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert told.stdout.strip() == str(folder)


class Behind(Rows):
    """Samples that come from a file's content, which no attribute tells."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def __getitem__(self, index):
        return self.path.read_text()[index % 20], index


def test_verify_finds_data_that_changed_behind_a_sample(tmp_path):
    source = Behind(tmp_path / "data.txt")
    source.path.write_text("a" * 20)
    CachedDataset(source, tmp_path / "cache").fill()
    source.path.write_text("aaaa" + "b" + "a" * 15)

    assert CachedDataset(source, tmp_path / "cache")[4] == ("a", 4)
    with pytest.raises(StaleCacheError, match=r"sample 4 in the cache .* Delete that folder"):
        CachedDataset(source, tmp_path / "cache", verify=5)
    with pytest.raises(StaleCacheError, match="sample 4"):
        CachedDataset(source, tmp_path / "cache", verify=1000)


def test_verify_makes_so_many_more_and_passes_where_nothing_changed(tmp_path):
    CachedDataset(Rows(), tmp_path).fill()
    source = Rows()
    CachedDataset(source, tmp_path, verify=5)

    assert set(source.asked) == PROBES | {0, 4, 8, 12, 16}
