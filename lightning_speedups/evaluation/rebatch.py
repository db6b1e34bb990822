"""Evaluation loaders with another batch size: which can have one, the samples for a proof, and the proof's verdict."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from lightning_speedups import _torch

RELATIVE_TOLERANCE = 1e-5
# Below this, a logged value is rounding itself: means of values that cancel.
ABSOLUTE_TOLERANCE = 1e-8


def refusal(loader: Any, size: int) -> str | None:
    """Why this loader keeps its batch size; None where it may have another."""
    if not isinstance(loader, DataLoader):
        return f"the loader is a {type(loader).__name__}, which is no DataLoader"
    if isinstance(loader.dataset, IterableDataset):
        return "its dataset is an IterableDataset, which may form its batches itself"
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        return "it has a batch sampler of its own, which decides what comes together"
    if type(loader).__iter__ is not DataLoader.__iter__:
        return f"its class {type(loader).__name__} overrides __iter__, and may change batches on their way"
    if loader.drop_last:
        ours, users = (len(loader.sampler) % each for each in (size, loader.batch_size))  # type: ignore[arg-type]
        if ours != users:
            return (
                f"drop_last=True would leave out other samples at {size} than at {loader.batch_size}: {ours} of them"
                f" instead of {users}"
            )
    return None


def rebuilt(loader: Any, size: int) -> Any:
    """The same loader in batches of ``size``: sampler, order, collate function and workers stay."""
    return loader if loader.batch_size == size else _torch.with_batch_size(loader, size)


def batches_of(loader: Any, sizes: tuple[int, int]) -> tuple[list[Any], list[Any]]:
    """Some of the loader's samples, read once and collated at both sizes, the last batch a short one if can be.

    They come in blocks spread evenly over its order, since data may be sorted, and its first samples all alike.
    Draws from the random streams that the sampler and the dataset draw from; keep those before and put them back.
    """
    enough = 2 * max(sizes) + min(sizes) // 2 + 1
    # A sampler may keep a place in its order: the loader's own must stay where it is.
    indices = _spread(copy.deepcopy(loader.sampler), enough, block=min(sizes))
    fetch_many = getattr(loader.dataset, "__getitems__", None)
    samples = fetch_many(indices) if callable(fetch_many) else [loader.dataset[index] for index in indices]
    first, second = (
        [loader.collate_fn(samples[start : start + size]) for start in range(0, len(samples), size)] for size in sizes
    )
    return first, second


def _spread(order: Any, enough: int, block: int) -> list[Any]:
    """``enough`` entries of an order, or all where there are no more: in blocks from its start to its end."""
    if not hasattr(order, "__len__") or len(order) <= enough:
        return list(islice(order, enough))
    blocks, rest = divmod(enough, block)
    starts = [number * (len(order) - rest - block) // (blocks - 1) for number in range(blocks)]
    chosen = {start + offset for start in starts for offset in range(block)} | set(range(len(order) - rest, len(order)))
    return [index for place, index in enumerate(order) if place in chosen]


def disagreements(ours: Mapping[str, float], users: Mapping[str, float]) -> list[str]:
    """The metrics that are not the same at both sizes, in words; whole numbers must be equal, others within 1e-5."""
    missing = sorted(set(ours) ^ set(users))
    differ = [
        f"{name} is {ours[name]:.7g}, not {users[name]:.7g}"
        for name in users
        if name in ours and not _agree(ours[name], users[name])
    ]
    return differ + [f"{name} is logged at one of the two sizes only" for name in missing]


def _agree(first: float, second: float) -> bool:
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) and math.isnan(second)
    if math.isfinite(first) and math.isfinite(second) and first.is_integer() and second.is_integer():
        return first == second
    return math.isclose(first, second, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
