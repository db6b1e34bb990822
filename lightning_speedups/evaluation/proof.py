"""The proof that an evaluation's metrics do not change with its batch size: both are run on a copy of the module."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torchmetrics

from lightning_speedups import _lightning
from lightning_speedups.evaluation import rebatch
from lightning_speedups.evaluation.walk import is_users
from lightning_speedups.measuring import rng

_LOGGING_HOOKS = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end")


class Rebatcher:
    """Gives a loop's loaders another batch size, once it is proven on some of their samples that nothing changes.

    Args:
        trainer: whose loop it is.
        namespace: its Lightning.
        loop: ``"fit_validation"``, ``"validate"`` or ``"test"``.
        size: samples in a batch.
    """

    proving = False

    def __init__(self, trainer: Any, namespace: str, loop: str, size: int) -> None:
        self._trainer, self._namespace, self._loop, self._size = trainer, namespace, loop, size
        self._known: dict[tuple[int | None, ...], tuple[str, list[str]] | None] = {}

    def change(self, loaders: list[Any], combined: str) -> tuple[list[Any], tuple[str, list[str]] | None]:
        """The loaders to run, and why they are the user's own: a sentence, and the metrics that would change."""
        sizes = tuple(getattr(loader, "batch_size", None) for loader in loaders)
        if sizes not in self._known:
            self._known[sizes] = self._refusal(loaders, combined)
        refused = self._known[sizes]
        if refused is not None:
            return loaders, refused
        return [rebatch.rebuilt(loader, self._size) for loader in loaders], None

    def _refusal(self, loaders: list[Any], combined: str) -> tuple[str, list[str]] | None:
        if all(getattr(loader, "batch_size", None) == self._size for loader in loaders):
            return None
        trainer = self._trainer
        reason = (
            _lightning.shards_parameters(trainer, self._namespace)
            or (None if combined == "sequential" else f"the loaders are combined in the mode {combined!r}")
            or _counts_batches(trainer, self._loop)
            or _acts_in_evaluation(trainer.callbacks, self._loop)
            or next((why for loader in loaders if (why := rebatch.refusal(loader, self._size)) is not None), None)
        )
        # All ranks must reach the proof, or none: it may hold collectives of the program's.
        if not trainer.strategy.reduce_boolean_decision(reason is None, all=True):
            return reason or "another rank's loader cannot have another batch size", []
        changed: list[str] = []
        try:
            changed = self._changed_metrics(loaders)
        except Exception as error:  # noqa: BLE001 - whatever keeps the copy from running is a reason to refuse
            reason = f"the comparison of both sizes on a copy of the module failed ({type(error).__name__}: {error})"
        if changed:
            reason = f"logged metrics change with the batch size: {'; '.join(changed)}"
        if not trainer.strategy.reduce_boolean_decision(reason is None, all=True):
            return reason or "logged metrics change with the batch size on another rank", changed
        return None

    def _changed_metrics(self, loaders: list[Any]) -> list[str]:
        with rng.preserved(), _quietly(self._namespace):
            pairs = [rebatch.batches_of(loader, (self._size, loader.batch_size)) for loader in loaders]
            ours, users = (self._metrics([_Batches(pair[side]) for pair in pairs]) for side in (0, 1))
        return rebatch.disagreements(ours, users)

    def _metrics(self, loaders: list[_Batches]) -> Mapping[str, float]:
        """What the module logs on these batches, from the weights and the random streams of now."""
        trainer = self._trainer
        module = copy.deepcopy(trainer.lightning_module)
        for part in module.modules():
            if isinstance(part, torchmetrics.Metric):
                part.sync_on_compute = False
        device = trainer.strategy.root_device
        with rng.preserved():
            alone = _lightning.lone_trainer(self._namespace, device, trainer.precision)
            run = alone.test if self._loop == "test" else alone.validate
            Rebatcher.proving = True
            try:
                run(module, loaders[0] if len(loaders) == 1 else loaders, verbose=False)
            finally:
                Rebatcher.proving = False
        return {name: float(value) for name, value in alone.callback_metrics.items()}


class _Batches:
    """Batches as a loader gives them: a plain list of them would be taken for a list of loaders."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def _counts_batches(trainer: Any, loop: str) -> str | None:
    """Why the same number of batches would not be the same samples."""
    name = "limit_test_batches" if loop == "test" else "limit_val_batches"
    limit = getattr(trainer, name)
    if trainer.fast_dev_run:
        return "fast_dev_run counts batches"
    if isinstance(limit, int) or limit != 1.0:
        return f"Trainer({name}={limit!r}) counts batches, so that another size would mean other samples"
    if loop == "fit_validation" and trainer.overfit_batches:
        return "overfit_batches counts batches"
    return None


def _acts_in_evaluation(callbacks: list[Any], loop: str) -> str | None:
    """Why the copy would not log all that the run logs: a callback of the program's, which the copy runs without."""
    stage = "test" if loop == "test" else "validation"
    for callback in callbacks:
        for when in _LOGGING_HOOKS:
            hook = f"on_{stage}_{when}"
            if is_users(getattr(callback, hook)):
                return (
                    f"the callback {type(callback).__name__} acts in {hook}: what it logs there cannot be compared,"
                    " because the comparison runs without callbacks"
                )
    return None


@contextmanager
def _quietly(namespace: str) -> Iterator[None]:
    """Without what a second Trainer would tell the user about the machine."""
    logs = [logging.getLogger(f"{name}.utilities.rank_zero") for name in (namespace, _lightning.fabric_of(namespace))]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
