"""The ``EarlyStopping`` callback: reads the Trainer's metrics, asks the rules, tells the Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from lightning_speedups import _lightning
from lightning_speedups._lightning import LightningModule, StockEarlyStopping, Trainer
from lightning_speedups.reporting import plots
from lightning_speedups.stopping import facts, page
from lightning_speedups.stopping.arguments import (
    checked_flags,
    checked_min_delta,
    checked_monitors,
    checked_options,
    settings_for,
)
from lightning_speedups.stopping.judge import Judge
from lightning_speedups.stopping.observing import Observer
from lightning_speedups.stopping.outcome import Outcome
from lightning_speedups.stopping.remarks import missing, mistyped, remark, with_loss
from lightning_speedups.stopping.report import EarlyStoppingReport
from lightning_speedups.stopping.restoring import BestWeights
from lightning_speedups.stopping.rules import Clock, Verdict

_STATE = "lightning_speedups"
_STOCK_REASON = {
    "threshold": "STOPPING_THRESHOLD",
    "divergence": "DIVERGENCE_THRESHOLD",
    "non_finite": "NON_FINITE_METRIC",
}


class EarlyStopping(StockEarlyStopping):
    """Stop training when a metric has stopped improving, and give back the best weights.

    A drop-in for Lightning's ``EarlyStopping``: with stock arguments it decides the same at the same steps, but for
    four things. A stop wanted before ``min_epochs`` or ``min_steps`` is not latched: each check decides again until
    they are met. A value that has not been logged again is not counted again. A checkpoint brings back history, and
    never the configuration. Under several ranks the mean over the ranks is judged, so all stop together.

    Args:
        monitor: name of the metric, or several as ``[("val_acc", "max"), ("val_loss", "min")]``; the first one decides
            what the best epoch is.
        min_delta: change that counts as an improvement: absolute, or a share of the best (see ``min_delta_mode``).
        patience: how long to go on without an improvement, in ``patience_unit``.
        verbose: say it at every check, not only when something is decided.
        mode: ``"min"`` or ``"max"``; for a list of monitors each brings its own.
        strict: raise where the metric is missing (with False: one warning).
        check_finite: stop at the first NaN or infinity; ``nan_policy`` says more.
        stopping_threshold: stop at once when the metric is better than this; one per monitor where there are several.
        divergence_threshold: stop at once when it is worse than this; one per monitor where there are several.
        check_on_train_epoch_end: check there instead of after validation. None: where validation runs once an epoch.
        log_rank_zero_only: kept from the stock class. Ranks agree here, so only rank 0 ever speaks.
        patience_unit: ``"checks"`` (as stock), ``"epochs"``, optimizer ``"steps"`` or ``"seconds"``.
        min_delta_mode: ``"abs"``, or ``"rel"``: a share of the best value's magnitude, whatever its scale and sign.
        smoothing: weight of the past, between 0 and 1, of an exponential moving average that is judged instead of
            the value itself.
        baseline: the patience runs until the metric is better than this, whatever it improves below.
        start_from: ``("epochs", n)`` or ``("steps", n)``: nothing is judged until so much is done.
        combine: with several monitors, stop when ``"any"`` or ``"all"`` of them want to.
        rule: ``"patience"``, or Prechelt's ``"gl"`` (generalization lost, in percent), ``"pq"`` (the same per training
            progress) or ``"up"`` (worse at so many strip ends in a row).
        rule_alpha: the rule's parameter; None means 5 for GL, 0.75 for PQ, 3 for UP.
        rule_strip: checks in a strip, for PQ and UP.
        restore_best: put the best weights back at the end of the fit, however it ended. The optimizer stays at the
            last step, as does every checkpoint.
        snapshot: keep the copy in host ``"memory"`` or on ``"disk"``, in the Trainer's ``default_root_dir``.
        nan_policy: a non-finite value is a ``"stop"``, ``"ignore"`` (not counted) or ``"count"`` (no improvement).
            None: what ``check_finite`` says.
        nan_patience: stop at so many non-finite values in a row; None: at the first under ``"stop"``, else never.
        on_resume: ``"keep"`` or ``"reset"`` the history that a checkpoint brings.
        check_every_n_steps: check every so many optimizer steps instead, for epochs that never end.
        name: tells apart two callbacks that monitor the same metric.
        report_dir: folder for ``early_stopping.json``, ``early_stopping.png`` and ``report.html``.

    Raises:
        MisconfigurationException: at construction for a wrong argument, at setup for a Trainer it cannot work with.
        RuntimeError: in the fit, on all ranks, where the metric is missing; the closest logged name is given.

    Logs no key. Suggested settings and their worth: ``docs/early_stopping.md``.

    Example:
        >>> import lightning_speedups as ls
        >>> callback = ls.EarlyStopping("val_loss", patience=3, patience_unit="epochs", restore_best=True)
    """

    namespace: ClassVar[str]
    _judge: Judge
    _module_id: int | None = None
    _outcome: Outcome
    _voice: _lightning.Voice
    _weights: BestWeights | None
    _held: Verdict | None

    def __init__(
        self,
        monitor: str | Sequence[tuple[str, str]],
        min_delta: float = 0.0,
        patience: float = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | Sequence[float | None] | None = None,
        divergence_threshold: float | Sequence[float | None] | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
        *,
        patience_unit: Literal["checks", "epochs", "steps", "seconds"] = "checks",
        min_delta_mode: Literal["abs", "rel"] = "abs",
        smoothing: float | None = None,
        baseline: float | Sequence[float | None] | None = None,
        start_from: tuple[str, int] | None = None,
        combine: Literal["any", "all"] = "any",
        rule: Literal["patience", "gl", "pq", "up"] = "patience",
        rule_alpha: float | None = None,
        rule_strip: int = 5,
        restore_best: bool = False,
        snapshot: Literal["memory", "disk"] = "memory",
        nan_policy: Literal["stop", "ignore", "count"] | None = None,
        nan_patience: int | None = None,
        on_resume: Literal["keep", "reset"] = "keep",
        check_every_n_steps: int | None = None,
        name: str | None = None,
        report_dir: str | Path | None = None,
    ) -> None:
        self.patience_unit, self.min_delta_mode, self.smoothing = patience_unit, min_delta_mode, smoothing
        self.baseline, self.start_from, self.report_dir = baseline, start_from, report_dir
        self.combine, self.rule, self.rule_alpha, self.rule_strip = combine, rule, rule_alpha, rule_strip
        self.restore_best, self.snapshot = restore_best, snapshot
        self.nan_policy, self.nan_patience = nan_policy, nan_patience
        self.on_resume, self.check_every_n_steps, self.name = on_resume, check_every_n_steps, name
        try:
            self.monitors = checked_monitors(monitor, mode)
            first, first_mode = self.monitors[0]
            checked_flags(verbose=verbose, strict=strict, check_finite=check_finite, restore_best=restore_best)
            checked_options(self, check_on_train_epoch_end)
            super().__init__(
                monitor=first,
                min_delta=checked_min_delta(min_delta),
                patience=patience,  # type: ignore[arg-type]
                verbose=verbose,
                mode=first_mode,
                strict=strict,
                check_finite=check_finite,
                stopping_threshold=stopping_threshold,  # type: ignore[arg-type]
                divergence_threshold=divergence_threshold,  # type: ignore[arg-type]
                check_on_train_epoch_end=check_on_train_epoch_end,
                log_rank_zero_only=log_rank_zero_only,
            )
            self._where_asked = check_on_train_epoch_end
            self._begin()
        except (TypeError, ValueError) as error:
            raise _lightning.misconfiguration(self.namespace, f"EarlyStopping: {error}") from error

    @property
    def state_key(self) -> str:
        """As the stock class's where only stock arguments are given, so that checkpoints go both ways."""
        keys: dict[str, Any] = {"monitor": self.monitor, "mode": self.mode}
        if len(self.monitors) > 1:
            keys = {"monitor": list(self.monitors)}
        if self.name is not None:
            keys["name"] = self.name
        return self._generate_state_key(**keys)

    @property
    def report(self) -> EarlyStoppingReport:
        """What happened so far in this fit, or in the last one."""
        return self._outcome.report(self._judge, self.stopping_reason_message)

    def plot(self, path: str | Path) -> None:
        """Draw the monitored values with the best check and the stop, as a PNG file at ``path``."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        plots.save_png(page.curve(self.report, self._names), Path(path))

    def state_dict(self) -> dict[str, Any]:
        """The stock class's keys, and the history under one key of this pack's."""
        return {**super().state_dict(), _STATE: {**self._judge.state_dict(), "seconds": self._seconds()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the history; the configuration stays as the program has it."""
        if self.on_resume == "reset":
            self._voice.say("the checkpoint's history is left out (on_resume='reset')")
            return
        configured = self.patience
        super().load_state_dict(state_dict)
        self.patience = configured
        if _STATE in state_dict:
            self._judge.load_state_dict(state_dict[_STATE])
            self._seconds_before = state_dict[_STATE]["seconds"]
        else:
            self._judge.load_stock(float(state_dict["best_score"]), state_dict["wait_count"])
        best = "none yet" if self._judge.best is None else f"{self._judge.best:.6g}"
        was, now = state_dict["patience"], self.patience
        change = f" -> {now:g} (new argument)" if was != now else ""
        if self._judge.best is None and not self.wait_count:
            return  # Tuners load the state of a run that has not begun.
        self._voice.say(f"resumed: best {best}, wait {self.wait_count}, patience {was:g}{change}")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a Trainer that does not fit; begin anew unless the Trainer goes on with a run."""
        _lightning.require_same_namespace(self, trainer)
        if stage != "fit":
            return
        if trainer.barebones:
            raise _lightning.misconfiguration(
                self.namespace,
                f"EarlyStopping needs {self.monitor!r}, and Trainer(barebones=True) logs nothing. Leave one out",
            )
        self._check_on_train_epoch_end = self._where_asked
        if self._where_asked is None:
            self._check_on_train_epoch_end = facts.validates_once_an_epoch(trainer)
        if trainer.global_step == 0 or self._module_id != id(pl_module):
            self._begin()
        self._module_id = id(pl_module)
        self._observer, self._validated = Observer(self._names), False
        folder = Path(trainer.default_root_dir) if self.snapshot == "disk" else None
        self._weights = BestWeights(folder) if self.restore_best else None

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find a mistyped monitor before the first training step."""
        keys = _lightning.logged_keys(trainer)
        typos = mistyped(self._names, keys)
        if trainer.strategy.reduce_boolean_decision(bool(typos), all=True):
            missing(typos[0], keys, self.strict, self._voice)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what the patience means in this run, and what stands against it."""
        self.stopped_epoch, self.stopping_reason_message = 0, None
        self.stopping_reason = type(self.stopping_reason).NOT_STOPPED
        schedule = facts.schedule_of(trainer, bool(self._check_on_train_epoch_end), self.check_every_n_steps)
        weights_are_best = self._judge.best_step == trainer.global_step or self._outcome.restored
        self._outcome = Outcome(schedule.max_epochs, schedule.planned_steps, trainer.global_step, self._seconds_before)
        self._judge.count_from(Clock(facts.epochs_done(trainer), trainer.global_step, self._seconds_before))
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        settings, names = self._judge.tracks[0].settings, ", ".join(self._names)
        rule = f"rule {self.rule.upper()} at {settings.alpha:g}" if self.rule != "patience" else "patience"
        self._voice.say(f"{rule} on {names}: {schedule.translated(settings)}")
        after_validation = not self._check_on_train_epoch_end and self.check_every_n_steps is None
        for warning in facts.warnings(trainer, settings, self._names, schedule, after_validation, self.restore_best):
            self._voice.warn(warning)
        if weights_are_best:
            self._keep_weights(pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note which metrics the last check has seen."""
        self._observer.batch_starts(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check here where steps were asked for; carry out a stop that waited for ``min_steps``."""
        self._observer.batch_ends(outputs, add_up=self.rule == "pq")
        every = self.check_every_n_steps
        if every is not None and trainer.global_step // every > self._outcome.checked_at_step // every:
            self._run_early_stopping_check(trainer)
        self._stop_if_held(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check here by default; carry out a stop that waited for ``min_epochs``."""
        if self.check_every_n_steps is None:
            super().on_train_epoch_end(trainer, pl_module)
        self._stop_if_held(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check here where validation does not run exactly once an epoch."""
        self._validated = self._validated or not trainer.sanity_checking
        if self.check_every_n_steps is None:
            super().on_validation_end(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the best weights back, after every checkpoint has been written, and report."""
        self._outcome.advance(facts.epochs_done(trainer), trainer.global_step)
        self._outcome.end()
        if self._weights is not None:
            self._restore(trainer, pl_module, may_ask_ranks=True)
            self._weights.drop()
        self._observer = Observer(self._names)
        self._report(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put the best weights back without asking another rank: it may be gone."""
        if trainer.state.fn != "fit":
            return
        self._outcome.end()
        if self._weights is not None and self._weights.kept:
            if trainer.checkpoint_callbacks:
                self._weights.remember_last(pl_module)
            self._restore(trainer, pl_module, may_ask_ranks=False)
            self._weights.drop_best()
        self._report(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """A checkpoint that is written because of an exception gets the last weights: they fit the optimizer."""
        if self._weights is not None and trainer.state.stage is not None:
            self._weights.mend(checkpoint)

    def _run_early_stopping_check(self, trainer: Trainer) -> None:
        self._outcome.checked_at_step = trainer.global_step
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        seen = self._observer.observe(trainer, self._outcome.seconds)
        may_come = trainer.enable_validation and not self._validated
        remark(seen, self._names, trainer.callback_metrics, self.strict, may_come, self._voice)
        values = [metric.value for metric in seen.metrics]
        if all(value is None for value in values):
            return
        if self.rule == "pq" and seen.train_loss is None:
            message = "EarlyStopping: rule='pq' needs the training loss, and training_step returns none. Return it"
            raise _lightning.misconfiguration(self.namespace, message)
        seconds = seen.seconds if self.patience_unit == "seconds" else 0.0
        at = Clock(facts.epochs_done(trainer), trainer.global_step, seconds)
        self._judge.follow(self.patience, self.wait_count, at)
        verdict = self._judge.check(values, at, trainer.current_epoch, seen.train_loss, seen.rounded)
        self.wait_count = self._judge.wait
        if self._judge.best is not None:
            self.best_score = torch.tensor(self._judge.best, dtype=seen.dtype)
        if verdict.improved:
            self._keep_weights(_lightning.final_module(trainer))
        if not self._outcome.stopped:
            self._decide(trainer, with_loss(verdict, seen, self._voice))

    def _decide(self, trainer: Trainer, verdict: Verdict) -> None:
        if not verdict.stop:
            if self._held is not None:
                self._voice.say(f"stop withdrawn: {verdict.message}")
            elif self.verbose:
                self._voice.say(verdict.message)
            self._held = None
        elif facts.may_stop(trainer):
            self._stop(trainer, verdict)
        else:
            if self._held is None:
                held = f"{verdict.message} - held by {facts.held_by(trainer)}"
                self._voice.say(f"stop wanted at epoch {trainer.current_epoch}: {held}")
            self._held = verdict

    def _stop_if_held(self, trainer: Trainer) -> None:
        if self._held is not None and facts.may_stop(trainer):
            self._stop(trainer, self._held)

    def _stop(self, trainer: Trainer, verdict: Verdict) -> None:
        self._held = None
        self._outcome.stop(verdict.reason, trainer.current_epoch, trainer.global_step)
        self._outcome.advance(facts.epochs_done(trainer), trainer.global_step)
        trainer.should_stop = True
        self.stopped_epoch = trainer.current_epoch
        reasons = type(self.stopping_reason)
        self.stopping_reason = reasons[_STOCK_REASON.get(verdict.reason, "PATIENCE_EXHAUSTED")]
        self.stopping_reason_message = verdict.message
        self._voice.say(f"stop at epoch {trainer.current_epoch}, step {trainer.global_step}: {verdict.message}")

    def _keep_weights(self, module: LightningModule) -> None:
        error = None if self._weights is None else self._weights.keep(module)
        if error is not None:
            self._voice.warn_once(
                f"the best weights cannot be written to disk ({error}); their copy is kept in memory", "snapshot"
            )

    def _report(self, trainer: Trainer) -> None:
        if self.report_dir is not None and trainer.is_global_zero:
            page.write(self.report_dir, self.report, self._names, self.name)

    def _restore(self, trainer: Trainer, module: LightningModule, may_ask_ranks: bool) -> None:
        if self._weights is None or self._judge.best is None:
            return
        restored = self._weights.restore(trainer, module, self._judge.best_step, may_ask_ranks)
        if restored.failure:
            self._voice.warn(f"the weights stay at the last step: {restored.failure}")
            return
        self._outcome.restored = True
        if restored.misfits:
            self._voice.warn(f"not restored, because they no longer fit: {', '.join(restored.misfits)}")
        best = f"{self._judge.tracks[0].settings.label} {self._judge.best:.6g}"
        stays = f"the optimizer stays at the last step ({trainer.global_step})"
        self._voice.say(f"restored epoch {self._judge.best_epoch} ({best}){restored.source}; {stays}")

    def _begin(self) -> None:
        """Forget what came before: a run begins."""
        self._names = tuple(name for name, _ in self.monitors)
        self._judge = Judge(settings_for(self), self.combine)
        self._outcome = Outcome()
        self._observer = Observer(self._names)
        self._voice = _lightning.Voice(
            self.namespace, "EarlyStopping" if self.name is None else f"EarlyStopping {self.name!r}"
        )
        self._weights, self._held, self._validated = None, None, False
        self._seconds_before = 0.0
        self.wait_count, self.stopped_epoch, self.stopping_reason_message = 0, 0, None
        self.best_score = torch.tensor(float("inf") if self.mode == "min" else -float("inf"))

    def _seconds(self) -> float:
        return self._outcome.seconds if self.patience_unit == "seconds" else 0.0
