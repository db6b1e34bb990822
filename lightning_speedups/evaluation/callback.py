"""The ``NoGradEvaluation`` callback: what the Trainer calls, handed on to the conductor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from lightning_speedups import _lightning
from lightning_speedups._lightning import LightningModule, StockCallback, Trainer
from lightning_speedups.evaluation import page
from lightning_speedups.evaluation.conductor import Conductor
from lightning_speedups.evaluation.report import EvaluationReport
from lightning_speedups.evaluation.settings import checked_options


class NoGradEvaluation(StockCallback):
    """Evaluate without gradients, in the mode that fits, and know that it was so.

    Says which mode really ran in each loop and why. Steps that need gradients (forces, physics-informed losses,
    attacks, adaptation at test time) work in validate, test and predict as they do inside fit. What is returned, logged
    or stored in evaluation keeps no graph without a word; tensors that ``inference_mode`` made and the module kept are
    cloned, so that training can use them. With the defaults it changes no weight, metric, order or random stream.

    Args:
        mode: ``"auto"`` keeps Lightning's mode in every loop, and drops from inference_mode to no_grad where the step
            needs gradients or a compiled module would compile one more graph. A dict asks for a mode by loop
            (``"fit_validation"``, ``"sanity"``, ``"validate"``, ``"test"``, ``"predict"``): ``{"test": "no_grad"}``.
        eval_batch_size: samples in a batch of validation and test, in place of the loaders' own. Before the first use
            a copy of the module evaluates the same samples at both sizes; where a logged metric differs (whole numbers
            at all, others by more than 1e-5) the loaders stay as they are, and it says why. None leaves them alone.
            Loaders of training and predict are never touched.
        outputs: what is kept of test and predict: ``"keep"`` all as stock, ``"cpu"`` moved there as it comes, without
            its graph, small views of large batches cloned; ``"drop"`` no predictions, for programs that write them.
        free_grads: drop ``.grad`` before validation when no accumulation window is open. Lightning does so itself
            unless ``on_validation_model_zero_grad`` is overridden.
        isolate_grads: take ``.grad`` away during evaluation and put it back afterwards.
        report_dir: folder that gets ``no_grad_evaluation.json`` and a part of ``report.html``.

    Raises:
        MisconfigurationException: for an argument that no evaluation could work with.

    It logs no metric. Source: ``torch.inference_mode`` and "Autograd mechanics" in torch's documentation.

    Example:
        >>> import lightning_speedups as ls
        >>> callback = ls.NoGradEvaluation(mode={"test": "no_grad"}, outputs="cpu")
    """

    namespace: str

    def __init__(
        self,
        mode: Literal["auto"] | dict[str, str] = "auto",
        eval_batch_size: int | Literal["auto"] | None = None,
        outputs: Literal["keep", "cpu", "drop"] = "keep",
        free_grads: bool = False,
        isolate_grads: bool = False,
        report_dir: str | Path | None = None,
    ) -> None:
        super().__init__()
        self.mode, self.eval_batch_size, self.outputs = mode, eval_batch_size, outputs
        self.free_grads, self.isolate_grads, self.report_dir = free_grads, isolate_grads, report_dir
        try:
            self._conductor = Conductor(self.namespace, checked_options(self))
        except ValueError as error:
            raise _lightning.misconfiguration(self.namespace, f"NoGradEvaluation: {error}") from error

    @property
    def report(self) -> EvaluationReport:
        """What happened so far: each loop's last run with this module."""
        return self._conductor.report

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a Trainer that does not fit; give each loop of this run its mode."""
        _lightning.require_same_namespace(self, trainer)
        self._conductor.begin(trainer, pl_module)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The sanity check runs in the loop of validation: give it its own mode."""
        self._conductor.switch(trainer, "sanity")

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to the mode of validation."""
        self._conductor.switch(trainer, "fit_validation")
        self._conductor.settle(pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """The first moment after a validation within an epoch; the first forward of a fit is measured."""
        self._conductor.training_batch_starts(trainer, pl_module, batch)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        """The forward is over, and its graph is there to be read."""
        self._conductor.forward_done(pl_module, loss)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first moment after a validation at an epoch's end."""
        self._conductor.settle(pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to watch; take gradients away where that is asked for."""
        self._conductor.loop_starts(trainer, pl_module)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Look at the mode before the step; make small what the step before it left."""
        self._conductor.compact_predictions(trainer)
        self._conductor.batch(pl_module, batch, first=batch_idx == 0)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Look at the mode after the step, and at what it returned."""
        self._conductor.batch(pl_module, batch, first=batch_idx == 0)
        self._conductor.outputs(trainer, pl_module, outputs)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at what was gathered."""
        self._conductor.compact_predictions(trainer)
        self._conductor.gathered(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put gradients back; say what there was."""
        self._conductor.loop_ends(trainer, pl_module)

    on_test_start = on_predict_start = on_validation_start
    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end
    on_test_end = on_predict_end = on_validation_end

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the report of the fit."""
        self._write(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Look at what the loop left on the module; refer to nothing of the program's from here on."""
        self._conductor.settle(pl_module)
        self._conductor.release()
        if stage != "fit":
            self._write(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put back what was taken, also out of the middle of a loop."""
        self._conductor.fail(pl_module, exception)
        self._conductor.release()

    def _write(self, trainer: Trainer) -> None:
        if self.report_dir is not None and trainer.is_global_zero:
            page.write(self.report_dir, self.report)
