"""``tune_dataloader``: the engine for a loop that is written by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from lightning_speedups.loading import applying, memo
from lightning_speedups.loading.conditions import Conditions
from lightning_speedups.loading.decide import START_SHARE
from lightning_speedups.loading.report import LoaderPlan, Refusal
from lightning_speedups.loading.room import Room
from lightning_speedups.loading.search import EPOCHS_ASSUMED
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.loading.steps import Step
from lightning_speedups.loading.tuner import Tuner
from lightning_speedups.measuring.budget import Limits, cpu_budget, free_ram_bytes, free_shm_bytes, open_files_left
from lightning_speedups.reporting import text

# Whoever calls this function wants to know, also of a loader that has little to save.
LEAST_S = 3.0


def tune_dataloader(
    loader: Any,
    step_s: float | None = None,
    *,
    apply: bool = True,
    device: str | torch.device = "cpu",
    epochs: float = EPOCHS_ASSUMED,
    time_budget_s: float = 20.0,
    tolerance: float = 0.02,
    limits: Limits | None = None,
    cache: str | Path | None = None,
) -> LoaderPlan:
    """Measure a loader in a child process and give it the settings under which it feeds a training step.

    The loader is not iterated in this process: its sampler, its dataset and all random streams stay as they are.
    What it never alters: dataset, sampler, order, batch size, ``drop_last``, collation, generator, ``worker_init_fn``.

    Args:
        loader: a ``torch.utils.data.DataLoader`` that nothing iterates over now.
        step_s: seconds of a training step; with None the fewest workers that load as fast as any are taken.
        apply: give the loader its new settings; with False the plan only advises.
        device: where batches go.
        epochs: epochs to come, which bound what tuning may cost.
        time_budget_s: the most seconds that tuning takes; less where loading has less to save.
        tolerance: a smaller share of an epoch's time is no difference.
        limits: CPUs, memory, shared memory and open files, instead of the machine's own.
        cache: a file that keeps the plan for the next run.

    Returns:
        The plan, with every trial, refusal and advice; ``str(plan)`` prints it.

    Raises:
        ValueError: an argument that is out of its range.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> plan = tune_dataloader(DataLoader(range(64), batch_size=8), step_s=0.1)
        >>> plan.loading_is_the_limit, plan.after["num_workers"]
        (False, 0)
    """
    check_arguments(time_budget_s, tolerance)
    if step_s is not None and not (math.isfinite(step_s) and step_s >= 0):
        raise ValueError(f"step_s must be seconds of at least 0, or None where they are not known; got {step_s!r}")
    if not epochs > 0:
        raise ValueError(f"epochs must be above 0, got {epochs!r}")
    if not isinstance(loader, DataLoader):
        return not_a_loader("loader", 0, loader)
    device_type = torch.device(device).type
    conditions = Conditions(
        stage="loader",
        index=0,
        batches=length_of(loader),
        epochs=epochs,
        cpus=cpu_budget(limits),
        room=room_of(limits),
        budget_s=time_budget_s,
        tolerance=tolerance,
        device=device_type,
        step=None if step_s is None else Step.on(device_type, step_s),
        least_s=min(time_budget_s, LEAST_S),
    )
    path = None if cache is None else Path(cache)
    key = memo.fingerprint(loader, cpus=conditions.cpus.usable, device=device_type, step_s=step_s)
    kept = None if path is None else memo.read(path, key)
    if kept is not None:
        plan = from_cache("loader", 0, loader, kept)
    else:
        tuner = Tuner(loader, conditions)
        plan = tuner.plan()
        plan = replace(plan, advice=(*plan.advice, *_about_starts(tuner, conditions)))
    if path is not None and kept is None and plan.trials:
        memo.write(path, key, LoaderSettings.from_dict(plan.after))
    return given_to(loader, plan) if apply else plan


def _about_starts(tuner: Tuner, conditions: Conditions) -> Iterator[str]:
    """What keeping the workers would save, which only who writes the loop can allow."""
    row = tuner.chosen
    if row is not None and row.settings.num_workers and row.start_s > START_SHARE * row.batch_s * conditions.batches:
        yield (
            f"starting the workers takes {text.seconds(row.start_s)} of each epoch: persistent_workers=True keeps them,"
            " if the program changes nothing in the dataset between epochs"
        )


def given_to(loader: Any, plan: LoaderPlan) -> LoaderPlan:
    """Apply a plan, and say in it what came of that."""
    if not plan.changed:
        return plan
    try:
        applying.apply(loader, LoaderSettings.from_dict(plan.after))
    except applying.NotApplied as problem:
        return replace(plan, message=f"{plan.message}; not applied: {problem}, pass the settings to its constructor")
    return replace(plan, applied=True)


def not_a_loader(stage: str, index: int, value: Any) -> LoaderPlan:
    """The plan for something that is iterated over and has no settings."""
    kind = type(value).__name__
    message = f"{kind} is no torch.utils.data.DataLoader: it has no settings to tune"
    nothing: dict[str, Any] = {}
    refusal = Refusal("not_a_dataloader", kind, message)
    return LoaderPlan(stage, index, nothing, nothing, False, None, (), (refusal,), None, None, None, message)


def from_cache(stage: str, index: int, loader: Any, kept: LoaderSettings) -> LoaderPlan:
    """The plan that an earlier run has kept."""
    before = LoaderSettings.of(loader)
    message = f"{before} -> {kept}, as measured in an earlier run" if kept != before else f"{kept}, as measured earlier"
    return LoaderPlan(
        stage, index, before.as_dict(), kept.as_dict(), False, None, (), (), None, None, None, f"{message} (cache)"
    )


def check_arguments(time_budget_s: float, tolerance: float) -> None:
    """Refuse numbers that mean nothing.

    Raises:
        ValueError: naming the argument, its value and what is allowed.
    """
    if not (math.isfinite(time_budget_s) and time_budget_s > 0):
        raise ValueError(f"time_budget_s must be seconds above 0, got {time_budget_s!r}; 20 is the default")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be a share from 0 to below 1, got {tolerance!r}; 0.02 is the default")


def room_of(limits: Limits | None) -> Room:
    """What this process may still take of the machine."""
    return Room(free_ram_bytes(limits), free_shm_bytes(limits), open_files_left(limits))


def length_of(loader: Any) -> float:
    """Batches in an epoch of a loader; infinite where it does not say."""
    try:
        return float(len(loader))
    except (TypeError, NotImplementedError):
        return math.inf
