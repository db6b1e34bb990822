"""Caching and seeds per sample on two ranks, under the sampler that Lightning puts in."""

from __future__ import annotations

import shutil
import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from lightning_speedups.loading.cached import CachedDataset
from lightning_speedups.loading.per_sample_seed import PerSampleSeed
from tests.distributed import ddp_trainer, distributed_case, on_every_rank
from tests.helpers import namespace
from tests.loading.cache_cases import Even, Noisy, add_noise

pl = namespace()


class Recorder(pl.LightningModule):
    """Keeps what it is given, with the epoch."""

    def __init__(self, data):
        super().__init__()
        self.data, self.net, self.seen = data, torch.nn.Linear(1, 1), []

    def on_train_epoch_start(self):
        self.data.set_epoch(self.current_epoch)

    def training_step(self, batch, batch_idx):
        numbers, indices = batch
        self.seen += [(self.current_epoch, *pair) for pair in zip(indices.tolist(), numbers.tolist(), strict=True)]
        return self.net(torch.ones(1, 1)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Numbered(Noisy):
    def __getitem__(self, index):
        return super().__getitem__(index), index


def trained_on(data, workers=0):
    module = Recorder(data)
    kept = workers > 0
    loader = DataLoader(data, batch_size=2, shuffle=True, num_workers=workers, persistent_workers=kept)
    ddp_trainer(max_epochs=2).fit(module, loader)
    return [entry for seen in on_every_rank(module.seen) for entry in seen]


def expected(data):
    found = []
    for epoch in range(2):
        data.set_epoch(epoch)
        found += [(epoch, index, data[index][0].tolist()) for index in range(len(data))]
    return found


@distributed_case
def samples_seeded_alike_on_any_rank_and_worker() -> None:
    pl.seed_everything(1, verbose=False)
    alone = expected(PerSampleSeed(Numbered(), seed=5))
    for workers in (0, 1):
        assert sorted(trained_on(PerSampleSeed(Numbered(), seed=5), workers)) == alone


@distributed_case
def ranks_fill_one_cache() -> None:
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    try:
        cached = CachedDataset(Even(), folder[0], transform=add_noise)
        seen = sorted(trained_on(PerSampleSeed(cached, seed=5)))
        dist.barrier()

        assert cached.cached == len(cached)
        assert len(set(on_every_rank(cached.folder))) == 1
        # Each rank made its half, and on the way at most the samples that tell which dataset it is, twice each.
        assert len(set(cached.dataset.asked) - {0, 10, 19}) <= len(cached) // 2
        assert seen == expected(PerSampleSeed(CachedDataset(Even(), folder[0], transform=add_noise), seed=5))
        dist.barrier()
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(folder[0])
