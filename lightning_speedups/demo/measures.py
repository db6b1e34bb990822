"""What a run of the demo measured, as plain records that travel from the run's process to the one that compares."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from lightning_speedups.reporting.records import Record


@dataclass(frozen=True)
class RunSettings:
    """What one run is told. ``pack`` is the only difference between the two runs of the demo.

    Attributes:
        pack: whether the pack's callbacks are in the Trainer.
        images: the folder of JPEG files.
        every: take one image in so many.
        epochs: the planned number of epochs.
        seed: for the weights, the batch order and the augmentation.
    """

    pack: bool
    images: str
    every: int
    epochs: int
    seed: int


@dataclass(frozen=True)
class EpochPoint(Record):
    """One epoch: when its validation was over, counted from the start of the fit, and what it had logged by then."""

    epoch: int
    end_s: float
    evaluation_s: float
    train_loss: float
    val_loss: float
    val_acc: float


@dataclass(frozen=True)
class CallbackAccount(Record):
    """What a callback says of itself: its name, the line that made it, and its own report as text and as data."""

    name: str
    call: str
    text: str
    report: dict[str, Any]


@dataclass(frozen=True)
class RunResult(Record):
    """What a run measured of itself.

    Attributes:
        epochs_planned: what ``max_epochs`` was.
        epochs_run: complete epochs.
        samples: images that training took, counted again in every epoch.
        train_samples_per_s: ``samples`` over the fit's time outside evaluation.
        wall_s: the fit, from the call of ``fit`` to its return.
        evaluation_s: the sanity check, and each validation from the end of the batch before it.
        others_cpu_pct: what other programs took of the machine's CPUs meanwhile.
        curve: one point an epoch.
        final_val_acc: of the weights that the run leaves in the module.
        final_test_acc: of the same weights, on images that neither training nor stopping has seen.
        test_images: how many those are.
        peak_rss_mib: highest resident memory of the process and its workers; None until the parent adds it.
        peak_uss_mib: the same without what they share; None where the system does not tell.
        processes: the most that were alive at once, the run's own included.
        callbacks: the pack's callbacks in this run.
    """

    epochs_planned: int
    epochs_run: int
    samples: int
    train_samples_per_s: float
    wall_s: float
    evaluation_s: float
    others_cpu_pct: float
    curve: tuple[EpochPoint, ...]
    final_val_acc: float
    final_test_acc: float
    test_images: int
    peak_rss_mib: float | None = None
    peak_uss_mib: float | None = None
    processes: int = 1
    callbacks: tuple[CallbackAccount, ...] = ()

    @property
    def best(self) -> EpochPoint:
        """The first epoch with the best validation accuracy."""
        return max(self.curve, key=lambda point: point.val_acc)

    def seconds_to(self, val_acc: float) -> float | None:
        """When the validation accuracy was first this high; None if it never was."""
        return next((point.end_s for point in self.curve if point.val_acc >= val_acc), None)

    @property
    def epochs_s(self) -> tuple[float, ...]:
        """How long each epoch took, its evaluation included."""
        ends = [0.0, *(point.end_s for point in self.curve)]
        return tuple(after - before for before, after in itertools.pairwise(ends))


def point_from_json(data: dict[str, Any]) -> EpochPoint:
    """The point whose fields are ``data``; ``float`` because JSON carries a diverged loss as the text ``"nan"``."""
    return EpochPoint(
        int(data["epoch"]),
        *(float(data[key]) for key in ("end_s", "evaluation_s", "train_loss", "val_loss", "val_acc")),
    )


def result_from_json(data: dict[str, Any]) -> RunResult:
    """The result whose ``to_dict()`` is ``data``."""
    fields = {key: value for key, value in data.items() if key != "schema_version"}
    return RunResult(
        **{
            **fields,
            "curve": tuple(point_from_json(point) for point in fields["curve"]),
            "callbacks": tuple(CallbackAccount(**account) for account in fields["callbacks"]),
        }
    )
