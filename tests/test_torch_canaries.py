"""A canary for each private part of torch that the pack stands on: it says which one moved in which version."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_speedups import _torch
from tests.private_parts import foreign_private_names


def schedulers_are_listed_by_those_that_hold_them() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    parts = [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.LinearLR(optimizer)]
    assert list(torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])._schedulers) == parts
    assert list(torch.optim.lr_scheduler.ChainedScheduler(parts, optimizer)._schedulers) == parts


def compiled_functions_point_at_their_original() -> None:
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x

    assert torch.compile(plain, backend="eager")._torchdynamo_orig_callable is plain
    assert not _torch.is_compiled(plain)


def compiled_modules_are_told_from_others() -> None:
    module = torch.nn.Linear(1, 1)
    assert module._compiled_call_impl is None
    assert _torch.is_compiled(torch.compile(module, backend="eager"))
    module.compile(backend="eager")
    assert module._compiled_call_impl is not None


def nodes_are_numbered_in_the_order_in_which_they_are_built() -> None:
    leaf = torch.ones(1, requires_grad=True)
    before = torch._C._autograd._get_sequence_nr()
    with torch.no_grad():
        leaf * 2
    assert torch._C._autograd._get_sequence_nr() == before
    first, second = leaf * 2, leaf * 3
    assert [each.grad_fn._sequence_nr() for each in (first, second)] == [before, before + 1]
    assert not _torch.built_since(leaf, before)


def the_engine_numbers_its_runs() -> None:
    first = _torch.backward_runs()
    (torch.ones(1, requires_grad=True) * 2).backward()
    assert _torch.backward_runs() == first + 2
    assert torch._C._current_graph_task_id() == -1


def saved_tensors_lie_open_in_a_graph() -> None:
    x = torch.ones(2, requires_grad=True)
    node = x.exp().grad_fn
    assert [name for name in dir(node) if name.startswith("_raw_saved_")] == ["_raw_saved_result"]
    if _torch.shows_saved_tensors():
        assert torch.equal(node._raw_saved_result.data, x.exp())


def changes_in_place_are_counted() -> None:
    tensor = torch.zeros(1)
    before = _torch.version_of(tensor)
    tensor.add_(1)
    assert _torch.version_of(tensor) == (before or 0) + 1
    with torch.inference_mode():
        assert _torch.version_of(torch.zeros(1)) is None


def a_loader_is_guarded_by_a_flag_and_keeps_its_workers() -> None:
    loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=2)
    assert loader._DataLoader__initialized is True
    with pytest.raises(ValueError, match="batch_size"):
        loader.batch_size = 3
    assert loader._iterator is None
    assert [len(batch[0]) for batch in _torch.with_batch_size(loader, 4)] == [4, 2]
    assert [len(batch[0]) for batch in loader] == [2, 2, 2]


def a_loaders_iterator_owns_its_workers_and_its_draws() -> None:
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    assert _torch.is_loader_iterator(iterator)
    assert loader._iterator is iterator
    assert [worker.pid for worker in iterator._workers] == _torch.live_worker_pids(iterator)
    before = torch.get_rng_state()
    iter(loader)
    assert torch.equal(torch.get_rng_state(), before)
    _torch.draws_as_if_workers_were_new(loader)
    iter(loader)
    torch.set_rng_state(before)
    torch.empty((), dtype=torch.int64).random_()
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    iter(loader)
    assert torch.equal(torch.get_rng_state(), after)
    iterator._shutdown_workers()
    _torch.end_live_workers(loader)
    assert loader._iterator is None


CANARIES: dict[str, tuple[tuple[str, ...], Callable[[], None]]] = {
    "SequentialLR._schedulers and ChainedScheduler._schedulers": (
        ("_schedulers",),
        schedulers_are_listed_by_those_that_hold_them,
    ),
    "_torchdynamo_orig_callable": (
        ("_torchdynamo_orig_callable",),
        compiled_functions_point_at_their_original,
    ),
    "Module._compiled_call_impl and OptimizedModule": (
        ("_compiled_call_impl",),
        compiled_modules_are_told_from_others,
    ),
    "_C._autograd._get_sequence_nr and Node._sequence_nr": (
        ("_C", "_autograd", "_get_sequence_nr", "_sequence_nr"),
        nodes_are_numbered_in_the_order_in_which_they_are_built,
    ),
    "_C._current_graph_task_id": (("_current_graph_task_id",), the_engine_numbers_its_runs),
    "Node._raw_saved_*": (("_raw_saved_result",), saved_tensors_lie_open_in_a_graph),
    "Tensor._version": (("_version",), changes_in_place_are_counted),
    "_BaseDataLoaderIter._reset, ._workers and ._shutdown_workers": (
        ("_reset", "_workers", "_shutdown_workers"),
        a_loaders_iterator_owns_its_workers_and_its_draws,
    ),
    "DataLoader.__initialized and ._iterator": (("_iterator",), a_loader_is_guarded_by_a_flag_and_keeps_its_workers),
}


@pytest.mark.parametrize("part", CANARIES)
def test_the_private_part_is_where_it_was(part: str) -> None:
    _, sings = CANARIES[part]
    try:
        sings()
    except (AttributeError, AssertionError, KeyError, TypeError, ValueError) as error:
        pytest.fail(f"{part} is not what it was in torch 2.13: this is torch {torch.__version__}. {error!r}")


def test_every_private_part_that_the_pack_uses_has_a_canary() -> None:
    used = foreign_private_names()["_torch.py"]
    watched = {name for names, _ in CANARIES.values() for name in names}

    assert used - watched == set()
