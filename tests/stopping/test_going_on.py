"""EarlyStopping where a run goes on, changes under way, or ends badly."""

import json

import pytest
import torch

import lightning_speedups as ls
from tests.helpers import ScriptedModule, loader, namespace, quiet_trainer
from tests.stopping.runs import fit, heard

pl = namespace()


def test_a_full_disk_that_torch_reports_as_a_runtime_error_costs_no_run(monkeypatch, tmp_path):
    def full(tensors, path):
        path.write_bytes(b"half")
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 960 vs 854")

    module = ScriptedModule([3.0, 1.0, 5.0, 6.0])
    callback = ls.EarlyStopping("val_loss", patience=2, restore_best=True, snapshot="disk")
    monkeypatch.setattr(torch, "save", full)
    said = heard(lambda: fit(module, callback, default_root_dir=tmp_path))
    assert callback.report.restored
    assert len(said) == 1 and "kept in memory" in said[0]
    assert not list(tmp_path.rglob("*best_weights*"))


def test_a_copy_that_somebody_deleted_costs_no_run(tmp_path):
    class Deletes(pl.Callback):
        def on_train_end(self, trainer, pl_module):
            for path in tmp_path.rglob(".best_weights*"):
                path.unlink()

    callback = ls.EarlyStopping("val_loss", patience=2, restore_best=True, snapshot="disk")
    run = {"default_root_dir": tmp_path, "others": [Deletes()]}
    said = heard(lambda: fit(ScriptedModule([3.0, 1.0, 5.0, 6.0]), callback, **run))
    assert not callback.report.restored
    assert "stay at the last step" in said[-1]


def test_a_stock_checkpoint_counts_other_units_from_the_resume_on(tmp_path):
    stock = fit(ScriptedModule([2.0, 1.0, 3.0]), pl.callbacks.EarlyStopping("val_loss", patience=9), max_epochs=3)
    stock.save_checkpoint(tmp_path / "stock.ckpt")
    callback = ls.EarlyStopping("val_loss", patience=6, patience_unit="steps", restore_best=True)
    said = heard(lambda: fit(ScriptedModule([3.0]), callback, ckpt_path=str(tmp_path / "stock.ckpt")))
    assert callback.report.stopped_step == 12, "resumed at step 6"
    assert "unknown step" in said[-1]
    assert "before the resume" in str(callback.report)


def test_another_module_in_the_same_trainer_begins_anew():
    callback = ls.EarlyStopping("val_loss", patience=3, restore_best=True)
    trainer = fit(ScriptedModule([1.0, 2.0, 3.0]), callback, max_epochs=3)
    trainer.fit_loop.max_epochs = 5
    trainer.fit(ScriptedModule([9.0, 8.0]), loader(), loader())
    assert (callback.report.best_score, callback.report.restored) == (8.0, True)


@pytest.mark.parametrize(("attribute", "value"), [("patience", 6), ("wait_count", 0)])
def test_what_the_program_sets_under_way_is_followed_as_in_stock(attribute, value):
    class Sets(pl.Callback):
        def __init__(self, target):
            self.target = target

        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                setattr(self.target, attribute, value)

    ours, stock = (cls("val_loss", patience=3) for cls in (ls.EarlyStopping, pl.callbacks.EarlyStopping))
    epochs = [fit(ScriptedModule([1.0, 2.0]), each, others=[Sets(each)]).current_epoch for each in (ours, stock)]
    assert epochs[0] == epochs[1] > 4


def test_restoring_over_an_average_of_weights_is_told():
    averaging = pl.callbacks.StochasticWeightAveraging(swa_lrs=1e-2)
    callback = ls.EarlyStopping("val_loss", patience=9, restore_best=True)
    said = heard(lambda: fit(ScriptedModule([1.0, 2.0]), callback, max_epochs=3, others=[averaging]))
    assert len(said) == 1 and "StochasticWeightAveraging" in said[0]


def test_a_smoothed_value_is_called_smoothed(said):
    callback = ls.EarlyStopping("val_loss", smoothing=0.9, verbose=True, restore_best=True)
    fit(ScriptedModule([3.0, 2.0]), callback, max_epochs=2)
    assert "val_loss (smoothed) improved to 2.9" in said()
    assert "restored epoch 1 (val_loss (smoothed) 2.9)" in said()


def test_a_diverged_value_is_never_the_best():
    callback = ls.EarlyStopping("val_loss", divergence_threshold=5.0)
    fit(ScriptedModule([99.0]), callback)
    assert (callback.report.reason, callback.report.best_score) == ("divergence", None)


def test_steps_of_manual_optimization_are_not_guessed():
    class TwoOptimizers(ScriptedModule):
        def __init__(self):
            super().__init__([1.0, 2.0])
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self(batch[0]).square().mean())
                optimizer.step()

        def configure_optimizers(self):
            return [super(TwoOptimizers, self).configure_optimizers() for _ in range(2)]

    callback = ls.EarlyStopping("val_loss", patience=2)
    fit(TwoOptimizers(), callback)
    assert (callback.report.epochs_saved, callback.report.steps_saved) == (7, None)


def test_tuners_resume_nothing_and_nothing_is_said(said):
    trainer = quiet_trainer(max_epochs=1, callbacks=[ls.EarlyStopping("val_loss")])
    pl.tuner.Tuner(trainer).scale_batch_size(_Sized(), max_trials=1)
    assert "resumed" not in said()


class _Sized(ScriptedModule):
    def __init__(self):
        super().__init__([1.0])
        self.batch_size = 2

    def train_dataloader(self):
        return loader(batch_size=self.batch_size)

    def val_dataloader(self):
        return loader()


def test_a_run_that_ends_badly_is_reported_too(tmp_path):
    class Breaks(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                raise ValueError("broken")

    callback = ls.EarlyStopping("val_loss", report_dir=tmp_path / "out")
    with pytest.raises(ValueError, match="broken"):
        fit(ScriptedModule([1.0]), callback, others=[Breaks()])
    assert len(json.loads((tmp_path / "out" / "early_stopping.json").read_text())["history"]) == 2
