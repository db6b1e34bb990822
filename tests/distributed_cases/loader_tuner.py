"""DataLoaderTuner on two ranks: they measure together, and take one setting, on the loader that Lightning made anew."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import lightning_speedups as ls
from tests.distributed import distributed_case, on_every_rank
from tests.loading import datasets
from tests.loading.runs import Notes, fit, loader_of

LIMITS = ls.Limits(cpus=8, ram_bytes=2**34, shm_bytes=2**34, open_files=10_000)


def tuned(dataset: Any, **kw: Any) -> tuple[Any, Any, Any]:
    callback, notes = ls.DataLoaderTuner(time_budget_s=6.0, limits=LIMITS, **kw), Notes()
    _, module = fit(loader_of(dataset), callback, others=[notes], strategy="ddp", devices=dist.get_world_size())
    return callback.report.plans[0], notes, module


@distributed_case
def ranks_take_one_setting_and_have_its_workers() -> None:
    plan, notes, module = tuned(datasets.Waits(0.004, n=1024))
    first, second = on_every_rank((plan.after, plan.message, plan.applied, plan.trials))

    assert first == second
    assert plan.applied
    assert plan.after["num_workers"] > 0
    assert notes.workers[0] == notes.children[0] == plan.after["num_workers"]
    seen = [index for rank in on_every_rank(torch.cat(module.seen)[:, 0].tolist()) for index in rank]
    assert sorted(seen) == [float(index) for index in range(1024)]


class SlowOnOneRank(datasets.Waits):
    def __init__(self) -> None:
        super().__init__(0.016 if dist.get_rank() == 1 else 0.0005)


@distributed_case
def the_slowest_rank_decides_for_all() -> None:
    plan, *_ = tuned(SlowOnOneRank())

    assert on_every_rank(plan.after) == [plan.after] * 2
    assert plan.after["num_workers"] > 0


class RemembersOnOneRank(datasets.Waits):
    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += dist.get_rank()
        return super().__getitem__(index)


@distributed_case
def a_reason_of_one_rank_holds_for_all() -> None:
    plan, notes, _ = tuned(RemembersOnOneRank())
    first, second = on_every_rank((plan.message, plan.after, tuple(refusal.kind for refusal in plan.refused)))

    assert first == second
    assert first[2] == ("stateful",)
    assert notes.workers[0] == 0


@distributed_case
def ranks_share_the_cpus_of_the_machine() -> None:
    plan, *_ = tuned(datasets.Waits(0.004), apply=False)

    assert plan.applied is False
    assert on_every_rank(plan.trials) == [plan.trials] * 2
