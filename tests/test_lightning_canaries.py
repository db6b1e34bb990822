"""A canary for each private part of Lightning that the pack stands on: it says which one moved in which version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lightning_speedups import _lightning
from tests.helpers import ScriptedModule, loader, namespace, quiet_trainer
from tests.private_parts import INHERITED, foreign_private_names

pl = namespace()


class Looks(pl.Callback):  # type: ignore[misc]
    """Asks something of the Trainer at the end of each training batch and of validation."""

    def __init__(self, question: Callable[[Any], Any]) -> None:
        self.question = question
        self.in_training: list[Any] = []
        self.in_validation: list[Any] = []

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.in_training.append(self.question(trainer))

    def on_validation_end(self, trainer: Any, *args: Any) -> None:
        self.in_validation.append(self.question(trainer))


def answers(question: Callable[[Any], Any]) -> Looks:
    looks = Looks(question)
    module = ScriptedModule([2.0, 1.0])
    quiet_trainer(max_epochs=2, callbacks=[looks]).fit(module, loader(n=12), loader())
    return looks


def logger_connector_keeps_the_callback_metrics() -> None:
    """A metric that is logged gets a new tensor object, one that is not keeps its own."""
    looks = answers(lambda trainer: dict(trainer._logger_connector._callback_metrics))
    first, second = (metrics["val_loss"] for metrics in looks.in_validation)
    assert (float(first), float(second)) == (2.0, 1.0)
    assert first is not second
    between = [metrics["val_loss"] for metrics in looks.in_training if "val_loss" in metrics]
    assert between
    assert all(value is first for value in between)


def results_hold_the_running_loops_metrics() -> None:
    looks = answers(lambda trainer: [metric.meta.name for metric in trainer._results.values()])
    assert looks.in_training[0] == ["train_loss"]
    assert looks.in_validation[0] == ["val_loss"]
    assert quiet_trainer()._results is None


def results_name_a_metric() -> None:
    """The names under which a metric is kept: the plain one, and the one for its step and its epoch."""

    def names(trainer: Any) -> set[str]:
        results = trainer._results
        return {key for metric in results.values() for on in (True, False) for key in results._forked_name(metric, on)}

    looks = answers(names)
    assert looks.in_training[0] == {"train_loss"}
    assert looks.in_validation[0] == {"val_loss"}


def state_key_is_made_of_arguments() -> None:
    made = pl.callbacks.EarlyStopping("val_loss")
    assert made._generate_state_key(monitor="val_loss", mode="min") == made.state_key


def stock_hooks_run_the_check() -> None:
    """``EarlyStopping`` of Lightning checks through a method that the pack replaces, at the end that a flag names."""
    calls: list[str] = []

    class Counted(pl.callbacks.EarlyStopping):  # type: ignore[misc]
        def _run_early_stopping_check(self, trainer: Any) -> None:
            calls.append("epoch" if self._check_on_train_epoch_end else "validation")

    for where in (True, False):
        made = Counted("val_loss", check_on_train_epoch_end=where)
        quiet_trainer(max_epochs=2, callbacks=[made]).fit(ScriptedModule([1.0]), loader(), loader())
    assert calls == ["epoch", "epoch", "validation", "validation"]


def weight_averaging_keeps_an_average_of_the_module() -> None:
    """Under the module's own parameter names, and the module gets it at the end."""
    averaging, module = pl.callbacks.EMAWeightAveraging(decay=0.5), ScriptedModule([1.0])
    quiet_trainer(max_epochs=2, callbacks=[averaging]).fit(module, loader(), loader())
    average = dict(averaging._average_model.module.named_parameters())
    assert all(torch.equal(average[name], value) for name, value in module.named_parameters())


def callbacks_get_the_modules_log_methods() -> None:
    made, module = pl.Callback(), ScriptedModule([1.0])
    quiet_trainer(max_epochs=1, callbacks=[made]).fit(module, loader(), loader())
    assert (made.log, made.log_dict) == (module.log, module.log_dict)


def evaluation_loop_remembers_the_modes() -> None:
    """Each submodule's ``training`` flag, from before the loop set eval mode."""
    module, modes = ScriptedModule([1.0]), []
    module.linear.eval()
    module.validation_step = lambda batch, batch_idx: modes.append(  # type: ignore[method-assign]
        dict(module.trainer.validate_loop._module_mode.mode)
    )
    quiet_trainer().validate(module, loader(), verbose=False)
    assert modes == [{"": True, "linear": False}] * len(loader())


def fit_loop_tells_an_open_accumulation() -> None:
    looks = Looks(lambda trainer: trainer.fit_loop._should_accumulate())
    trainer = quiet_trainer(max_epochs=1, accumulate_grad_batches=2, callbacks=[looks])
    trainer.fit(ScriptedModule([1.0]), loader(n=16), loader())
    assert looks.in_training == [True, False, True, False]


def predict_loop_keeps_what_it_predicts() -> None:
    kept: list[int] = []

    class Counts(pl.Callback):  # type: ignore[misc]
        def on_predict_batch_start(self, trainer: Any, *args: Any) -> None:
            kept.append(len(trainer.predict_loop._predictions[0]))

    module = ScriptedModule()
    module.predict_step = lambda batch, batch_idx: module(batch[0])  # type: ignore[method-assign]
    quiet_trainer(callbacks=[Counts()]).predict(module, loader(n=12))
    assert kept == [0, 1, 2]


def evaluation_loop_runs_the_loaders_that_it_holds() -> None:
    """Its loaders and how many batches it takes from each are read when it starts, and may be others by then."""
    module, trainer, sizes = ScriptedModule([1.0]), quiet_trainer(), []
    module.validation_step = lambda batch, batch_idx: sizes.append(len(batch[0]))  # type: ignore[method-assign]
    loop = trainer.validate_loop
    set_up = loop.setup_data

    def other_batches() -> None:
        set_up()
        assert [loader_.batch_size for loader_ in loop._combined_loader.flattened] == [4]
        assert loop._max_batches == [2]
        loop._combined_loader.flattened = [loader(n=9, batch_size=3)]
        loop._max_batches = [3]

    loop.setup_data = other_batches
    trainer.validate(module, loader(), verbose=False)
    assert sizes == [3, 3, 3]


def loops_ask_their_source_for_loaders_and_the_strategy_processes_each() -> None:
    trainer, seen, loaders = quiet_trainer(max_epochs=1), [], [loader(), loader()]
    for source in (trainer.fit_loop._data_source, trainer.fit_loop.epoch_loop.val_loop._data_source):
        assert "dataloader" not in vars(source)
    hooks = _lightning.LoaderHooks(trainer, lambda *asked: seen.append(asked), seen.append)
    trainer.fit(ScriptedModule([1.0]), loaders[0], loaders)
    hooks.detach()
    assert seen == [("train", 1), loaders[0], ("val", 2), *loaders]
    assert "process_dataloader" not in vars(trainer.strategy)


CANARIES: dict[str, tuple[tuple[str, ...], Callable[[], None]]] = {
    "Trainer._logger_connector._callback_metrics": (
        ("_logger_connector", "_callback_metrics"),
        logger_connector_keeps_the_callback_metrics,
    ),
    "Trainer._results": (("_results",), results_hold_the_running_loops_metrics),
    "_ResultCollection._forked_name": (("_forked_name",), results_name_a_metric),
    "Callback._generate_state_key": (("_generate_state_key",), state_key_is_made_of_arguments),
    "EarlyStopping._run_early_stopping_check and ._check_on_train_epoch_end": (
        ("_run_early_stopping_check", "_check_on_train_epoch_end"),
        stock_hooks_run_the_check,
    ),
    "_EvaluationLoop._module_mode": (("_module_mode",), evaluation_loop_remembers_the_modes),
    "_FitLoop._should_accumulate": (("_should_accumulate",), fit_loop_tells_an_open_accumulation),
    "_PredictionLoop._predictions": (("_predictions",), predict_loop_keeps_what_it_predicts),
    "_EvaluationLoop._combined_loader and ._max_batches": (
        ("_combined_loader", "_max_batches"),
        evaluation_loop_runs_the_loaders_that_it_holds,
    ),
    "_FitLoop._data_source": (
        ("_data_source",),
        loops_ask_their_source_for_loaders_and_the_strategy_processes_each,
    ),
    "WeightAveraging._average_model": (("_average_model",), weight_averaging_keeps_an_average_of_the_module),
    "Callback.log and .log_dict, hung on it at each run": ((), callbacks_get_the_modules_log_methods),
}


@pytest.mark.parametrize("part", CANARIES)
def test_the_private_part_is_where_it_was(part: str) -> None:
    _, sings = CANARIES[part]
    try:
        sings()
    except (AttributeError, AssertionError, KeyError, TypeError, ValueError) as error:
        pytest.fail(f"{part} is not what it was in Lightning 2.6.6: this is {pl.__name__} {pl.__version__}. {error!r}")


def test_every_private_part_that_the_pack_uses_has_a_canary() -> None:
    used = foreign_private_names()["_lightning.py"] | INHERITED
    watched = {name for names, _ in CANARIES.values() for name in names}

    assert used - watched == set()
