"""The publicly reported cases DL-*: each situation with real loaders in a real Trainer, and others of its kind."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import lightning_speedups as ls
from lightning_speedups.loading import probe
from lightning_speedups.loading.applying import NotApplied, apply
from lightning_speedups.loading.settings import LoaderSettings
from lightning_speedups.measuring import rng
from tests.helpers import namespace
from tests.loading import datasets
from tests.loading.runs import Linear, Notes, fit, loader_of, plan_of, tuner
from tests.processes import family

pl = namespace()
pytestmark = pytest.mark.slow
ROOMY = ls.Limits(cpus=4, ram_bytes=2**34, shm_bytes=2**34, open_files=10_000)


def kinds(plan: Any) -> set[str]:
    return {refusal.kind for refusal in plan.refused}


# DL-01


def test_cpus_are_the_least_of_all_limits_and_shared_by_the_ranks() -> None:
    callback = tuner(limits=ls.Limits(cpus=3))
    fit(loader_of(datasets.Ram()), callback)

    assert callback.report.cpus.usable == 3
    assert str(callback.report.cpus) == "3 stated, 1 rank -> 3 per rank"


def test_a_loader_that_waits_may_have_more_workers_than_cpus() -> None:
    plan = plan_of(datasets.Waits(0.01), limits=ls.Limits(cpus=1))

    assert plan.after["num_workers"] > 1
    assert plan.applied
    assert plan.gain_predicted > 1.5


# DL-04, DL-15


def test_a_setting_that_shared_memory_cannot_hold_is_skipped_and_never_tried() -> None:
    big = datasets.Waits(0.004, n=512, features=2**16)
    plan = plan_of(big, limits=ls.Limits(cpus=4, ram_bytes=2**34, shm_bytes=16 * 2**20, open_files=10_000))
    skipped = [trial for trial in plan.trials if trial.verdict.startswith("skipped")]

    assert "shm" in kinds(plan)
    assert skipped
    assert all(trial.samples_per_s is None for trial in skipped)
    assert all("/dev/shm has" in trial.verdict and "--shm-size" in trial.verdict for trial in skipped)
    assert all(
        trial.settings["num_workers"] < min(s.settings["num_workers"] for s in skipped) or trial in skipped
        for trial in plan.trials
    )


@pytest.mark.parametrize(("limits", "kind"), [({"ram_bytes": 2**20}, "memory"), ({"open_files": 4}, "open_files")])
def test_memory_and_open_files_are_limits_like_shared_memory(limits: dict[str, int], kind: str) -> None:
    plan = plan_of(datasets.Waits(), limits=ls.Limits(**{"cpus": 4, "shm_bytes": 2**34, "ram_bytes": 2**34, **limits}))

    assert kind in kinds(plan)
    assert plan.after["num_workers"] == 0


# DL-06


@pytest.fixture
def _many_cpus_for_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning gives its advice where there are more than two CPUs."""
    monkeypatch.setattr(f"{pl.__name__}.trainer.connectors.data_connector.suggested_max_num_workers", lambda ranks: 8)


@pytest.mark.usefixtures("_many_cpus_for_lightning")
def test_data_in_memory_stays_without_workers_by_measurement_and_the_advice_is_answered() -> None:
    data = loader_of(TensorDataset(torch.randn(60_000, 8), torch.randn(60_000)), batch_size=64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(data, callback := tuner())
    (plan,) = callback.report.plans
    tried = {trial.settings["num_workers"]: trial.samples_per_s for trial in plan.trials}

    assert plan.message.startswith("num_workers=0 is best")
    assert data.num_workers == 0
    assert len(tried) > 1
    assert tried[0] == max(tried.values())
    assert any("indexing many rows at once" in advice for advice in plan.advice)
    assert not [each for each in caught if "does not have many workers" in str(each.message)]


@pytest.mark.usefixtures("_many_cpus_for_lightning")
def test_lightnings_advice_stays_where_nothing_was_measured(recwarn: pytest.WarningsRecorder) -> None:
    fit(loader_of(datasets.Counts()), tuner())

    assert any("does not have many workers" in str(each.message) for each in recwarn)


# DL-08, DL-09


@dataclass
class Batch:
    x: torch.Tensor


class Pinnable(Batch):
    def pin_memory(self) -> Any:
        return self


def as_batch(rows: Any) -> Batch:
    return Batch(torch.stack(rows))


def test_a_batch_type_that_cannot_be_pinned_is_seen_in_a_batch() -> None:
    found = probe.probe(loader_of(datasets.Ram(), collate_fn=as_batch), 0)

    assert found.unpinnable == "Batch"
    assert found.batch_bytes == 16 * 8 * 4
    assert probe.probe(loader_of(datasets.Ram()), 0).unpinnable is None


def test_pinning_is_never_set_on_a_cpu_and_taken_off_where_it_does_nothing() -> None:
    loader = loader_of(datasets.Ram(), pin_memory=True)
    plan = plan_of(loader)

    assert plan.after["pin_memory"] is False
    assert loader.pin_memory is False
    assert "pin_memory=True is ignored on cpu: remove it" in plan.advice
    assert loader.pin_memory_device == ""


# DL-11


def test_advising_leaves_the_run_as_it_is_to_the_bit() -> None:
    def run(callback: Any) -> tuple[Any, str, Any]:
        pl.seed_everything(3, verbose=False)
        dataset = datasets.Augments(0.004, n=512)
        dataset.generator = torch.Generator()  # type: ignore[attr-defined]
        module = fit(loader_of(dataset), callback, epochs=2, val=loader_of(datasets.Augments(0.002, 64)))[1]
        return torch.cat(module.seen), rng.fingerprint(), module.layer.weight.detach().clone()

    seen, streams, weights = run(None)
    seen_advised, streams_advised, weights_advised = run(callback := tuner(apply=False))

    assert callback.report.plans[0].trials
    assert not callback.report.plans[0].applied
    assert torch.equal(seen, seen_advised)
    assert streams == streams_advised
    assert torch.equal(weights, weights_advised)


def test_tuned_runs_of_samples_that_are_not_random_equal_the_untuned_run_with_persistent_workers_too() -> None:
    def run(callback: Any) -> Any:
        pl.seed_everything(3, verbose=False)
        module = fit(loader_of(datasets.Waits(0.004, n=256)), callback, epochs=3)[1]
        return torch.cat(module.seen), rng.fingerprint()

    seen, streams = run(None)
    tuned_seen, tuned_streams = run(callback := tuner(limits=ROOMY))

    assert callback.report.plans[0].after["persistent_workers"]
    assert torch.equal(seen, tuned_seen)
    assert streams == tuned_streams


# DL-13


def test_all_four_settings_go_onto_a_live_loader_at_once_and_its_old_workers_end() -> None:
    loader = loader_of(datasets.Ram(), num_workers=1, persistent_workers=True)
    list(loader)
    before = len(family())
    apply(loader, LoaderSettings(3, 4, True, False))
    ended = len(family())
    batches = list(loader)
    running = len(family())
    apply(loader, LoaderSettings())

    assert (ended - before, running - before, len(family()) - before) == (-1, 2, -1)
    assert len(batches) == 32
    assert len(list(loader)) == 32


class Stubborn(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """Says that it has no workers whatever it is given."""

    num_workers = property(lambda self: 0, lambda self, value: None)  # type: ignore[assignment]


def test_a_loader_that_does_not_take_its_settings_keeps_its_own() -> None:
    loader = Stubborn(datasets.Ram(), batch_size=16)

    with pytest.raises(NotApplied, match="Stubborn was given 2 workers and says 0 workers"):
        apply(loader, LoaderSettings(2))
    assert loader.prefetch_factor is None
    assert len(list(loader)) == 32


def test_workers_are_there_from_the_first_batch_and_counted() -> None:
    loader = loader_of(datasets.Waits(), batch_size=8)
    notes, before = Notes(loader), len(family())
    fit(loader, callback := tuner(limits=ROOMY), others=[notes])
    (plan,) = callback.report.plans

    assert plan.applied
    assert notes.workers[0] == plan.after["num_workers"] > 0
    assert notes.children[0] - before == notes.workers[0]


def test_an_error_in_the_fit_gives_the_loader_its_own_settings_back() -> None:
    class Fails(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3:
                raise ZeroDivisionError

    loader = loader_of(datasets.Waits())
    callback = tuner(limits=ROOMY)
    with pytest.raises(ZeroDivisionError):
        fit(loader, callback, others=[Fails()])
    (plan,) = callback.report.plans

    assert plan.changed
    assert not plan.applied
    assert LoaderSettings.of(loader) == LoaderSettings()


# DL-14


def test_threads_in_a_worker_are_counted() -> None:
    plan = plan_of(datasets.Waits(), limits=ROOMY)

    assert not any("runnable threads" in advice for advice in plan.advice)
    assert plan.trials


# DL-18


def test_settings_are_tried_by_turns_and_the_untouched_one_is_among_them() -> None:
    plan = plan_of(datasets.Waits(), limits=ROOMY)
    untouched = next(trial for trial in plan.trials if trial.settings == plan.before)

    assert untouched.low <= untouched.samples_per_s <= untouched.high
    assert untouched.verdict == "slower"


def test_loading_that_hides_behind_the_step_is_left_alone() -> None:
    plan = ls.tune_dataloader(loader_of(datasets.Waits(0.001)), step_s=2.0)

    assert plan.message.startswith("leave it: loading")
    assert plan.loading_is_the_limit is False
    assert not plan.trials
    assert not plan.changed


# DL-19


@pytest.mark.parametrize("number", datasets.SIGNALS)
def test_a_worker_that_a_signal_ends_is_reported_and_nothing_is_left(number: int) -> None:
    loader, before = loader_of(datasets.Dies(number)), set(family())
    plan = plan_of(loader)

    assert kinds(plan) == {"worker_died"}
    assert loader.num_workers == 0
    assert set(family()) == before


def test_an_error_in_a_worker_is_reported_in_its_own_words() -> None:
    plan = plan_of(datasets.Raises())

    assert kinds(plan) == {"worker_died"}
    assert "not in a worker" in plan.message


def test_a_worker_that_hangs_costs_its_time_limit_and_brings_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_speedups.loading.children.PATIENCE_S", 1.0)
    before = set(family())
    plan = plan_of(datasets.Hangs())

    assert kinds(plan) == {"worker_died"}
    assert "multiprocessing_context='forkserver'" in plan.message
    assert set(family()) == before


def test_a_fork_among_threads_is_a_line_of_risk_and_no_error() -> None:
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
    plan = plan_of(datasets.Waits(), limits=ROOMY)
    done.set()

    assert plan.applied
    assert any("live threads" in advice and "forkserver" in advice for advice in plan.advice)


class Broken(datasets.Waits):
    def __getitem__(self, index: int) -> Any:
        raise KeyError("no such record")


def test_a_dataset_that_fails_in_the_trial_fails_in_the_run_and_not_in_the_tuner() -> None:
    with pytest.raises(KeyError, match="no such record"):
        fit(loader_of(Broken()), callback := tuner())
    (plan,) = callback.report.plans

    assert kinds(plan) == {"worker_died"}
    assert "no such record" in plan.message


class Rows:
    def __iter__(self) -> Iterator[Any]:
        return iter(torch.randn(3, 4, 8))


def test_a_module_without_loaders_of_torch_is_trained_as_ever() -> None:
    _, module = fit(Rows(), callback := tuner())
    (plan,) = callback.report.plans

    assert isinstance(module, Linear)
    assert kinds(plan) == {"not_a_dataloader"}
    assert len(module.seen) == 3
