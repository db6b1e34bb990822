"""Every callback and strategy of the pack, once, with the settings under which the shared suites run it.

An entry here is all that a new callback needs to get the suites in ``tests/shared`` and the two-rank cases.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tests.helpers import namespace

Part = Literal["train_weights", "end_weights", "optimizer", "logged", "batch_order", "rng", "evaluated", "progress"]


@dataclass(frozen=True)
class Plugin:
    """One callback or strategy with its settings, and what the suites may expect of it.

    ``changes`` names the parts of a run that it alters (see ``tests.shared.program.Record``); with none of them the
    run must be bit-identical to the run without it. ``reports_alike`` names the fields of its report that are the same
    on every rank. ``cli_yaml`` is what a LightningCLI file gives as ``init_args``: the settings unless said otherwise.
    """

    name: str
    public_name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: Literal["callback", "strategy"] = "callback"
    changes: frozenset[Part] = frozenset()
    needs_logged_metrics: bool = False
    share_limit_pct: float = 1.0
    reports_alike: tuple[str, ...] = ()
    clock_state: frozenset[str] = frozenset()
    cli_settings: Mapping[str, Any] | None = None

    @property
    def changes_nothing(self) -> bool:
        return not self.changes

    @property
    def class_path(self) -> str:
        return f"lightning_speedups.{self.public_name}"

    @property
    def cli_yaml(self) -> dict[str, Any]:
        init_args = self.settings if self.cli_settings is None else self.cli_settings
        return {"class_path": self.class_path, "init_args": dict(init_args)}

    def make(self) -> Any:
        """A new object in the namespace under test."""
        bound = importlib.import_module(f"lightning_speedups.bound.{namespace().__name__.partition('.')[0]}")
        return getattr(bound, self.public_name)(**self.settings)

    def attach(self, made: Any) -> dict[str, Any]:
        """The Trainer's settings that put the object to work."""
        return {"callbacks": [made]} if self.kind == "callback" else {"strategy": made}


def _early_stopping(
    name: str, *, monitor: Any = "val_loss", changes: frozenset[Part] = frozenset(), **kw: Any
) -> Plugin:
    return Plugin(
        name=f"EarlyStopping-{name}",
        public_name="EarlyStopping",
        settings={"monitor": monitor, **kw},
        changes=changes,
        needs_logged_metrics=True,
        reports_alike=("reason", "message", "best_score", "best_step", "stopped_epoch", "stopped_step", "history"),
    )


def _no_grad_evaluation(name: str, **kw: Any) -> Plugin:
    return Plugin(
        name=f"NoGradEvaluation-{name}",
        public_name="NoGradEvaluation",
        settings=kw,
        reports_alike=("modes", "reasons", "issues", "graph_bytes_avoided", "eval_batch_sizes"),
    )


def _data_loader_tuner(name: str, **kw: Any) -> Plugin:
    # The suites' rows write down the order in which they are asked for: a state that no worker would give back, so the
    # tuner must leave the loaders as they are.
    return Plugin(name=f"DataLoaderTuner-{name}", public_name="DataLoaderTuner", settings=kw, reports_alike=("cpus",))


_RESTORES = frozenset({"end_weights", "evaluated"})

REGISTRY: tuple[Plugin, ...] = (
    _early_stopping("stock", patience=2, min_delta=0.001),
    _early_stopping("max", monitor="val_acc", mode="max", patience=2),
    _early_stopping("restore_best", patience=2, restore_best=True, changes=_RESTORES),
    _early_stopping("restore_from_disk", patience=2, restore_best=True, snapshot="disk", changes=_RESTORES),
    _early_stopping("several", monitor=[("val_loss", "min"), ("val_acc", "max")], combine="all", patience=2),
    _early_stopping("smoothed", patience=2, min_delta=0.01, min_delta_mode="rel", smoothing=0.3),
    _early_stopping("gl", rule="gl", rule_alpha=20.0),
    _early_stopping("epochs", patience=1, patience_unit="epochs"),
    _early_stopping("steps", monitor="step_curve", patience=4, patience_unit="steps", check_every_n_steps=2),
    _no_grad_evaluation("stock"),
    _no_grad_evaluation("inference_mode_in_fit", mode={"fit_validation": "inference_mode", "predict": "no_grad"}),
    _data_loader_tuner("stock"),
    _data_loader_tuner("advising", apply=False, time_budget_s=2.0),
    _data_loader_tuner("passive", mode="passive"),
    _no_grad_evaluation("all_memory_options", outputs="cpu", free_grads=True, isolate_grads=True),
)


def each_plugin(**conditions: Any) -> pytest.MarkDecorator:
    """Parametrize a test over the registry: the entries whose attributes equal ``conditions``."""
    chosen = [p for p in REGISTRY if all(getattr(p, name) == value for name, value in conditions.items())]
    return pytest.mark.parametrize("plugin", chosen, ids=[p.name for p in chosen])
