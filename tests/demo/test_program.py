"""The two runs of the demo are the same program: same images, same order, same losses, until the pack stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_speedups.demo import child, images, program
from lightning_speedups.demo.measures import RunResult, RunSettings, result_from_json
from lightning_speedups.demo.pack import Part, epochs_not_run

Run = Callable[..., tuple[RunResult, dict[str, torch.Tensor], list[str]]]

# Reached in the second epoch at the latest, so that the pack's run stops with epochs left.
STOPS_EARLY = Part("EarlyStopping", epochs_not_run, ("val_acc",), {"mode": "max", "stopping_threshold": 0.2})


@pytest.fixture
def run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the demo's program here; gives the result, the weights left, and the files read, in order."""

    def once(*, pack: bool, seed: int = 0, every: int = 12) -> tuple[RunResult, dict[str, torch.Tensor], list[str]]:
        made: list[program.DigitClassifier] = []
        read: list[str] = []

        class Kept(program.DigitClassifier):
            def __init__(self) -> None:
                super().__init__()
                made.append(self)

        class Followed(program.DigitImages):
            def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
                read.append(self.samples[index][0].name)
                return super().__getitem__(index)

        with monkeypatch.context() as patch:
            patch.setattr(program, "DigitClassifier", Kept)
            patch.setattr(program, "DigitImages", Followed)
            patch.setattr(child, "PARTS", (STOPS_EARLY,))
            settings = RunSettings(pack, str(cache / images.FOLDER), every=every, epochs=6, seed=seed)
            result = child.run(settings, emit=lambda event: None)
        return result, made[0].state_dict(), read

    return once


def _logged(result: RunResult) -> list[tuple[float, float, float]]:
    return [(point.train_loss, point.val_loss, point.val_acc) for point in result.curve]


def test_a_seed_fixes_weights_losses_and_order(run: Run) -> None:
    first, first_weights, first_read = run(pack=False)
    second, second_weights, second_read = run(pack=False)
    other, _, other_read = run(pack=False, seed=1)
    assert _logged(first) == _logged(second) != _logged(other)
    assert first_read == second_read != other_read
    assert all(torch.equal(first_weights[name], second_weights[name]) for name in first_weights)


def test_the_pack_sees_the_same_images_and_losses_until_it_stops(run: Run) -> None:
    stock, _, stock_read = run(pack=False)
    pack, _, pack_read = run(pack=True)
    assert pack.epochs_run < stock.epochs_run == stock.epochs_planned
    assert _logged(pack) == _logged(stock)[: pack.epochs_run]
    # After its stop the pack's run reads on for the validation and test of the weights left.
    in_fit = len(stock_read) * pack.samples // stock.samples // 2
    assert pack_read[:in_fit] == stock_read[:in_fit]


def test_the_figures_of_a_run_add_up(run: Run) -> None:
    result, _, _ = run(pack=True)
    assert 0 < result.evaluation_s < result.wall_s
    assert result.samples == result.epochs_run * 90
    assert [point.end_s for point in result.curve] == sorted(point.end_s for point in result.curve)
    assert sum(point.evaluation_s for point in result.curve) <= result.evaluation_s
    assert result.seconds_to(result.best.val_acc) == result.best.end_s
    assert result.seconds_to(1.1) is None
    assert [made.name for made in result.callbacks] == ["EarlyStopping"]


def test_a_result_survives_its_way_through_json(run: Run) -> None:
    result, _, _ = run(pack=True)
    data: Any = result.to_dict()
    data["curve"][0]["val_loss"] = "nan"
    back = result_from_json(data)
    assert back.curve[1:] == result.curve[1:]
    assert back.curve[0].val_loss != back.curve[0].val_loss
    assert back.callbacks[0].report["reason"] == "threshold"


def test_augmentation_changes_training_images_only_and_the_splits_share_none(cache: Path) -> None:
    train, validation, test = program.loaders(images.samples(cache / images.FOLDER))
    datasets: list[Any] = [loader.dataset for loader in (train, validation, test)]
    files = [{path for path, _ in dataset.samples} for dataset in datasets]
    assert [len(names) for names in files] == [1079, 359, 359]
    assert len(set.union(*files)) == images.COUNT
    assert not torch.equal(datasets[0][0][0], datasets[0][0][0])
    assert torch.equal(datasets[1][0][0], datasets[1][0][0])
    assert datasets[0][0][0].shape == (1, program.INPUT_PX, program.INPUT_PX)
