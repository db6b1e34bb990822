"""Suite 6: a LightningCLI file builds the plugin, and the run that it then does is the one built by hand."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.helpers import loader, namespace
from tests.plugins import Plugin, each_plugin
from tests.shared.program import ScriptedRun
from tests.shared.test_resume import lasting_state

pl = namespace()
QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "max_epochs": 6,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
CURVE = (3.0, 2.0, 2.5, 2.6, 2.7, 2.8)


@pytest.fixture(autouse=True)
def _no_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """LightningCLI warns of arguments beside the running program's own; jsonargparse of how Lightning calls it."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")


class FromFile(ScriptedRun):
    def __init__(self) -> None:
        super().__init__(val=CURVE)


def from_file(tmp_path: Path, trainer: dict[str, Any]) -> Any:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"trainer": {**QUIET, **trainer}}))
    cli = importlib.import_module(f"{pl.__name__}.cli")
    arguments = ["--config", str(file)]
    return cli.LightningCLI(
        FromFile, run=False, args=arguments, save_config_callback=None, seed_everything_default=False
    )


@each_plugin(kind="callback")
def test_a_callback_from_a_file_does_what_one_made_by_hand_does(plugin: Plugin, tmp_path: Path) -> None:
    cli = from_file(tmp_path, {"callbacks": [plugin.cli_yaml]})
    (built,) = [c for c in cli.trainer.callbacks if type(c).__name__ == plugin.public_name]
    assert type(built) is type(plugin.make())

    torch.manual_seed(0)
    cli.trainer.fit(cli.model, loader(), loader())
    by_hand, module = plugin.make(), FromFile()
    by_hand_trainer = pl.Trainer(**QUIET, **plugin.attach(by_hand))
    by_hand_trainer.fit(module, loader(), loader())

    assert cli.trainer.global_step == by_hand_trainer.global_step
    assert built.state_key == by_hand.state_key
    assert lasting_state(plugin, built) == lasting_state(plugin, by_hand)


@each_plugin(kind="callback")
def test_an_argument_that_does_not_exist_is_refused_by_name(
    plugin: Plugin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"class_path": plugin.class_path, "init_args": {**plugin.cli_yaml["init_args"], "no_such_argument": 1}}

    with pytest.raises(SystemExit):
        from_file(tmp_path, {"callbacks": [wrong]})

    assert "no_such_argument" in capsys.readouterr().err
