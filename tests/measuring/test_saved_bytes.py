"""What a forward saves for its backward, against a count by hand; and diagnostics that fail closed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from lightning_speedups._torch import shows_saved_tensors
from lightning_speedups.measuring.saved_bytes import saved_bytes

FLOAT = 4


pytestmark = pytest.mark.skipif(not shows_saved_tensors(), reason="this torch does not show what a graph keeps")


def counted(module: nn.Module, x: torch.Tensor) -> int | None:
    return saved_bytes(module(x), leave_out=[*module.parameters(), *module.buffers()])


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


def test_reading_leaves_the_graph_as_it_is() -> None:
    def gradients(count: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 1))
        loss = module(torch.randn(16, 8)).exp().mean()
        if count:
            assert saved_bytes(loss, module.parameters())
        loss.backward()
        return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]

    with_it, without = gradients(count=True), gradients(count=False)
    assert len(with_it) == 6
    assert all(torch.equal(a, b) for a, b in zip(with_it, without, strict=True))


def test_a_value_changed_in_place_is_still_found_by_backward() -> None:
    x = torch.ones(4, requires_grad=True)
    h = x.exp()
    loss = h.sum() + h.log().sum()
    h.detach().mul_(2)
    assert saved_bytes(loss) is not None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_functions_of_the_program_are_read_and_no_hook_of_it_is_called() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError("unpacked")

    x = torch.ones(16, requires_grad=True)
    with saved_tensors_hooks(lambda tensor: tensor.detach(), unpack):
        loss = Double.apply(x * 1.0)
    assert saved_bytes(loss.sum()) == 16 * FLOAT


def test_recomputed_activations_are_not_counted_nor_computed() -> None:
    inner = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
    calls: list[int] = []
    inner.register_forward_pre_hook(lambda *_: calls.append(1))
    x = torch.randn(16, 8, requires_grad=True)
    result = checkpoint(inner, x, use_reentrant=False)
    kept = saved_bytes(result.sum(), inner.parameters())
    assert kept is not None
    assert kept < 16 * 64 * FLOAT
    assert len(calls) == 1


def test_it_holds_no_tensor() -> None:
    module, x = nn.Linear(8, 4), torch.randn(16, 8)
    loss = module(x).square().sum()
    saved_bytes(loss, module.parameters())
    references = [weakref.ref(each) for each in (module.weight, x, loss)]
    del module, x, loss
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_a_graph_that_was_freed_keeps_nothing() -> None:
    loss = nn.Linear(8, 4)(torch.randn(16, 8)).square().sum()
    loss.backward()
    assert saved_bytes(loss) == 0


def test_a_tensor_without_a_storage_is_passed_over() -> None:
    sparse = torch.eye(4).to_sparse()
    weight = nn.Parameter(torch.ones(4, 2))
    assert saved_bytes(torch.sparse.mm(sparse, weight).sum(), [weight]) == 0
