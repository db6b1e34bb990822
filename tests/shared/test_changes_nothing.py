"""Suite 1: with the plugin, a run is bit-identical to the run without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.helpers import namespace
from tests.plugins import Plugin, each_plugin
from tests.shared.program import Scenario, improving, run, stalling, stock

pl = namespace()


def unexpected_changes(plugin: Plugin, made: Any, scenario: Scenario) -> set[str]:
    """The parts of the run that differ from a run of the same length without the plugin, and should not."""
    with_plugin = run(scenario, **plugin.attach(made))
    _, epochs = with_plugin.progress
    return stock(scenario, max_epochs=epochs).differences(with_plugin) - plugin.changes


@each_plugin(kind="callback")
@pytest.mark.parametrize("curve", [improving, stalling])
def test_weights_metrics_order_and_random_streams_are_those_of_the_run_without_it(plugin: Plugin, curve: Any) -> None:
    scenario = Scenario(curve=curve, trainer={"max_epochs": 5}, evaluate=True)

    assert unexpected_changes(plugin, plugin.make(), scenario) == set()


class DrawsRandomNumbers(pl.Callback):  # type: ignore[misc]
    def on_validation_end(self, *args: Any) -> None:
        torch.rand(())


class ScalesAWeight(pl.Callback):  # type: ignore[misc]
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        with torch.no_grad():
            pl_module.net[0].weight.mul_(1.0001)


@pytest.mark.parametrize(
    ("intruder", "changed"), [(DrawsRandomNumbers, {"rng", "batch_order"}), (ScalesAWeight, {"end_weights"})]
)
def test_the_suite_notices_a_callback_that_does_change_the_run(intruder: type, changed: set[str]) -> None:
    observer = Plugin(name="intruder", public_name="")

    assert changed <= unexpected_changes(observer, intruder(), Scenario(evaluate=True))
