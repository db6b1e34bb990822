"""Results of runs that never ran, with the figures that a test wants to compare."""

from __future__ import annotations

from typing import Any

from lightning_speedups.demo.measures import CallbackAccount, EpochPoint, RunResult, RunSettings

SETTINGS = RunSettings(pack=False, images="images", every=1, epochs=10, seed=0)


def result(epoch_s: float = 2.0, accuracies: tuple[float, ...] = (0.5, 0.9, 0.95, 0.94), **fields: Any) -> RunResult:
    """A run with one epoch an accuracy, each as long, a tenth of it evaluation."""
    epochs = len(accuracies)
    points = [
        EpochPoint(number, epoch_s * (number + 1), epoch_s / 10, 1.0 - accuracy, 1.1 - accuracy, accuracy)
        for number, accuracy in enumerate(accuracies)
    ]
    plain: dict[str, Any] = {
        "epochs_planned": 10,
        "epochs_run": epochs,
        "samples": 1000 * epochs,
        "train_samples_per_s": 1000 / (0.9 * epoch_s),
        "wall_s": epoch_s * epochs,
        "evaluation_s": epoch_s / 10 * epochs,
        "others_cpu_pct": 1.0,
        "curve": tuple(points),
        "final_val_acc": accuracies[-1],
        "final_test_acc": 0.9,
        "test_images": 100,
        "peak_rss_mib": 500.0,
        "peak_uss_mib": 400.0,
        "callbacks": (),
    }
    return RunResult(**{**plain, **fields})


def account(text: str = "EarlyStopping: stopped\n  best 0.95 at epoch 2") -> CallbackAccount:
    """What a callback says of itself."""
    return CallbackAccount("EarlyStopping", 'ls.EarlyStopping("val_acc")', text, {"reason": "patience"})
