from __future__ import annotations

from pathlib import Path

import demo
import pytest

from lightning_speedups.demo import images
from lightning_speedups.demo.measures import RunSettings
from tests.demo.results import result


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[RunSettings]:
    """What the runs were told; the stock run takes 4 epochs of 2 s, the pack's 2, which is too few for the best."""
    settings: list[RunSettings] = []

    def run(told: RunSettings, log: Path) -> object:
        settings.append(told)
        return result(accuracies=(0.5, 0.9, 0.95, 0.94)[: 2 if told.pack else 4])

    monkeypatch.setattr(demo, "run_in_process", run)
    monkeypatch.setattr(images, "prepare", lambda folder: folder)
    return settings


def test_pairs_take_turns_and_each_has_a_seed(told: list[RunSettings]) -> None:
    figures = demo.measure(quick=False).figures
    assert [(run.seed, run.pack) for run in told[:4]] == [(0, False), (0, True), (1, True), (1, False)]
    assert len(told) == 12
    assert {run.every for run in told} == {1}
    assert figures["wall_speedup"] == pytest.approx(2.0)
    assert figures["epoch_time_ratio"] == pytest.approx(1.0)


def test_an_accuracy_never_reached_is_no_speedup(told: list[RunSettings]) -> None:
    assert demo.measure(quick=True).figures["same_accuracy_speedup"] == 0.0
    assert [run.pack for run in told] == [False, True]
    assert {run.every for run in told} == {4}
