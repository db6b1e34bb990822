"""What the callback does at each point of a run: gives loops their mode, watches them, puts back what it took."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from lightning_speedups import _lightning
from lightning_speedups.evaluation import flags, grads, outputs
from lightning_speedups.evaluation.decide import Facts, decide
from lightning_speedups.evaluation.ledger import Ledger
from lightning_speedups.evaluation.proof import Rebatcher
from lightning_speedups.evaluation.report import EvaluationIssue, EvaluationReport, Kind
from lightning_speedups.evaluation.scan import Found, scan
from lightning_speedups.evaluation.settings import LOOP_NAMES, STEPS, Loop, Options
from lightning_speedups.evaluation.walk import is_users, samples_in
from lightning_speedups.evaluation.watch import LoopWatch
from lightning_speedups.measuring.guard import diagnostic
from lightning_speedups.measuring.saved_bytes import saved_bytes
from lightning_speedups.reporting import text

_LOOPS_OF: dict[str, tuple[Loop, ...]] = {
    "fit": ("fit_validation", "sanity"),
    "validate": ("validate",),
    "test": ("test",),
    "predict": ("predict",),
}
_HOOKS = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
_TRAINING = "training"
_DEALT_WITH = ("needs_gradients", "inference_tensor")


class _Run:
    """What one call of the Trainer needs, and what refers to objects of the program: gone when the call is over."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.switches: dict[Loop, bool] = {}
        self.switched_to = False
        self.undo: list[Callable[[], None]] = []
        self.watch: LoopWatch | None = None
        self.unsettled: tuple[LoopWatch, dict[str, bool]] | None = None
        self.stash: grads.Stash | None = None
        self.counts_saved_bytes = False
        self.batch_samples: int | None = None
        self.epoch_looked_at = -1
        self.first_epoch = True


class Conductor:
    """Holds what is known across runs, and one run's state while it goes.

    Args:
        namespace: the Lightning namespace of the callback.
        options: the callback's arguments.
    """

    def __init__(self, namespace: str, options: Options) -> None:
        self.broken = False
        self._namespace, self._options = namespace, options
        self._module: weakref.ref[Any] | None = None
        self._run: _Run | None = None
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_module": None, "_run": None}

    @property
    def report(self) -> EvaluationReport:
        """What happened so far: each loop's last run with this module."""
        return self._ledger.report()

    def broke(self, error: Exception, what: str) -> None:
        """A diagnostic raised: say so, once."""
        self._voice.warn(
            f"its own check ({what}) failed ({type(error).__name__}: {error}), so its checks are off for this run;"
            " evaluation goes on as it is"
        )

    def begin(self, trainer: Any, module: Any) -> None:
        """A call of the Trainer begins: look at the code, and give its loops their modes."""
        if Rebatcher.proving:
            return
        # Lightning's hooks get an enum for the stage, which shows itself by another name.
        stage = str(trainer.state.fn.value)
        if self._module is None or self._module() is not module:
            self._module = weakref.ref(module)
            self._forget()
        self.broken, self._run = False, _Run(Found())
        if stage == "fit":
            self._voice = _lightning.Voice(self._namespace, "NoGradEvaluation")
            self._ledger.forget(_TRAINING)
            self._ledger.bytes_per_sample, self._backward_runs = None, 0
            self._run.counts_saved_bytes = True
        loops = _LOOPS_OF[stage]
        for loop in loops:
            self._ledger.begin(loop)
        self._scan(trainer, module, stage)
        for loop in loops:
            self._give_mode(trainer, loop)
        runs = _lightning.evaluation_loop(trainer, loops[0])
        self._run.undo.append(partial(self._put_switch_back, runs, runs.inference_mode))
        self.switch(trainer, loops[0])
        if stage == "predict" and self._options.outputs == "drop":
            # Lightning has just set it from the call's argument; it still keeps what an epoch's writer needs.
            trainer.predict_loop.return_predictions = False
        self._change_batches(trainer, loops[0])

    def switch(self, trainer: Any, loop: Loop) -> None:
        """Validation inside fit and the sanity check share a loop: set it for the one that comes next."""
        if self._run is not None:
            self._run.switched_to = self._run.switches[loop]
            _lightning.evaluation_loop(trainer, loop).inference_mode = self._run.switched_to

    def loop_starts(self, trainer: Any, module: Any) -> None:
        """An evaluation loop begins."""
        run = self._run
        if run is None:
            return
        loop = _loop_of(trainer)
        if self._options.free_grads and not self._may_accumulate(trainer):
            freed = grads.free(module)
            if freed:
                self._voice.say_once(f"freed {text.size_of(freed)} of gradients before {LOOP_NAMES[loop]}", "freed")
        if self._options.isolate_grads:
            run.stash = grads.Stash(module)
        self._watch(module, loop)

    def batch(self, module: Any, batch: Any, first: bool) -> None:
        """Before and after each step."""
        if self._run is not None and self._run.watch is not None:
            self._look(self._run.watch, module, batch, first)

    def outputs(self, trainer: Any, module: Any, returned: Any) -> None:
        """What a step returned."""
        run = self._run
        if run is None or run.watch is None:
            return
        keeps = trainer.predicting and trainer.predict_loop.return_predictions and self._options.outputs == "keep"
        self._look_at_outputs(run.watch, returned, keeps)
        if trainer.testing and self._options.outputs == "cpu":
            outputs.compact_in_place(returned, module)

    def compact_predictions(self, trainer: Any) -> None:
        """Make small what Lightning has kept since the last time."""
        if self._run is None or not trainer.predicting or self._options.outputs != "cpu":
            return
        for kept in _lightning.kept_predictions(trainer):
            # All before the last were made small when they were the last.
            kept[-1:] = [outputs.compact(entry) for entry in kept[-1:]]

    def gathered(self, trainer: Any, module: Any) -> None:
        """All batches are through, and the module still holds what it gathered."""
        if self._run is not None and self._run.watch is not None:
            self._look_at_gathered(self._run.watch, trainer, module)

    def loop_ends(self, trainer: Any, module: Any) -> None:
        """An evaluation loop is over: what is left to look at waits until its mode is off."""
        run = self._run
        if run is None:
            return
        if run.watch is not None:
            loop = _lightning.evaluation_loop(trainer, run.watch.loop)
            run.unsettled = run.watch, _lightning.flags_before_evaluation(loop)
            self._conclude(run.watch, module)
        run.watch = None
        self._put_gradients_back()

    def settle(self, module: Any) -> None:
        """The first moment after a loop and outside of its mode."""
        run = self._run
        if run is not None and run.unsettled is not None:
            (watch, before), run.unsettled = run.unsettled, None
            self._look_at_what_is_left(watch, before, module)

    def training_batch_starts(self, trainer: Any, module: Any, batch: Any) -> None:
        """Before a training step; the first one of a fit is measured, the first one of an epoch looked at."""
        run = self._run
        if run is None:
            return
        self.settle(module)
        if trainer.current_epoch != run.epoch_looked_at:
            run.epoch_looked_at = trainer.current_epoch
            self._look_at_training(module, "before fit" if run.first_epoch else "in a hook")
            run.first_epoch = False
        run.batch_samples = None
        if run.counts_saved_bytes:
            run.counts_saved_bytes = False
            self._plan_count(trainer, module, batch)

    def forward_done(self, module: Any, loss: Any) -> None:
        """The training step's forward is over, and its graph is complete."""
        run = self._run
        if run is not None and run.batch_samples and isinstance(loss, Tensor):
            samples, run.batch_samples = run.batch_samples, None
            self._count_saved(module, loss, samples)

    def fail(self, module: Any, error: BaseException) -> None:
        """The run ends by an exception, perhaps in the middle of a loop."""
        run = self._run
        if run is None:
            return
        self._put_gradients_back()
        watch = run.watch
        if watch is not None:
            run.unsettled = watch, {}
            if watch.inference and isinstance(error, RuntimeError) and _is_about_gradients(str(error)):
                self._voice.warn(
                    f"{STEPS[watch.loop]} may have failed because inference_mode allows no gradients; if so, run it"
                    f" with NoGradEvaluation(mode={{{watch.loop!r}: 'no_grad'}})"
                )
        self.settle(module)

    def release(self) -> None:
        """The run is over: put back what was set, and refer to nothing of the program's."""
        if self._run is not None:
            for undo in self._run.undo:
                undo()
        self._run = None

    def _forget(self) -> None:
        self._ledger = Ledger()
        self._voice = _lightning.Voice(self._namespace, "NoGradEvaluation")
        self._backward_runs = 0

    @diagnostic
    def _scan(self, trainer: Any, module: Any, stage: str) -> None:
        assert self._run is not None
        loop = _LOOPS_OF[stage][0]
        prefix = "on_validation" if stage == "fit" else f"on_{stage}"
        found = scan(module, [STEPS[loop], *(f"{prefix}_{when}" for when in _HOOKS)], trainer.callbacks)
        self._run.found = found
        for need in found.needs:
            message = f"{STEPS[loop]} may need gradients: {need} -> no_grad, with gradients where your code wants them"
            if need.what == "torch.autograd.grad":
                message += ". Give it create_graph=self.training, so that evaluation keeps no graph"
            self._note(loop, "needs_gradients", f"{need.function} ({need.place})", message)
        for where in found.into_train_mode:
            message = (
                f"{STEPS[loop]} puts a module into train mode in {where}: dropout and batch norm act as in training"
            )
            self._note(loop, "train_mode", where, message)

    def _give_mode(self, trainer: Any, loop: Loop) -> None:
        assert self._run is not None
        needs, compiled = self._run.found.needs, self._run.found.compiled
        facts = Facts(
            inference_mode=_lightning.evaluation_loop(trainer, loop).inference_mode,
            ruled_out=_lightning.rules_out_inference_mode(trainer, self._namespace),
            need=str(needs[0]) if needs else None,
            backward_runs=self._backward_runs,
            compiled=compiled[0] if compiled else None,
        )
        decision = decide(loop, self._options.request(loop), facts, self._options.asked_through(loop))
        if decision.warning is not None:
            self._voice.warn(decision.warning)
        self._ledger.because(loop, decision.mode, decision.reason)
        self._run.switches[loop] = decision.mode == "inference_mode"

    def _change_batches(self, trainer: Any, loop: Loop) -> None:
        size = self._options.eval_batch_size
        if size is None or self._run is None:
            return
        if loop == "predict":
            self._voice.say_once(
                "eval_batch_size: predict returns one item a batch, so it keeps its batches", "predict"
            )
            return
        rebatcher = Rebatcher(trainer, self._namespace, loop, size)

        def change(loaders: list[Any], combined: str) -> list[Any]:
            changed, refused = rebatcher.change(loaders, combined)
            if refused is not None:
                reason, metrics = refused
                where = ", ".join(metrics) or LOOP_NAMES[loop]
                message = f"{LOOP_NAMES[loop]} keeps its batch size instead of eval_batch_size={size}: {reason}"
                self._note(loop, "metric_changes_with_batch", where, message)
            return changed

        self._run.undo.append(_lightning.after_loaders_are_set_up(_lightning.evaluation_loop(trainer, loop), change))

    def _may_accumulate(self, trainer: Any) -> bool:
        """Whether gradients may still be wanted: where the program steps by itself, nobody can tell but it."""
        if _loop_of(trainer) != "fit_validation":
            return False
        return not trainer.lightning_module.automatic_optimization or _lightning.accumulation_is_open(trainer)

    @diagnostic
    def _watch(self, module: Any, loop: Loop) -> None:
        assert self._run is not None
        counts = loop == "fit_validation" and not self._run.found.compiled and not self._backward_runs
        self._run.watch = LoopWatch(loop, module, lambda issue: self._keep(loop, issue), count_backward=counts)

    @diagnostic
    def _look(self, watch: LoopWatch, module: Any, batch: Any, first: bool) -> None:
        self._ledger.ran(watch.loop, watch.batch(module, first), samples_in(batch) if first else None)

    @diagnostic
    def _look_at_outputs(self, watch: LoopWatch, returned: Any, kept: bool) -> None:
        watch.outputs(returned, kept)

    @diagnostic
    def _look_at_gathered(self, watch: LoopWatch, trainer: Any, module: Any) -> None:
        watch.before_epoch_end(module, _lightning.stored_metrics(trainer))

    @diagnostic
    def _conclude(self, watch: LoopWatch, module: Any) -> None:
        assert self._run is not None
        loop = watch.loop
        runs = watch.end(module, isolated=self._options.isolate_grads)
        if runs and not self._backward_runs:
            self._backward_runs = runs
            if not self._run.found.needs:
                message = (
                    f"{STEPS[loop]} ran autograd {runs} times in {LOOP_NAMES[loop]}, which its source did not show ->"
                    " no_grad for validate, test and predict too"
                )
                self._note(loop, "needs_gradients", f"{STEPS[loop]}()", message)
        known = self._ledger.mode(loop)
        if known is not None:
            self._voice.say_once(f"{LOOP_NAMES[loop]}: {known[0]} ({known[1]})", loop)

    @diagnostic
    def _look_at_what_is_left(self, watch: LoopWatch, before: dict[str, bool], module: Any) -> None:
        watch.clone_inference_tensors(module)
        name = f"on_{'test' if watch.loop == 'test' else 'validation'}_model_train"
        watch.flags_changed(module, before, name if is_users(getattr(type(module), name)) else None)

    @diagnostic
    def _look_at_training(self, module: Any, when: str) -> None:
        if flags.all_in_eval_mode(module):
            message = (
                f"the whole model is in eval mode during training (.eval() was called {when}): dropout and batch norm"
                " are off. Call model.train() again, or freeze submodules only"
            )
            self._note(_TRAINING, "train_mode", type(module).__name__, message)

    @diagnostic
    def _plan_count(self, trainer: Any, module: Any, batch: Any) -> None:
        assert self._run is not None
        if not scan(module, ["training_step"]).compiled and not _lightning.shards_parameters(trainer, self._namespace):
            self._run.batch_samples = samples_in(batch)

    @diagnostic
    def _count_saved(self, module: Any, loss: Tensor, samples: int) -> None:
        kept = saved_bytes(loss, leave_out=[*module.parameters(), *module.buffers()])
        if kept:
            self._ledger.bytes_per_sample = kept / samples

    def _put_switch_back(self, runs: Any, before: bool) -> None:
        # Where two of these meet in one Trainer, the other may have put it back already.
        if self._run is not None and runs.inference_mode == self._run.switched_to:
            runs.inference_mode = before

    def _put_gradients_back(self) -> None:
        if self._run is not None and self._run.stash is not None:
            self._run.stash.put_back()
            self._run.stash = None

    def _keep(self, loop: str, issue: EvaluationIssue) -> None:
        self._ledger.add(loop, issue)
        # What has been dealt with is told, the rest is a warning.
        tell = self._voice.say_once if issue.kind in _DEALT_WITH else self._voice.warn_once
        tell(issue.message, f"{issue.kind} {issue.where}")

    def _note(self, loop: str, kind: Kind, where: str, message: str) -> None:
        self._keep(loop, EvaluationIssue(kind, where, message))


def _is_about_gradients(message: str) -> bool:
    return "grad" in message or "nference tensor" in message


def _loop_of(trainer: Any) -> Loop:
    if trainer.sanity_checking:
        return "sanity"
    loop: Loop = "fit_validation" if trainer.state.fn == "fit" else trainer.state.fn.value
    return loop
