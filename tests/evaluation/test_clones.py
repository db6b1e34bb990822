"""Inference tensors that share memory: after they were cloned, they still do."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import lightning_speedups as ls
from lightning_speedups.evaluation.clones import Clones
from tests.evaluation.modules import Scaled, issues
from tests.helpers import loader, namespace, quiet_trainer

pl = namespace()


class KeyValueCache(Scaled):
    """Keeps a cache and writes to it through views of it."""

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if not hasattr(self, "cache"):
            self.cache = torch.zeros(2, 8)
            self.k, self.v = self.cache[0], self.cache[1]
        self.k += batch[0].mean(0)
        self.v += batch[0].std(0)
        return self.cache.sum().clone()


def inference_views() -> tuple[torch.Tensor, ...]:
    """A base and views of it: a column, columns turned into rows, bytes but the first, bits as whole numbers."""
    with torch.inference_mode():
        base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        return base, base[:, 1], base.t()[1:3], base.view(-1).view(torch.uint8)[1:], base.view(-1).view(torch.int32)


def test_a_cache_written_through_its_views_gives_what_it_gives_on_stock() -> None:
    def run(callback: Any) -> list[float]:
        module, rows = KeyValueCache(), torch.Generator().manual_seed(1)
        data = loader(16)
        data.dataset.tensors = (torch.randn(16, 8, generator=rows),)
        trainers = (quiet_trainer(callbacks=[callback]) for _ in range(3))
        return [float(each) for trainer in trainers for each in trainer.predict(module, data)]

    callback = ls.NoGradEvaluation()
    assert run(callback) == run(pl.Callback())


def test_all_views_are_views_of_one_copy_with_their_own_shapes() -> None:
    originals = inference_views()
    clones = Clones(originals)
    made = [clones.of(each) for each in originals]
    assert all(torch.equal(clone, original) for clone, original in zip(made, originals, strict=True))
    assert [each.stride() for each in made] == [each.stride() for each in originals]
    assert len({each.untyped_storage().data_ptr() for each in made}) == 1
    assert made[0].untyped_storage().data_ptr() != originals[0].untyped_storage().data_ptr()
    assert not any(each.is_inference() for each in made)
    made[1].fill_(-1)
    assert made[0][:, 1].tolist() == [-1, -1, -1]


def test_training_may_change_a_cloned_view_in_place() -> None:
    with torch.inference_mode():
        base = torch.zeros(2, 3)
        row = base[0]
    clones, weight = Clones([base, row]), torch.ones(3, requires_grad=True)
    base, row = clones.of(base), clones.of(row)
    row.add_(weight)
    base.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 1, 1]


def test_a_view_that_is_alone_lets_go_of_what_is_large() -> None:
    with torch.inference_mode():
        row = torch.ones(1000, 2)[0]
    assert Clones([row]).of(row).untyped_storage().nbytes() == row.numel() * row.itemsize


def test_what_has_no_plain_memory_and_parameters_are_cloned_too() -> None:
    with torch.inference_mode():
        sparse, empty, complex_ = torch.eye(2).to_sparse(), torch.ones(0, 3), torch.ones(2, dtype=torch.cfloat).conj()
        tied = nn.Parameter(torch.ones(2), requires_grad=False)
    clones = Clones([sparse, empty, complex_, tied])
    assert torch.equal(clones.of(sparse).to_dense(), torch.eye(2))
    assert clones.of(empty).shape == (0, 3)
    assert torch.equal(clones.of(complex_), torch.ones(2, dtype=torch.cfloat))
    assert isinstance(clones.of(tied), nn.Parameter)
    assert clones.of(tied) is clones.of(tied)


def test_a_view_of_what_cannot_be_replaced_stays_with_it() -> None:
    class InASet(Scaled):
        def factor(self) -> torch.Tensor:
            if not hasattr(self, "all"):
                self.row, self.alone = torch.ones(2, 1)[0], torch.ones(1)
                self.all = {self.row[:1]}
            return self.row

    module, callback = InASet(), ls.NoGradEvaluation()
    quiet_trainer(callbacks=[callback]).validate(module, loader(), verbose=False)
    assert (module.row.is_inference(), module.alone.is_inference()) == (True, False)
    assert issues(callback, "inference_tensor") == ["InASet.row", "InASet.alone", "InASet.all"]


def test_a_view_of_the_programs_own_inference_tensor_stays_a_view_of_it() -> None:
    class Own(Scaled):
        def factor(self) -> torch.Tensor:
            self.view = self.table[0]
            return self.view

    module = Own()
    with torch.inference_mode():
        module.table = torch.ones(2, 1)
    quiet_trainer(callbacks=[ls.NoGradEvaluation()]).validate(module, loader(), verbose=False)
    assert module.view.untyped_storage().data_ptr() == module.table.untyped_storage().data_ptr()
