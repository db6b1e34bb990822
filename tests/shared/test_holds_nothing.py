"""Suite 8: after a fit no object of the user lives on because of the plugin."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import pytest

from tests.helpers import loader, namespace, quiet_trainer
from tests.plugins import Plugin, each_plugin
from tests.shared.program import ScriptedRun

pl = namespace()


def survivors(made: Any, raises: bool = False) -> set[str]:
    """What is still alive after a fit, once the program has dropped all but the plugin."""
    module, train, val = ScriptedRun(val=[3.0, 2.0, 2.5, 2.6, 2.7]), loader(), loader()
    trainer = quiet_trainer(max_epochs=5, callbacks=[made])
    if raises:
        module.on_train_epoch_end = _interrupt  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            trainer.fit(module, train, val)
    else:
        trainer.fit(module, train, val)
    watched = {
        "module": module,
        "parameter": module.linear.weight,
        "optimizer": trainer.optimizers[0],
        "trainer": trainer,
        "train loader": train,
        "train dataset": train.dataset,
        "validation loader": val,
        "validation dataset": val.dataset,
    }
    references = {name: weakref.ref(value) for name, value in watched.items()}
    del module, train, val, trainer, watched
    gc.collect()
    return {name for name, reference in references.items() if reference() is not None}


def _interrupt() -> None:
    raise ZeroDivisionError


@each_plugin(kind="callback")
def test_nothing_is_alive_after_the_fit(plugin: Plugin) -> None:
    made = plugin.make()

    assert survivors(made) == set()


@each_plugin(kind="callback")
def test_nothing_is_alive_after_a_fit_that_an_error_ended(plugin: Plugin) -> None:
    made = plugin.make()

    assert survivors(made, raises=True) == set()


def test_a_callback_that_keeps_the_module_is_noticed() -> None:
    class Keeps(pl.Callback):  # type: ignore[misc]
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.kept = pl_module

    made = Keeps()

    assert "module" in survivors(made)


@each_plugin(kind="callback")
def test_a_pickle_made_after_the_fit_carries_no_object_of_the_user(plugin: Plugin) -> None:
    made = plugin.make()
    quiet_trainer(max_epochs=1, callbacks=[made]).fit(ScriptedRun(val=[1.0]), loader(), loader())

    assert ScriptedRun.__name__.encode() not in pickle.dumps(made)


@each_plugin(kind="callback")
def test_a_subclass_logs_while_the_trainer_runs(plugin: Plugin) -> None:
    made = plugin.make()

    class Logs(type(made)):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            super().on_train_batch_end(trainer, pl_module, *args)
            self.log("by_the_subclass", 4.0)

    made.__class__ = Logs
    module, trainer = ScriptedRun(val=[1.0]), quiet_trainer(max_epochs=1, callbacks=[made])
    trainer.fit(module, loader(), loader())

    assert trainer.callback_metrics["by_the_subclass"] == 4.0
    del module, trainer
    gc.collect()
    with pytest.raises(AttributeError, match="while a Trainer runs"):
        _ = made.log
