"""The only place that touches torch's private parts, each with a test in ``tests/test_torch_canaries.py``.

Checked on torch 2.6 and 2.13.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data


def scheduler_parts(scheduler: Any) -> Iterator[Any]:
    """The schedulers inside a ``SequentialLR`` or ``ChainedScheduler``, or the scheduler itself."""
    inner = getattr(scheduler, "_schedulers", None)
    if inner is None:
        yield scheduler
        return
    for part in inner:
        yield from scheduler_parts(part)


def is_compiled(obj: object) -> bool:
    """Whether ``obj`` is a function or module that ``torch.compile`` has wrapped; imports no compiler, runs no code."""
    if isinstance(obj, types.MethodType):
        obj = obj.__func__
    if isinstance(obj, torch.nn.Module):
        wrapped = "OptimizedModule" in {cls.__name__ for cls in type(obj).__mro__}
        return wrapped or obj._compiled_call_impl is not None
    return isinstance(obj, types.FunctionType) and "_torchdynamo_orig_callable" in vars(obj)


def graph_position() -> int:
    """The number that the next autograd node of this thread gets: it stands still where no graph is built."""
    return int(torch._C._autograd._get_sequence_nr())


def built_since(tensor: torch.Tensor, position: int) -> bool:
    """Whether ``tensor`` hangs on a graph whose last node was built at ``position`` or later."""
    node = tensor.grad_fn
    # A leaf's accumulation node has no place in the order: its number is the largest there is.
    return node is not None and node._sequence_nr() >= position


def backward_runs() -> int:
    """How often the autograd engine has run in this process by now, this call's own tiny run included."""
    runs: list[int] = []
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.zeros((), device="cpu", dtype=torch.float32, requires_grad=True)
        product = leaf * 1.0
        product.register_hook(lambda _: runs.append(torch._C._current_graph_task_id()))  # type: ignore[no-untyped-call]
        product.backward()  # type: ignore[no-untyped-call]
    return runs[0] + 1


def shows_saved_tensors() -> bool:
    """Whether this torch lets a graph's saved tensors be read without unpacking them; 2.6 does not."""
    return hasattr(torch._C._autograd.SavedTensor, "data")


def saved_tensors(node: Any) -> Iterator[torch.Tensor]:
    """The tensors that an autograd node keeps for its backward, as they lie there: no hook unpacks them."""
    for name in dir(node):
        if not name.startswith("_raw_saved_"):
            continue
        try:
            kept = getattr(node, name)
            parts = [each.data for each in (kept if isinstance(kept, (tuple, list)) else (kept,))]
        except RuntimeError:
            # Freed by a backward that has run already.
            continue
        yield from (part for part in parts if isinstance(part, torch.Tensor))


def version_of(tensor: torch.Tensor) -> int | None:
    """How often ``tensor`` was changed in place; None for an inference tensor, which does not count."""
    return None if tensor.is_inference() else int(tensor._version)


def with_batch_size(loader: Any, batch_size: int) -> Any:
    """A shallow copy of a map-style ``DataLoader``, of the same class, that forms batches of another size.

    Setting ``batch_size`` on a loader raises, and calling the class anew would need its constructor's arguments: the
    guard is lifted for the assignment instead.
    """
    changed = copy.copy(loader)
    changed.__dict__["_DataLoader__initialized"] = False
    changed.batch_size = batch_size
    changed.batch_sampler = torch.utils.data.BatchSampler(loader.sampler, batch_size, loader.drop_last)
    changed.__dict__["_DataLoader__initialized"] = True
    changed.__dict__["_iterator"] = None
    return changed


def end_live_workers(loader: Any) -> None:
    """Shut down the persistent workers of a loader, if any are alive; its next iteration starts new ones."""
    iterator = getattr(loader, "_iterator", None)
    if iterator is None:
        return
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
    loader._iterator = None


def live_worker_pids(iterator: Any) -> list[int]:
    """The process ids of the workers behind a loader's iterator; none where it loads by itself."""
    return [worker.pid for worker in getattr(iterator, "_workers", ())]


def is_loader_iterator(value: Any) -> bool:
    """Whether ``value`` is what ``iter(DataLoader)`` gives."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    return isinstance(value, _BaseDataLoaderIter)


def draws_as_if_workers_were_new(loader: Any) -> None:
    """Let a loader with live persistent workers go on drawing one number from its random stream for each iteration.

    Each new set of workers costs such a draw; workers that persist cost none, so that whatever draws after them, as
    shuffling and dropout do, would get other numbers from the second epoch on.
    """
    iterator = getattr(loader, "_iterator", None)
    if iterator is None or "_reset" in vars(iterator):
        return
    reset = iterator._reset

    def drawing_reset(loader: Any, first_iter: bool = False) -> None:
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        reset(loader, first_iter)

    iterator._reset = drawing_reset
