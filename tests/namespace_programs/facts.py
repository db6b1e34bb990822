"""What is asked of the pack in every import order. Imports nothing that the programs would not."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

LIGHTNINGS = ("pytorch_lightning", "lightning.pytorch")
HEAVY = (*LIGHTNINGS, "torch", "fairscale", "matplotlib", "jinja2", "typer", "sklearn", "scipy")


def loaded(names: tuple[str, ...] = LIGHTNINGS) -> list[str]:
    return [name for name in names if name in sys.modules]


def error_of(function: Callable[[], Any]) -> str:
    """The error that a call raises, as ``Type: text``; an empty string where it raises none."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - which error comes is what is asked
        return f"{type(error).__name__}: {error}"
    return ""


def epochs_run(namespace: str, callback: Any) -> int:
    """The epochs of a fit whose metric stops improving after the second one; ten at most."""
    os.environ["LIGHTNING_SPEEDUPS_TEST_NAMESPACE"] = namespace
    sys.modules.pop("tests.helpers", None)
    helpers = importlib.import_module("tests.helpers")
    trainer = helpers.quiet_trainer(max_epochs=10, callbacks=[callback])
    trainer.fit(helpers.ScriptedModule([2.0, 1.0, 1.5]), helpers.loader(), helpers.loader())
    return int(trainer.current_epoch)


def of_the_class(early_stopping: Any, namespace: str) -> dict[str, Any]:
    """How the public name behaves as a class once the namespace is known."""
    stock = importlib.import_module(namespace).callbacks
    made = early_stopping("val_loss", patience=1)

    class Derived(early_stopping):  # type: ignore[misc]
        pass

    derived = Derived("val_loss", patience=1)
    return {
        "made_for": made.namespace,
        "is_a_stock_callback": isinstance(made, stock.EarlyStopping),
        "isinstance": isinstance(made, early_stopping),
        "issubclass": issubclass(type(made), early_stopping),
        "a_stock_object_is_none_of_ours": isinstance(stock.EarlyStopping("val_loss"), early_stopping),
        "derived_is_stock_and_ours": isinstance(derived, stock.EarlyStopping) and isinstance(derived, early_stopping),
        "class_attribute": early_stopping.mode_dict is stock.EarlyStopping.mode_dict,
        "pickle_keeps_the_type": type(pickle.loads(pickle.dumps(made))) is type(made),
        "epochs_of_a_fit": epochs_run(namespace, made),
        "epochs_of_a_derived_fit": epochs_run(namespace, derived),
    }


def of_the_entry_point(namespace: str) -> dict[str, Any]:
    """The pack's callbacks in a Trainer to which none was given, without and with the variable that asks for one."""
    pl = importlib.import_module(namespace)

    def callbacks() -> list[str]:
        trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, barebones=False)
        return [f"{type(c).__module__}: {c.monitor}" for c in trainer.callbacks if type(c).__name__ == "EarlyStopping"]

    unasked = callbacks()
    os.environ["LIGHTNING_SPEEDUPS_ATTACH"] = '[{"name": "EarlyStopping", "args": {"monitor": "val_loss"}}]'
    asked = callbacks()
    del os.environ["LIGHTNING_SPEEDUPS_ATTACH"]
    return {"attached_unasked": unasked, "attached": asked}


def with_both_imported(early_stopping: Any, earlier: Any) -> dict[str, Any]:
    """Both Lightnings are in the program; ``earlier`` was made when it had only one."""
    (other,) = {*LIGHTNINGS} - {earlier.namespace}
    importlib.import_module(other)
    now = early_stopping("val_loss", patience=1)
    wrong = next(name for name in LIGHTNINGS if name != now.namespace)
    cured = importlib.import_module(f"lightning_speedups.bound.{wrong.partition('.')[0]}").EarlyStopping
    return {
        "both_made_for": now.namespace,
        "both_made_earlier_for": earlier.namespace,
        "both_epochs": epochs_run(now.namespace, now),
        "both_epochs_of_the_earlier_one": epochs_run(earlier.namespace, earlier),
        "both_wrong_trainer": error_of(lambda: epochs_run(wrong, early_stopping("val_loss"))),
        "both_cured_epochs": epochs_run(wrong, cured("val_loss", patience=1)),
        "both_isinstance": [isinstance(each, early_stopping) for each in (earlier, now, cured("val_loss"))],
        "both_attached": [of_the_entry_point(name)["attached"] for name in LIGHTNINGS],
    }
