"""Random samples depend on seed, epoch and index alone: not on workers, order or ranks, and they move nothing else."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from numpy.random import mtrand
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import lightning_speedups as ls
from lightning_speedups.loading.cached import CachedDataset
from lightning_speedups.loading.per_sample_seed import PerSampleSeed
from lightning_speedups.measuring import rng
from tests.helpers import namespace, quiet_trainer
from tests.loading import cache_cases as cases
from tests.loading.cache_cases import Even, Noisy

pl = namespace()
MODULE_RNG = np.random.default_rng(0)


def noisy(seed=5):
    """Seeded samples that draw from every kind of stream."""
    return PerSampleSeed(Noisy(torch_rng=torch.Generator()), seed=seed)


def epochs(data, count=2, **settings):
    """All samples of some epochs, in the order of their indices."""
    loader = DataLoader(data, batch_size=4, **settings)
    found = []
    for epoch in range(count):
        data.set_epoch(epoch)
        found.append(torch.cat(list(loader)))
    return torch.stack(found)


def test_the_package_gives_it_by_name():
    assert ls.PerSampleSeed is PerSampleSeed


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("persistent", [False, True])
def test_any_number_of_workers_gives_the_same_samples(workers, persistent):
    alone = epochs(noisy())
    shared = epochs(noisy(), num_workers=workers, persistent_workers=persistent)

    assert torch.equal(alone, shared)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_any_start_method_gives_the_same_samples_and_persistent_workers_learn_the_epoch(method):
    settings = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": method}

    assert torch.equal(epochs(PerSampleSeed(Noisy(), seed=5)), epochs(PerSampleSeed(Noisy(), seed=5), **settings))


def test_each_epoch_each_sample_and_each_stream_draws_its_own_numbers():
    drawn = epochs(noisy(), count=3)[..., 1:]

    assert len(drawn.unique()) == drawn.numel()


def test_other_seeds_give_other_samples_and_the_default_is_the_seed_of_the_program():
    torch.manual_seed(3)
    default = noisy(None)
    torch.rand(5)

    assert default.seed == noisy(None).seed == 3
    assert torch.equal(default[0], noisy(3)[0])
    assert not torch.equal(default[0], noisy(4)[0])


def test_the_order_of_access_does_not_matter():
    data = noisy()
    forth = [data[index] for index in range(24)]

    assert all(torch.equal(data[index], forth[index]) for index in reversed(range(24)))
    assert torch.equal(data[-1][1:], forth[23][1:])
    assert torch.equal(data[np.int64(2)], forth[2])
    assert torch.equal(Subset(data, [7])[0], forth[7])


def test_no_stream_is_moved():
    source = Noisy(torch_rng=torch.Generator())
    data = PerSampleSeed(source, seed=5)
    own = [
        source.torch_rng.get_state().tolist(),
        source.python_rng.getstate(),
        str(source.numpy_rng.bit_generator.state),
    ]
    before = rng.fingerprint()
    for index in range(5):
        data[index]

    assert rng.fingerprint() == before
    after = [
        source.torch_rng.get_state().tolist(),
        source.python_rng.getstate(),
        str(source.numpy_rng.bit_generator.state),
    ]
    assert after == own


def around_samples(data, between):
    """What numpy's global stream gives to ``between`` around samples, and where all streams stand at the end."""
    np.random.seed(0)
    drawn = []
    for index in range(6):
        drawn.append(between())
        if data is not None:
            data[index]
    return drawn, rng.fingerprint()


@pytest.mark.parametrize("between", [np.random.randn, np.random.rand, lambda: 0, lambda: np.random.randn(3)[0]])
def test_normal_numbers_which_numpy_makes_in_pairs_go_on_where_they_stood(between):
    data = noisy()

    assert around_samples(data, between) == around_samples(None, between)
    assert torch.equal(data[3], noisy()[3])


def test_another_global_bit_generator_of_numpy_is_put_back():
    original, other = mtrand.get_bit_generator(), np.random.PCG64(3)
    mtrand.set_bit_generator(other)
    try:
        first, state = np.random.randn(), other.state
        sample = noisy()[3]
        assert (mtrand.get_bit_generator(), other.state) == (other, state)
        drawn = [first, np.random.randn(), np.random.randn()]
        mtrand.set_bit_generator(np.random.PCG64(3))
        assert drawn == [np.random.randn() for _ in range(3)]
    finally:
        mtrand.set_bit_generator(original)
    assert torch.equal(sample, noisy()[3])


class Failing(Noisy):
    def __getitem__(self, index):
        super().__getitem__(index)
        raise RuntimeError("on purpose")


def test_streams_are_put_back_after_an_error_too():
    before = rng.fingerprint()

    with pytest.raises(RuntimeError, match="on purpose"):
        PerSampleSeed(Failing())[0]
    assert rng.fingerprint() == before


def test_one_inside_another_draws_the_inner_ones_numbers_and_moves_nothing():
    before = rng.fingerprint()
    inner = noisy()

    assert torch.equal(PerSampleSeed(inner, seed=6)[3], inner[3])
    assert rng.fingerprint() == before


class Elsewhere(Dataset):
    """Draws from generators that are not attributes of its own."""

    def __init__(self):
        hidden = random.Random(0)
        self.draw = lambda: (hidden.random(), MODULE_RNG.random())

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.draw()


def test_generators_in_closures_and_in_the_module_are_seeded():
    data = PerSampleSeed(Elsewhere(), seed=1)

    assert data[2] == data[2] == PerSampleSeed(Elsewhere(), seed=1)[2]
    assert data[1] != data[2]


def test_a_generator_that_the_program_replaces_between_epochs_is_seeded():
    data = noisy()
    expected = epochs(noisy())
    data[0]
    data.dataset.numpy_rng = np.random.default_rng()
    data.set_epoch(1)

    assert torch.equal(data[0], expected[1, 0])


def test_live_augmentation_of_a_cached_dataset_is_seeded_per_sample(tmp_path):
    def runs(workers):
        data = PerSampleSeed(CachedDataset(Even(), tmp_path, transform=cases.add_noise), seed=5)
        loader = DataLoader(data, batch_size=4, num_workers=workers)
        found = []
        for epoch in range(2):
            data.set_epoch(epoch)
            found.append(torch.cat([values for values, _ in loader]))
        return torch.stack(found)

    alone = runs(0)

    assert torch.equal(alone, runs(2))
    assert not torch.equal(alone[0], alone[1])


def test_a_copy_has_an_epoch_of_its_own_that_its_workers_see():
    data = noisy()
    data.set_epoch(2)
    for other in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert other.epoch == 2
        other.set_epoch(1)
        assert data.epoch == 2
        assert torch.equal(epochs(other, num_workers=1), epochs(noisy()))


def test_passes_without_an_epoch_are_told_once():
    data = PerSampleSeed(Noisy(10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for index in [*range(10)] * 2:
            data[index]
    with pytest.warns(UserWarning, match="21 samples of a dataset of 10 .* repeats the same augmentation") as told:
        epoch_of(data)
    assert len(told) == 1


def test_passes_with_an_epoch_are_not():
    data = PerSampleSeed(Noisy(10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(4):
            data.set_epoch(epoch)
            for index in range(10):
                data[index]
        for index in [*range(10)] * 4:
            data[index]


def epoch_of(data):
    for index in range(len(data)):
        data[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda: PerSampleSeed(Stream()), TypeError, "got Stream: a stream has no index"),
        (lambda: PerSampleSeed(3), TypeError, "needs a dataset with `__getitem__`, got int"),
        (lambda: PerSampleSeed(Noisy(), seed=1.5), ValueError, "`seed` must be a whole number, got 1.5 of type float"),
        (lambda: PerSampleSeed(Noisy(), seed=True), ValueError, "`seed` must be a whole number, got True"),
        (lambda: noisy(None).set_epoch("1"), ValueError, "`epoch` must be a whole number, got '1'"),
        (lambda: noisy(None)[1.0], TypeError, "a whole number or a string as index, got 1.0 of type float"),
    ],
)
def test_a_bad_argument_is_refused(make, error, told):
    with pytest.raises(error, match=told):
        make()


def test_a_string_is_an_index_too():
    class Named(Dataset):
        def __getitem__(self, name):
            return name, random.random()

    data = PerSampleSeed(Named(), seed=1)
    assert data["a"] == data["a"]
    assert data["a"][1] != data["b"][1]


class Learner(pl.LightningModule):
    """Trains with dropout on augmented samples, and tells its dataset the epoch as the class's docstring says."""

    def __init__(self, workers, persistent=False):
        super().__init__()
        self.persistent = persistent
        self.net = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(9, 1))
        self.data = noisy()
        self.workers, self.seen = workers, []

    def train_dataloader(self):
        self.data.set_epoch(self.trainer.fit_loop.epoch_progress.current.processed)
        return DataLoader(self.data, batch_size=4, num_workers=self.workers, persistent_workers=self.persistent)

    def on_train_epoch_start(self):
        self.data.set_epoch(self.current_epoch)

    def training_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, batch))
        return self.net(batch.float()).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fitted(workers, tmp_path, resume=None, persistent=False):
    pl.seed_everything(0, verbose=False)
    module = Learner(workers, persistent)
    saving = pl.callbacks.ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    trainer = quiet_trainer(max_epochs=3, callbacks=[saving], enable_checkpointing=True)
    trainer.fit(module, ckpt_path=resume)
    return module


def test_under_a_trainer_the_worker_count_changes_no_weight(tmp_path):
    alone, shared = (fitted(workers, tmp_path / str(workers)) for workers in (0, 2))

    assert all(torch.equal(*pair) for pair in zip(alone.parameters(), shared.parameters(), strict=True))
    assert len({batch[0, 1].item() for _, batch in alone.seen}) == 3 * 6


def test_under_a_trainer_persistent_workers_draw_the_same_for_each_sample(tmp_path):
    # The weights may differ: torch's loader draws from the global stream at each epoch, and with workers that stay it
    # does not, so that dropout and shuffling go on from another place.
    alone, shared = fitted(0, tmp_path / "alone"), fitted(2, tmp_path / "shared", persistent=True)

    assert all(torch.equal(one[1], other[1]) for one, other in zip(alone.seen, shared.seen, strict=True))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_resumed_run_draws_what_the_uninterrupted_one_drew(tmp_path, workers, persistent):
    whole = fitted(workers, tmp_path / "whole", persistent=persistent)
    checkpoint = tmp_path / "whole" / "epoch=1.ckpt"
    rest = fitted(workers, tmp_path / "rest", resume=checkpoint, persistent=persistent)

    expected = [batch for epoch, batch in whole.seen if epoch == 2]
    assert [epoch for epoch, _ in rest.seen] == [2] * 6
    assert all(itertools.starmap(torch.equal, zip((batch for _, batch in rest.seen), expected, strict=True)))
