"""What a forward saves for its backward, against a count by hand; and diagnostics that fail closed."""

from __future__ import annotations

import doctest
import gc
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_speedups.measuring.saved_bytes import SavedBytes

FLOAT = 4


def counted(module: nn.Module, x: torch.Tensor) -> int:
    counter = SavedBytes(leave_out=[*module.parameters(), *module.buffers()])
    assert counter.start()
    module(x)
    counter.stop()
    return counter.bytes


@pytest.mark.parametrize(
    ("module", "floats"),
    [
        (nn.Linear(8, 4), 8),
        (nn.Sequential(nn.Linear(8, 4), nn.Sigmoid(), nn.Linear(4, 2)), 8 + 4),
        (nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.ReLU()), 8 + 4 + 4),
        (nn.Sequential(nn.Linear(8, 4), nn.Flatten(), nn.Unflatten(1, (2, 2)), nn.Flatten(), nn.Tanh()), 8 + 4),
    ],
)
def test_each_storage_counts_once_and_parameters_never(module: nn.Module, floats: int) -> None:
    assert counted(module, torch.randn(16, 8)) == 16 * floats * FLOAT
    assert counted(module, torch.randn(32, 8)) == 32 * floats * FLOAT


def test_nothing_is_saved_without_gradients() -> None:
    with torch.no_grad():
        assert counted(nn.Linear(8, 4), torch.randn(16, 8)) == 0


def test_gradients_are_those_of_a_run_without_it() -> None:
    def gradients(count: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 1))
        counter = SavedBytes(module.parameters())
        if count:
            counter.start()
        loss = module(torch.randn(16, 8)).exp().mean()
        counter.stop()
        loss.backward()
        return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]

    with_it, without = gradients(count=True), gradients(count=False)
    assert len(with_it) == 6
    assert all(torch.equal(a, b) for a, b in zip(with_it, without, strict=True))


def test_recomputed_activations_are_not_counted() -> None:
    inner = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
    x = torch.randn(16, 8, requires_grad=True)
    counter = SavedBytes(inner.parameters())
    counter.start()
    result = checkpoint(inner, x, use_reentrant=False)
    counter.stop()
    result.sum().backward()
    assert counter.bytes < 16 * 64 * FLOAT
    assert x.grad is not None


def test_the_example_in_its_documentation() -> None:
    found = doctest.testmod(sys.modules[SavedBytes.__module__], extraglobs={"torch": torch})
    assert (found.failed, found.attempted) == (0, 6)


def test_it_holds_no_tensor() -> None:
    module, x = nn.Linear(8, 4), torch.randn(16, 8)
    counter = SavedBytes(module.parameters())
    counter.start()
    loss = module(x).square().sum()
    counter.stop()
    references = [weakref.ref(each) for each in (module.weight, x, loss)]
    del module, x, loss
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_the_programs_own_hooks_come_first() -> None:
    counter = SavedBytes()
    with torch.autograd.graph.save_on_cpu():
        assert not counter.start()
    assert not counter.running


def test_a_tensor_without_a_storage_is_passed_over() -> None:
    sparse = torch.eye(4).to_sparse()
    weight = nn.Parameter(torch.ones(4, 2))
    counter = SavedBytes([weight])
    counter.start()
    result = torch.sparse.mm(sparse, weight)
    counter.stop()
    result.sum().backward()
    assert counter.bytes == 0
    assert weight.grad is not None
