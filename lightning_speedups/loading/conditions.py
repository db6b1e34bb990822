"""Under which a loader is used, and what is known of it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_speedups.loading.probe import Probe
from lightning_speedups.loading.room import Room
from lightning_speedups.loading.search import Costs
from lightning_speedups.loading.steps import Step
from lightning_speedups.loading.workers_check import WorkersCheck
from lightning_speedups.measuring.budget import CpuBudget

# An epoch without an end is taken for one that is long beside any start of workers.
_ENDLESS_BATCHES = 1e6


@dataclass(frozen=True)
class Conditions:
    """Under which a loader is used.

    Args:
        stage: "train", "validate" or "loader".
        index: which of the stage's loaders.
        batches: batches in an epoch; infinite where it has no end.
        epochs: epochs still to run.
        cpus: CPUs of this rank.
        room: what this loader may take of memory, shared memory and files.
        budget_s: seconds that tuning may take.
        tolerance: the share of an epoch that is no difference.
        device: type of the device that batches go to.
        ranks: ranks on this machine.
        step: the training step; None where not known yet.
        most_workers: no other count above this one.
        may_persist: whether workers may be kept from epoch to epoch. They miss what the program changes in the dataset
            between epochs, so this needs an epoch in which it changed nothing.
        keeps_workers: whether they are likely to be kept once such an epoch has been seen.
        least_s: seconds of ``budget_s`` that may be spent however little there is to save.
        seed: the records that all trials read.
    """

    stage: str
    index: int
    batches: float
    epochs: float
    cpus: CpuBudget
    room: Room
    budget_s: float
    tolerance: float
    device: str = "cpu"
    ranks: int = 1
    step: Step | None = None
    most_workers: int | None = None
    may_persist: bool = False
    keeps_workers: bool = False
    least_s: float = 0.0
    seed: int = 0

    @property
    def step_s(self) -> float | None:
        """Seconds of a step; None where not known yet."""
        return None if self.step is None else self.step.wall_s

    @property
    def finite_batches(self) -> float:
        """Batches in an epoch, as a number to count with."""
        return self.batches if math.isfinite(self.batches) else _ENDLESS_BATCHES


@dataclass(frozen=True)
class Known:
    """What a tuning found out about a loader, so that the next one need not ask again.

    ``check`` is None where no worker had to prove itself.
    """

    probe: Probe
    check: WorkersCheck | None = None

    def costs(self, step_s: float | None) -> Costs | None:
        """What loading costs; None where the loader gave no batch."""
        batch_s = self.probe.batch_s
        return None if not batch_s else Costs(batch_s, self.probe.cpu_s, step_s)

    @property
    def cacheable(self) -> bool:
        """Whether a sample comes out the same each time."""
        return bool(self.probe.deterministic and not self.probe.iterable and not self.probe.changed)

    def samples_per_s(self, batch_s: float) -> float:
        """Samples per second at so many seconds a batch."""
        return self.probe.samples_per_batch / batch_s
