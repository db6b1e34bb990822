"""Suite 4: the Trainer's options and the kinds of data; each run equals the one without the plugin."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.helpers import ScriptedModule, loader, namespace
from tests.plugins import Plugin, each_plugin
from tests.shared.program import EndlessRows, Scenario, run, stock

pl = namespace()


def _one_lap(order: list[int]) -> EndlessRows:
    return EndlessRows(order, laps=1)


SCENARIOS = (
    Scenario("fast_dev_run", trainer={"fast_dev_run": True}),
    Scenario("limited_batches", trainer={"limit_train_batches": 0.5, "limit_val_batches": 1}),
    Scenario("validation_switched_off", trainer={"limit_val_batches": 0}),
    Scenario("max_steps", trainer={"max_steps": 6, "max_epochs": -1}),
    Scenario("overfit_batches", trainer={"overfit_batches": 2}),
    Scenario("no_validation_loader", val_loaders=0),
    Scenario("several_validation_loaders", val_loaders=2),
    Scenario("iterable_dataset", train_rows=_one_lap),
    Scenario("endless_dataset", train_rows=EndlessRows, trainer={"max_steps": 9, "val_check_interval": 2}),
    Scenario("manual_optimization", manual=True),
    Scenario("several_checks_an_epoch", trainer={"val_check_interval": 0.5}),
    Scenario("a_check_every_other_epoch", trainer={"check_val_every_n_epoch": 2}),
    Scenario("accumulated_gradients", trainer={"accumulate_grad_batches": 3}),
)


@each_plugin(kind="callback")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_run_is_that_of_the_trainer_without_the_plugin(plugin: Plugin, scenario: Scenario) -> None:
    with_plugin = run(scenario, **plugin.attach(plugin.make()))

    assert stock(scenario).differences(with_plugin) - plugin.changes == set()


class Barebones(pl.LightningModule):  # type: ignore[misc]
    """Logs nothing: a barebones Trainer would ignore it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = ScriptedModule()
        self.steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps += 1
        return self.body(batch[0]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> Any:
        return self.body.configure_optimizers()


@each_plugin(kind="callback")
def test_a_barebones_trainer_is_served_or_refused_before_the_first_step(plugin: Plugin) -> None:
    module, data = Barebones(), loader()
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, barebones=True, **plugin.attach(plugin.make()))
    refused = pytest.raises(pl.utilities.exceptions.MisconfigurationException, match="barebones")

    with refused if plugin.needs_logged_metrics else contextlib.nullcontext():
        trainer.fit(module, data, loader())

    assert module.steps == (0 if plugin.needs_logged_metrics else len(data))
