"""The callback around the engine: where loaders come from, what is said, kept, rolled back and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import lightning_speedups as ls
from lightning_speedups.loading import tuner as engine
from tests.helpers import namespace, quiet_trainer
from tests.loading import datasets
from tests.loading.runs import Linear, Notes, StopsAfter, fit, loader_of, tuner

pl = namespace()
pytestmark = pytest.mark.slow
ROOMY = ls.Limits(cpus=4, ram_bytes=2**34, shm_bytes=2**34, open_files=10_000)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"mode": "eager"}, "mode must be one of .*'eager'"),
        ({"apply": "yes"}, "apply must be True or False, got 'yes'"),
        ({"time_budget_s": 0}, "time_budget_s must be seconds above 0, got 0"),
        ({"time_budget_s": float("nan")}, "time_budget_s"),
        ({"tolerance": 1.5}, "tolerance must be a share"),
        ({"limits": 4}, "limits must be a lightning_speedups.Limits"),
    ],
)
def test_a_wrong_argument_is_refused_at_construction(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(pl.utilities.exceptions.MisconfigurationException, match=says):
        ls.DataLoaderTuner(**wrong)


@pytest.mark.parametrize("wrong", [{"step_s": -1.0}, {"epochs": 0}, {"tolerance": -1}, {"time_budget_s": -3}])
def test_the_function_refuses_wrong_arguments_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ls.tune_dataloader(loader_of(datasets.Ram()), **wrong)


class Own(DataLoader):  # type: ignore[type-arg]
    """A loader with a constructor of its own, which no one can call with a DataLoader's arguments."""

    def __init__(self, size: int) -> None:
        super().__init__(datasets.Waits(), batch_size=size, shuffle=True)


class Data(pl.LightningDataModule):  # type: ignore[misc]
    def train_dataloader(self) -> Any:
        return Own(16)


class WithLoader(Linear):
    def train_dataloader(self) -> Any:
        return {"rows": loader_of(datasets.Waits()), "more": loader_of(datasets.Ram())}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch["rows"], batch_idx)


def test_loaders_of_a_data_module_and_of_a_subclass_are_tuned_in_place() -> None:
    callback, notes = tuner(limits=ROOMY), Notes()
    trainer = quiet_trainer(max_epochs=20, callbacks=[callback, notes, StopsAfter(1)])
    trainer.fit(Linear(), datamodule=Data())
    (plan,) = callback.report.plans

    assert plan.applied
    assert notes.workers == [plan.after["num_workers"]]
    assert notes.workers[0] > 0


def test_each_loader_of_a_collection_gets_a_plan_of_its_own() -> None:
    callback = tuner(limits=ROOMY, time_budget_s=6.0)
    trainer = quiet_trainer(max_epochs=20, callbacks=[callback, StopsAfter(1)])
    trainer.fit(WithLoader(), val_dataloaders=[loader_of(datasets.Ram(), shuffle=False) for _ in range(2)])
    places = [(plan.stage, plan.index) for plan in callback.report.plans]
    slow, quick = callback.report.plans[:2]

    assert places == [("train", 0), ("train", 1), ("val", 0), ("val", 1)]
    assert slow.after["num_workers"] > quick.after["num_workers"] == 0


class Anew(Linear):
    made: list[Any]

    def train_dataloader(self) -> Any:
        self.made = [*getattr(self, "made", []), loader_of(datasets.Waits())]
        return self.made[-1]


def test_a_loader_that_is_made_anew_gets_the_settings_of_the_one_before_without_another_trial() -> None:
    callback, module = tuner(limits=ROOMY), Anew()
    trainer = quiet_trainer(max_epochs=20, callbacks=[callback, StopsAfter(3)], reload_dataloaders_every_n_epochs=1)
    trainer.fit(module)

    assert len(module.made) == 3
    assert {loader.num_workers for loader in module.made} == {callback.report.plans[0].after["num_workers"]}
    assert module.made[0].num_workers > 0


def test_a_plan_is_kept_in_a_file_and_used_by_the_next_run(tmp_path: Path) -> None:
    file = tmp_path / "plans" / "loaders.json"
    first, second, other = (tuner(limits=ROOMY, cache=file) for _ in range(3))
    fit(loader_of(datasets.Waits()), first)
    fit(again := loader_of(datasets.Waits()), second)
    fit(loader_of(datasets.Waits(n=256)), other)

    assert first.report.plans[0].trials
    assert not second.report.plans[0].trials
    assert "(cache)" in second.report.plans[0].message
    assert again.num_workers == first.report.plans[0].after["num_workers"]
    assert "(cache)" not in other.report.plans[0].message


def test_a_broken_cache_is_measured_over(tmp_path: Path) -> None:
    (tmp_path / "plans.json").write_text("{not json")
    fit(loader_of(datasets.Waits()), callback := tuner(limits=ROOMY, cache=tmp_path / "plans.json"))

    assert callback.report.plans[0].trials
    assert json.loads((tmp_path / "plans.json").read_text())["plans"]


class Curriculum(Linear):
    """Changes its data set at the end of the second epoch."""

    def __init__(self, dataset: Any) -> None:
        super().__init__()
        self.dataset = dataset

    def on_train_epoch_end(self) -> None:
        if self.current_epoch == 2:
            self.dataset.seconds = 0.001


def test_workers_persist_until_the_program_changes_the_data_between_epochs() -> None:
    dataset = datasets.Waits(0.004, n=256)
    callback, loader = tuner(limits=ROOMY), loader_of(dataset)

    kept = []

    class Watch(pl.Callback):  # type: ignore[misc]
        def on_train_epoch_end(self, *args: Any) -> None:
            kept.append(loader.persistent_workers)

    trainer = quiet_trainer(max_epochs=20, callbacks=[callback, Watch(), StopsAfter(5)])
    with pytest.warns(UserWarning, match=r"changed Waits.seconds between epochs.*persistent_workers=False"):
        trainer.fit(Curriculum(dataset), loader)

    assert kept == [True, True, True, False, False]


class FollowsTheEpoch(datasets.Waits):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_workers_of_a_dataset_that_is_told_the_epoch_are_started_anew_each_time() -> None:
    loader = loader_of(FollowsTheEpoch(n=256))
    fit(loader, callback := tuner(limits=ROOMY), epochs=2)

    assert callback.report.plans[0].applied
    assert loader.persistent_workers is False


def test_after_the_first_tuned_epoch_the_gain_is_measured() -> None:
    fit(loader_of(datasets.Waits()), callback := tuner(limits=ROOMY), step_s=0.01, epochs=2)
    (plan,) = callback.report.plans

    assert plan.loading_is_the_limit is True
    assert plan.gain_realised is not None
    assert plan.gain_realised > 1.2


def test_a_file_that_the_first_epoch_has_opened_in_the_training_process_rules_out_workers_from_then_on(
    tmp_path: Path,
) -> None:
    dataset = datasets.LazyFile(tmp_path / "records")
    fit(loader_of(dataset), callback := tuner(limits=ROOMY, apply=False), step_s=0.01, epochs=2)
    (plan,) = callback.report.plans

    assert [refusal.kind for refusal in plan.refused] == ["shared_handle"]
    assert "with the step known: LazyFile.h is an open file" in plan.message
    assert plan.after == plan.before


def test_passive_mode_tries_nothing_and_changes_between_epochs() -> None:
    loader = loader_of(datasets.Waits())
    callback, notes = tuner(mode="passive", limits=ROOMY), Notes(loader)
    fit(loader, callback, step_s=0.01, epochs=3, others=[notes])
    (plan,) = callback.report.plans

    assert notes.workers[0] == 0
    assert notes.workers[1] == notes.workers[2] == plan.after["num_workers"] > 1
    assert plan.gain_realised is not None
    assert plan.gain_realised > 1.2
    assert {trial.verdict for trial in plan.trials} == {"a real epoch"}


@pytest.mark.parametrize(
    ("dataset", "kind"),
    [(datasets.Counts, "stateful"), (datasets.OwnGenerator, "stateful"), (datasets.ShardedStream, "duplicates_data")],
)
def test_passive_mode_changes_nothing_that_could_change_the_data(dataset: Any, kind: str) -> None:
    loader = loader_of(dataset())
    fit(loader, callback := tuner(mode="passive", limits=ROOMY), epochs=2)
    (plan,) = callback.report.plans

    assert [refusal.kind for refusal in plan.refused] == [kind]
    assert loader.num_workers == 0


def test_passive_mode_leaves_a_loader_alone_that_hides_behind_the_step() -> None:
    loader = loader_of(datasets.Ram(n=128))
    fit(loader, callback := tuner(mode="passive", limits=ROOMY, tolerance=0.5), step_s=0.05, epochs=2)
    (plan,) = callback.report.plans

    assert plan.loading_is_the_limit is False
    assert "hides loading" in plan.message
    assert loader.num_workers == 0


def test_what_breaks_in_the_tuner_is_told_once_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(self: Any) -> Any:
        raise OSError("no more processes")

    monkeypatch.setattr(engine.Tuner, "plan", breaks)
    with pytest.warns(UserWarning, match=r"switched off: .*OSError: no more processes") as caught:
        trainer, module = fit(loader_of(datasets.Ram(n=64)), tuner(), epochs=2)

    assert len([each for each in caught if "switched off" in str(each.message)]) == 1
    assert len(module.seen) == 8
    assert "process_dataloader" not in vars(trainer.strategy)


class IgnoresWorkers(DataLoader):  # type: ignore[type-arg]
    """Loads by itself whatever it is told, once it is in use."""

    def __iter__(self) -> Any:
        if torch.utils.data.get_worker_info() is None and self.dataset.in_training:  # type: ignore[attr-defined]
            return iter([self.collate_fn([self.dataset[index] for index in entry]) for entry in self.batch_sampler])
        return super().__iter__()


class Marked(datasets.Waits):
    in_training = False


def test_workers_that_do_not_come_are_noticed_and_the_settings_rolled_back() -> None:
    loader = IgnoresWorkers(Marked(), batch_size=8)
    callback = tuner(limits=ROOMY)

    module = Linear()
    asked = callback._loader_ready

    def then_mark(trainer: Any, given: Any) -> None:
        asked(trainer, given)
        given.dataset.in_training = True

    callback._loader_ready = then_mark
    trainer = quiet_trainer(max_epochs=20, callbacks=[callback, StopsAfter(1)])
    with pytest.warns(UserWarning, match=r"\d+ workers were set and 0 are running: rolled back"):
        trainer.fit(module, loader)

    assert loader.num_workers == 0
    assert not callback.report.plans[0].applied


def test_the_report_is_written_and_drawn(tmp_path: Path) -> None:
    callback = tuner(limits=ROOMY, report_dir=tmp_path / "out")
    fit(loader_of(datasets.Waits()), callback)
    callback.plot(tmp_path / "rates.png")
    written = json.loads((tmp_path / "out" / "data_loader_tuner.json").read_text())
    said = str(callback.report)

    assert written["plans"][0]["after"] == callback.report.plans[0].after
    assert (tmp_path / "out" / "data_loader_tuner.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "rates.png").stat().st_size > 5000
    assert "DataLoader(..., num_workers=" in (tmp_path / "out" / "report.html").read_text()
    assert f"num_workers={callback.report.plans[0].after['num_workers']}" in said
    assert "samples/s" in said


def test_fast_dev_run_is_left_alone() -> None:
    fit(loader_of(datasets.Waits()), callback := tuner(), fast_dev_run=True)

    assert callback.report.plans == ()


def test_the_function_applies_or_only_advises() -> None:
    advised, applied = loader_of(datasets.Waits()), loader_of(datasets.Waits())
    first = ls.tune_dataloader(advised, step_s=0.01, apply=False, limits=ROOMY, time_budget_s=4.0)
    second = ls.tune_dataloader(applied, step_s=0.01, limits=ROOMY, time_budget_s=4.0)

    assert first.changed
    assert not first.applied
    assert advised.num_workers == 0
    assert second.applied
    assert applied.num_workers == second.after["num_workers"] > 0
    assert second.loading_is_the_limit is True
    assert f"num_workers={applied.num_workers}" in str(second)
