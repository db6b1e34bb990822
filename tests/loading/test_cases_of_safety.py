"""The reported cases in which more workers would give other data: DL-02, DL-03, DL-10, and others of their kinds."""

from __future__ import annotations

import io
import multiprocessing
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

import lightning_speedups as ls
from lightning_speedups.loading import safety
from tests.helpers import namespace
from tests.loading import datasets
from tests.loading.runs import fit, loader_of, plan_of, tuner

pl = namespace()
pytestmark = pytest.mark.slow
ROOMY = ls.Limits(cpus=4, ram_bytes=2**34, shm_bytes=2**34, open_files=10_000)


def kinds(plan: Any) -> set[str]:
    return {refusal.kind for refusal in plan.refused}


# DL-02


def lambda_loader() -> Any:
    return loader_of(datasets.Waits(), collate_fn=lambda batch: torch.stack(batch))


@pytest.fixture
def started_by(request: pytest.FixtureRequest) -> Iterator[str]:
    """The start method that loaders without one of their own use: "spawn" on macOS, "forkserver" from Python 3.14."""
    usual = multiprocessing.get_start_method()
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(usual, force=True)


@pytest.mark.parametrize("started_by", ["spawn", "forkserver"], indirect=True)
def test_what_cannot_be_pickled_is_named_with_its_place_and_nothing_is_tried(started_by: str) -> None:
    plan = plan_of(lambda_loader())
    (refusal,) = plan.refused

    assert refusal.kind == "unpicklable"
    assert refusal.where == "collate_fn"
    assert f'under the start method "{started_by}"' in refusal.message
    assert "a lambda in lambda_loader()" in refusal.message
    assert f"{Path(__file__).name}:" in refusal.message
    assert not plan.changed
    assert not plan.trials


@pytest.mark.parametrize("started_by", ["spawn"], indirect=True)
def test_a_loader_whose_workers_start_afresh_is_tried_in_children_that_do_too(started_by: str) -> None:
    loader = loader_of(datasets.Waits(0.01, n=4096))
    plan = ls.tune_dataloader(loader, time_budget_s=40.0, limits=ls.Limits(cpus=1), step_s=0.08)

    assert not plan.refused
    assert plan.after["num_workers"] > 0
    assert loader.num_workers == plan.after["num_workers"]


def test_a_lambda_is_no_hindrance_to_forked_workers() -> None:
    assert not list(safety.before_any_trial(lambda_loader(), None))


@pytest.mark.parametrize("part", ["dataset", "worker_init_fn", "nested", "sampler"])
@pytest.mark.parametrize("started_by", ["spawn"], indirect=True)
def test_every_part_that_goes_to_a_worker_is_looked_at(part: str, started_by: str) -> None:
    def local() -> None:
        pass

    dataset = datasets.Waits()
    settings: dict[str, Any] = {}
    if part == "worker_init_fn":
        settings[part] = local
    elif part == "dataset":
        dataset.transform = local  # type: ignore[attr-defined]
    elif part == "nested":
        dataset.options = {"transforms": [str, local]}  # type: ignore[attr-defined]
    else:
        settings |= {"shuffle": False, "sampler": torch.utils.data.RandomSampler(dataset)}
        settings["sampler"].weight = local
    (refusal,) = safety.before_any_trial(loader_of(dataset, **settings), None)
    expected = {
        "dataset": "dataset.transform",
        "nested": "dataset.options['transforms'][1]",
        "sampler": "sampler.weight",
    }

    assert refusal.where == expected.get(part, part)
    assert "local function" in refusal.message


# DL-03


@pytest.mark.parametrize("stream", [datasets.Stream, datasets.LossyStream])
def test_a_stream_that_workers_do_not_share_out_keeps_its_count(stream: Any) -> None:
    loader = loader_of(stream())
    plan = plan_of(loader)

    assert kinds(plan) == {"duplicates_data"}
    assert loader.num_workers == 0
    if stream is datasets.Stream:
        assert "num_workers kept at 0: dataset does not shard" in plan.message
        assert "2 workers would duplicate every sample" in plan.message


@pytest.mark.parametrize("stream", [datasets.ShardedStream, datasets.BlockStream])
def test_a_stream_that_workers_share_out_may_have_more_of_them(stream: Any) -> None:
    loader = loader_of(stream(n=128, seconds=0.004))
    _, module = fit(loader, callback := tuner())
    plan = callback.report.plans[0]

    assert "duplicates_data" not in kinds(plan)
    assert plan.trials
    assert sorted(torch.cat(module.seen)[:, 0].tolist()) == [float(index) for index in range(128)]


def test_a_stream_that_can_be_read_once_is_not_read_before_the_run() -> None:
    _, module = fit(loader_of(datasets.OneShot()), callback := tuner())
    (plan,) = callback.report.plans

    assert kinds(plan) <= {"duplicates_data", "stateful"}
    assert kinds(plan)
    assert torch.cat(module.seen)[:, 0].tolist() == [float(index) for index in range(256)]


def test_dropped_last_batches_of_a_stream_would_be_others_with_more_workers() -> None:
    assert kinds(plan_of(loader_of(datasets.ShardedStream(), drop_last=True))) == {"duplicates_data"}


# DL-10


class Wrapped(datasets.Waits):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner


class Slotted:
    __slots__ = ("file",)

    def __init__(self, file: Any) -> None:
        self.file = file


SHARED_FILE: Any = None


class UsesAGlobal(datasets.Waits):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) if SHARED_FILE else None


def handles(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "records"
    eager = datasets.EagerFile(path)
    opened = path.open("rb")
    closure = (lambda file: lambda: file.read())(opened)
    return {
        "EagerFile.h": eager,
        "Subset.dataset.h": Subset(eager, range(4)),
        "Wrapped.inner": Wrapped(sqlite3.connect(":memory:")),
        "Wrapped.inner['a'][0]": Wrapped({"a": [opened]}),
        "Wrapped.inner.file": Wrapped(closure),
        "Wrapped.inner.file ": Wrapped(Slotted(opened)),
    }


def test_a_handle_opened_before_the_fork_is_refused_wherever_it_hides(tmp_path: Path) -> None:
    for where, dataset in handles(tmp_path).items():
        (refusal,) = safety.before_any_trial(loader_of(dataset), None)

        assert refusal.kind == "shared_handle", where
        assert refusal.where.startswith(where.rstrip()), refusal.where


def test_a_handle_at_module_level_is_found_through_the_function_that_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    monkeypatch.setitem(globals(), "SHARED_FILE", (tmp_path / "f").open("rb"))
    (refusal,) = safety.before_any_trial(loader_of(UsesAGlobal()), None)

    assert "SHARED_FILE" in refusal.where


@pytest.mark.parametrize(
    "harmless", [io.BytesIO(b"x"), np.zeros(3), torch.zeros(3), random.Random(), print, Path("x"), {1: [2, None]}]
)
def test_what_is_no_handle_is_not_taken_for_one(harmless: Any) -> None:
    assert not list(safety.before_any_trial(loader_of(Wrapped(harmless)), None))


def test_an_open_log_and_a_closed_file_are_no_hindrance(tmp_path: Path) -> None:
    log, closed = (tmp_path / "log").open("w"), (tmp_path / "log").open("rb")
    closed.close()

    assert not list(safety.before_any_trial(loader_of(Wrapped([log, closed])), None))


def test_an_eager_handle_keeps_the_count_and_the_position_in_the_file(tmp_path: Path) -> None:
    dataset = datasets.EagerFile(tmp_path / "records")
    dataset.h.seek(24)
    loader = loader_of(dataset)
    callback = tuner()
    callback_plan = None

    class Before(pl.Callback):  # type: ignore[misc]
        def on_train_start(self, *args: Any) -> None:
            nonlocal callback_plan
            callback_plan = dataset.h.tell(), callback.report.plans[0]

    fit(loader, callback, others=[Before()])
    position, plan = callback_plan  # type: ignore[misc]

    assert "EagerFile.h is an open file" in plan.message
    assert "created in the parent (forked workers share it" in plan.message
    assert (loader.num_workers, position) == (0, 24)


def test_a_file_opened_in_each_process_may_have_workers_and_gives_the_right_records(tmp_path: Path) -> None:
    dataset = datasets.LazyFile(tmp_path / "records")
    _, module = fit(loader_of(dataset), callback := tuner(limits=ROOMY))
    (plan,) = callback.report.plans

    assert not plan.refused
    assert plan.applied
    assert plan.after["num_workers"] > 0
    assert sorted(torch.cat(module.seen)[:, 0].tolist()) == [float(index) for index in range(512)]


def test_records_that_differ_in_workers_are_refused() -> None:
    plan = plan_of(datasets.WrongInWorkers())

    assert kinds(plan) == {"records_differ"}
    assert plan.after == plan.before


def test_random_samples_cannot_be_compared_which_is_said_and_no_refusal() -> None:
    plan = plan_of(datasets.Augments(), limits=ROOMY)

    assert not plan.refused
    assert plan.cacheable is False
    assert any("augmentation stream changes with num_workers" in advice for advice in plan.advice)
    assert any("seed_everything(workers=True)" in advice for advice in plan.advice)


@pytest.mark.parametrize("dataset", [datasets.OwnGenerator, datasets.FillsItsCache, datasets.Counts])
def test_a_dataset_that_loading_changes_keeps_its_count(dataset: Any) -> None:
    plan = plan_of(dataset())
    where = {"OwnGenerator": ".generator", "FillsItsCache": ".cache", "Counts": ".calls"}[dataset.__name__]

    assert kinds(plan) == {"stateful"}
    assert plan.refused[0].where.endswith(where)
    assert plan.after == plan.before
    assert not plan.trials
