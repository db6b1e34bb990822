"""Suite 2: a run saved mid-epoch or at an epoch's end and resumed ends as the stock run resumed from there does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import namespace
from tests.plugins import Plugin, each_plugin
from tests.shared.program import BATCHES, Scenario, as_bytes, improving, run, stalling

pytestmark = pytest.mark.filterwarnings(
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:You're resuming from a checkpoint that ended before the epoch",
)
pl = namespace()
MID_EPOCH = BATCHES + 1
SAVERS = {
    "mid_epoch": {"every_n_train_steps": MID_EPOCH, "save_top_k": -1},
    "epoch_end": {"every_n_epochs": 1, "save_top_k": -1, "save_on_train_epoch_end": True},
}
END_STATE = {"train_weights", "end_weights", "optimizer", "progress"}


class StopsAt(pl.Callback):  # type: ignore[misc]
    """Ends a stock run at the step at which the plugin ended its own; ``max_steps`` would end a resumed run earlier."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.should_stop = True


def saved_during(plugin: Plugin, made: Any, scenario: Scenario, folder: Path, point: str) -> Path:
    """Run without an interruption and give back the first checkpoint that was written at ``point``."""
    saver = pl.callbacks.ModelCheckpoint(dirpath=folder, filename="{step}", **SAVERS[point])
    settings = plugin.attach(made)
    run(scenario, **{**settings, "callbacks": [*settings.get("callbacks", []), saver], "enable_checkpointing": True})
    return min(folder.iterdir(), key=lambda path: int(path.stem.partition("=")[2]))


@each_plugin(kind="callback")
@pytest.mark.parametrize("curve", [improving, stalling])
@pytest.mark.parametrize("point", SAVERS)
def test_a_resumed_run_ends_as_stock_does_and_the_plugin_as_if_never_interrupted(
    plugin: Plugin, curve: Any, point: str, tmp_path: Path
) -> None:
    scenario = Scenario(curve=curve, trainer={"max_epochs": 4, "val_check_interval": 0.5})
    uninterrupted, resumed = plugin.make(), plugin.make()
    checkpoint = saved_during(plugin, uninterrupted, scenario, tmp_path, point)

    with_plugin = run(scenario, ckpt_path=str(checkpoint), **plugin.attach(resumed))
    steps, _ = with_plugin.progress
    stock = run(scenario, ckpt_path=str(checkpoint), callbacks=[StopsAt(steps)])

    assert END_STATE & (stock.differences(with_plugin) - plugin.changes) == set()
    assert lasting_state(plugin, resumed) == lasting_state(plugin, uninterrupted)


def lasting_state(plugin: Plugin, made: Any) -> Any:
    return as_bytes({key: value for key, value in made.state_dict().items() if key not in plugin.clock_state})


@each_plugin(kind="callback")
def test_a_checkpoint_loads_with_weights_only(plugin: Plugin, tmp_path: Path) -> None:
    made = plugin.make()
    checkpoint = saved_during(plugin, made, Scenario(), tmp_path, "mid_epoch")

    loaded = torch.load(checkpoint, weights_only=True)

    assert (made.state_key in loaded["callbacks"]) is bool(made.state_dict())


def test_a_plugin_that_forgets_its_state_is_noticed(tmp_path: Path) -> None:
    class Forgetful(pl.callbacks.EarlyStopping):  # type: ignore[misc]
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            pass

    plugin = Plugin(name="forgetful", public_name="")
    scenario = Scenario(curve=stalling, trainer={"max_epochs": 4, "val_check_interval": 0.5})
    uninterrupted, resumed = Forgetful("val_loss", patience=50), Forgetful("val_loss", patience=50)
    checkpoint = saved_during(plugin, uninterrupted, scenario, tmp_path, "epoch_end")

    run(scenario, ckpt_path=str(checkpoint), **plugin.attach(resumed))

    assert lasting_state(plugin, resumed) != lasting_state(plugin, uninterrupted)
