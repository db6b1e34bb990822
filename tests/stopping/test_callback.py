"""EarlyStopping in a real Trainer: what the public cases do not cover."""

import math

import pytest
import torch
from torch import nn

import lightning_speedups as ls
from tests.helpers import ScriptedModule, loader, namespace
from tests.stopping.runs import fit, heard

pl = namespace()


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({}, {}),
        ({"patience": 1, "min_delta": 0.15}, {}),
        ({"stopping_threshold": 0.65}, {}),
        ({"divergence_threshold": 0.95}, {"val_check_interval": 0.5}),
        ({"patience": 2, "check_on_train_epoch_end": False}, {"check_val_every_n_epoch": 2}),
        ({"patience": 1}, {"val_check_interval": 0.5, "min_epochs": 1}),
    ],
)
def test_a_trainer_stops_at_the_step_where_stock_stops_it(arguments, settings):
    curve = [1.0, 0.9, 0.7, 0.8, 0.6, 0.7, 0.65, 0.66, 0.67, 0.68]
    ours, stock = ls.EarlyStopping("val_loss", **arguments), pl.callbacks.EarlyStopping("val_loss", **arguments)
    mine, theirs = (fit(ScriptedModule(curve), callback, **settings) for callback in (ours, stock))
    assert mine.global_step == theirs.global_step
    for attribute in ("wait_count", "stopped_epoch", "stopping_reason", "patience", "min_delta", "monitor", "mode"):
        assert getattr(ours, attribute) == getattr(stock, attribute), attribute
    assert ours.state_key == stock.state_key
    assert set(stock.state_dict()) < set(ours.state_dict())


def test_a_value_that_was_not_logged_again_is_not_counted():
    callback = ls.EarlyStopping("val_loss", patience=3, check_on_train_epoch_end=True)
    trainer = fit(ScriptedModule([1.0, 2.0, 2.0, 2.0]), callback, max_epochs=20, check_val_every_n_epoch=2)
    assert [check.epoch for check in callback.report.history] == [1, 3, 5, 7]
    assert trainer.current_epoch == 8


def test_other_callbacks_that_look_at_the_metrics_do_not_make_them_new():
    class Looks(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            dict(trainer.callback_metrics)

        on_train_epoch_end = on_validation_end

    callback = ls.EarlyStopping("val_loss", patience=3, check_on_train_epoch_end=True)
    fit(ScriptedModule([1.0, 2.0]), callback, max_epochs=6, check_val_every_n_epoch=2, others=[Looks()])
    assert [check.epoch for check in callback.report.history] == [1, 3, 5]


def test_a_training_metric_is_new_at_every_step():
    callback = ls.EarlyStopping("train_loss", patience=100, check_every_n_steps=2)
    fit(ScriptedModule(), callback, loader(n=40), max_epochs=1)
    assert [check.step for check in callback.report.history] == [2, 4, 6, 8, 10]


class Stamped(ScriptedModule):
    """Weights and BatchNorm statistics carry the epoch that they are from."""

    def __init__(self, val):
        super().__init__(val)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("ema", torch.zeros(1), persistent=False)

    def on_train_epoch_start(self):
        with torch.no_grad():
            for tensor in (self.linear.weight, self.norm.running_mean, self.ema):
                tensor.fill_(self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def stamps(self):
        return {float(tensor.flatten()[0]) for tensor in (self.linear.weight, self.norm.running_mean, self.ema)}


def test_buffers_come_back_with_the_weights_and_checkpoints_stay_as_they_were(tmp_path):
    module = Stamped([3.0, 2.0, 1.0, 5.0, 6.0])
    saver = pl.callbacks.ModelCheckpoint(tmp_path, save_last=True)
    callback = ls.EarlyStopping("val_loss", patience=2, restore_best=True)
    fit(module, callback, others=[saver], enable_checkpointing=True)
    assert module.stamps() == {2.0}
    assert callback.report.restored
    last = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert float(last["linear.weight"][0, 0]) == 4.0


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), RuntimeError("the cluster went away")])
def test_a_checkpoint_written_because_of_an_exception_fits_its_optimizer(tmp_path, raised):
    class Breaks(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 4:
                raise raised

    module = Stamped([3.0, 2.0, 1.0, 5.0, 6.0])
    saver = pl.callbacks.OnExceptionCheckpoint(tmp_path)
    callback = ls.EarlyStopping("val_loss", patience=3, restore_best=True)
    with pytest.raises((SystemExit, RuntimeError)):
        fit(module, callback, others=[saver, Breaks()], enable_checkpointing=True)
    assert module.stamps() == {2.0}
    saved = torch.load(tmp_path / "on_exception.ckpt", weights_only=True)
    assert float(saved["state_dict"]["linear.weight"][0, 0]) == 3.0
    assert saved["global_step"] == 8


def test_with_averaged_weights_the_best_average_comes_back():
    """Validation measures the average of the weights, so that average is what was best."""

    class Seen(ScriptedModule):
        def validation_step(self, batch, batch_idx):
            self.measured = [*getattr(self, "measured", []), self.linear.weight.detach().clone()]

    module, averaging = Seen([3.0, 1.0, 5.0, 6.0]), pl.callbacks.EMAWeightAveraging(decay=0.5)
    callback = ls.EarlyStopping("val_loss", patience=2, restore_best=True)
    fit(module, callback, val=loader(n=4), others=[averaging])
    assert torch.equal(module.linear.weight, module.measured[1])
    assert not torch.equal(module.linear.weight, module.measured[-1])


def test_a_disk_that_is_full_costs_no_run(tmp_path):
    blocked = tmp_path / "a_file"
    blocked.write_text("")
    module = Stamped([3.0, 1.0, 5.0, 6.0])
    callback = ls.EarlyStopping("val_loss", patience=2, restore_best=True, snapshot="disk")
    said = heard(lambda: fit(module, callback, default_root_dir=blocked / "below"))
    assert module.stamps() == {1.0}
    assert len(said) == 1
    assert "kept in memory" in said[0]


def test_no_file_of_a_disk_snapshot_is_left(tmp_path):
    callback = ls.EarlyStopping("val_loss", patience=2, restore_best=True, snapshot="disk")
    module = Stamped([3.0, 1.0, 5.0, 6.0])
    fit(module, callback, default_root_dir=tmp_path / "root")
    assert module.stamps() == {1.0}
    assert not list((tmp_path / "root").rglob("*best_weights*"))


@pytest.mark.parametrize("save_top_k", [1, 0])
def test_after_a_resume_past_the_best_a_file_of_exactly_that_step_is_used(tmp_path, save_top_k):
    def saver():
        best = {"save_top_k": save_top_k, "monitor": "val_loss"}
        return pl.callbacks.ModelCheckpoint(tmp_path, filename="best", **best)

    first = ls.EarlyStopping("val_loss", patience=9)
    curve = [3.0, 1.0, 5.0, 6.0]
    trainer = fit(Stamped(curve), first, max_epochs=4, others=[saver()], enable_checkpointing=True)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    second = ls.EarlyStopping("val_loss", patience=9, restore_best=True)
    module = Stamped([7.0, 8.0])
    run = {"max_epochs": 6, "others": [saver()], "enable_checkpointing": True, "ckpt_path": str(tmp_path / "end.ckpt")}
    said = heard(lambda: fit(module, second, **run))
    if save_top_k:
        assert module.stamps() - {5.0} == {1.0}, "the buffer outside the state dict is in no file"
        assert second.report.restored
    else:
        assert module.stamps() == {5.0}
        assert not second.report.restored
        assert any("before the resume" in each for each in said)


def test_a_resume_at_the_best_step_has_the_best_weights(tmp_path):
    trainer = fit(Stamped([3.0, 2.0, 1.0]), ls.EarlyStopping("val_loss", patience=9), max_epochs=3)
    trainer.save_checkpoint(tmp_path / "best.ckpt")
    module, callback = Stamped([5.0, 6.0]), ls.EarlyStopping("val_loss", patience=9, restore_best=True)
    fit(module, callback, max_epochs=5, ckpt_path=str(tmp_path / "best.ckpt"))
    assert float(module.linear.weight.flatten()[0]) == 2.0
    assert callback.report.best_step == 6


def test_a_fit_that_goes_on_keeps_its_history():
    module, callback = (
        Stamped([3.0, 2.0, 1.0, 5.0, 6.0, 7.0]),
        ls.EarlyStopping("val_loss", patience=3, restore_best=True),
    )
    trainer = fit(module, callback, max_epochs=4)
    trainer.fit_loop.max_epochs = 10
    trainer.fit(module, loader(), loader())
    assert trainer.current_epoch == 6
    assert callback.report.best_epoch == 2
    assert float(module.linear.weight.flatten()[0]) == 2.0


def test_a_stock_checkpoint_is_taken_up_and_ours_by_the_stock_class(tmp_path):
    curve = [1.0, 2.0, 2.0, 2.0, 2.0]
    stock = fit(ScriptedModule(curve), pl.callbacks.EarlyStopping("val_loss", patience=4), max_epochs=2)
    stock.save_checkpoint(tmp_path / "stock.ckpt")
    callback = ls.EarlyStopping("val_loss", patience=4)
    assert fit(ScriptedModule([2.0]), callback, ckpt_path=str(tmp_path / "stock.ckpt")).current_epoch == 5
    ours = fit(ScriptedModule(curve), ls.EarlyStopping("val_loss", patience=4), max_epochs=2)
    ours.save_checkpoint(tmp_path / "ours.ckpt")
    stock = pl.callbacks.EarlyStopping("val_loss", patience=4)
    assert fit(ScriptedModule([2.0]), stock, ckpt_path=str(tmp_path / "ours.ckpt")).current_epoch == 5


class Scheduled(ScriptedModule):
    def __init__(self, scheduler, **config):
        super().__init__([1.0])
        self.scheduler, self.config = scheduler, config

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.scheduler(optimizer), **self.config}}


def plateau(patience):
    return lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=patience)


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)


def cosine_after_warm_up(optimizer):
    schedulers = torch.optim.lr_scheduler
    warm_up, cosine = schedulers.LinearLR(optimizer), schedulers.CosineAnnealingLR(optimizer, 9)
    return schedulers.SequentialLR(optimizer, [warm_up, cosine], [1])


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        (Scheduled(plateau(3), monitor="val_loss"), {"patience": 3}, "ReduceLROnPlateau"),
        (Scheduled(plateau(3), monitor="val_loss"), {"patience": 4}, None),
        (Scheduled(plateau(3), monitor="train_loss"), {"patience": 3}, None),
        (Scheduled(one_cycle, interval="step"), {"patience": 3}, "OneCycleLR anneals the learning rate until step 20"),
        (Scheduled(one_cycle, interval="step"), {"patience": 3, "start_from": ("steps", 20)}, None),
        (Scheduled(plateau(3), monitor="val_loss"), {"patience": 3, "start_from": ("epochs", 3)}, None),
        (Scheduled(one_cycle, interval="step"), {"patience": 10}, None),
        (Scheduled(cosine_after_warm_up), {"patience": 3}, "CosineAnnealingLR"),
        (Scheduled(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3)), {"patience": 3}, None),
    ],
)
def test_a_patience_that_fights_the_schedule_is_told(module, arguments, words):
    said = heard(lambda: fit(module, ls.EarlyStopping("val_loss", **arguments)))
    assert said == [] if words is None else words in said[0]


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        ({}, {"check_val_every_n_epoch": 20}, "every 20 epochs"),
        ({}, {"limit_val_batches": 0, "val_check_interval": 0.5}, "the run has none"),
        ({"check_every_n_steps": 100}, {}, "step 100"),
        ({}, {"check_val_every_n_epoch": None, "val_check_interval": 50}, "step 50"),
        ({}, {}, None),
    ],
)
def test_a_run_in_which_no_check_can_happen_is_told(arguments, settings, words):
    said = heard(
        lambda: fit(ScriptedModule([1.0]), ls.EarlyStopping("val_loss", **arguments), max_epochs=4, **settings)
    )
    assert said == [] if words is None else words in said[0] and "no check can ever happen" in said[0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"monitor": 5}, "got 5"),
        ({"monitor": ""}, "metric's name"),
        ({"monitor": []}, "got []"),
        ({"monitor": [("a", "up")]}, "'min', 'max'"),
        ({"monitor": ["a", "b"]}, "'val_acc', 'max'"),
        ({"monitor": [("a", "min"), ("a", "max")]}, "once"),
        ({"mode": "auto"}, "'auto'"),
        ({"patience": "10"}, "'10'"),
        ({"patience": -1}, "at least 0"),
        ({"patience": 2.5}, "2.5"),
        ({"min_delta": -0.1}, "-0.1"),
        ({"min_delta": None}, "None"),
        ({"min_delta": 5, "min_delta_mode": "rel"}, "share"),
        ({"strict": "no"}, "'no'"),
        ({"restore_best": "yes"}, "True or False"),
        ({"combine": "both"}, "'both'"),
        ({"snapshot": "cloud"}, "'disk'"),
        ({"on_resume": "merge"}, "'reset'"),
        ({"nan_policy": "raise"}, "'raise'"),
        ({"rule": "pq", "rule_strip": 1}, "at least 2"),
        ({"rule": "gl", "rule_alpha": -1}, "-1"),
        ({"check_every_n_steps": 0}, "at least 1"),
        ({"check_every_n_steps": 5, "check_on_train_epoch_end": True}, "both"),
        ({"monitor": [("a", "min"), ("b", "min")], "stopping_threshold": 0.1}, "one value per monitor (2"),
        ({"monitor": [("a", "min"), ("b", "min")], "baseline": [0.1]}, "[0.1]"),
        ({"name": ""}, "non-empty"),
        ({"report_dir": 5}, "path"),
        ({"start_from": "5 epochs"}, "('epochs', 5)"),
    ],
)
def test_a_wrong_argument_is_refused_when_it_is_given(wrong, words):
    with pytest.raises(pl.utilities.exceptions.MisconfigurationException) as error:
        ls.EarlyStopping(**{"monitor": "val_loss", **wrong})
    assert words in str(error.value)
    assert str(error.value).startswith("EarlyStopping: ")


def test_a_value_that_is_not_counted_does_not_withdraw_a_held_stop(said):
    curve = [1.0, 2.0, 2.0, 2.0, 2.0, math.nan, 0.5]
    callback = ls.EarlyStopping("val_loss", patience=2, nan_policy="ignore")
    trainer = fit(ScriptedModule(curve), callback, min_epochs=6)
    assert trainer.current_epoch == 6
    assert "withdrawn" not in said()


def test_a_value_that_is_not_counted_does_not_hold_up_the_other_metrics():
    class Two(ScriptedModule):
        def on_validation_epoch_end(self):
            self.log("a", [1.0, 1.0, math.nan][min(self.checks, 2)])
            self.log("b", [2.0, 1.0, 1.0][min(self.checks, 2)])
            self.checks += 1

    callback = ls.EarlyStopping([("a", "min"), ("b", "min")], patience=1, combine="all", nan_policy="ignore")
    assert fit(Two(), callback).current_epoch == 3


def test_thresholds_by_metric():
    monitors = [("val_loss", "min"), ("train_loss", "min")]
    callback = ls.EarlyStopping(monitors, patience=50, stopping_threshold=[0.5, None], combine="any")
    trainer = fit(ScriptedModule([1.0, 0.9, 0.4, 0.3]), callback)
    assert (trainer.current_epoch, callback.report.reason) == (3, "threshold")


@pytest.mark.parametrize(("rule", "alpha"), [("gl", 50.0), ("pq", 0.01), ("up", 2)])
def test_prechelts_rules_end_a_run_that_generalizes_worse(rule, alpha):
    curve = [1.0, 0.9, *(1.0 + index / 10 for index in range(20))]
    callback = ls.EarlyStopping("val_loss", rule=rule, rule_alpha=alpha, rule_strip=2)
    trainer = fit(ScriptedModule(curve), callback, loader(n=64), max_epochs=20)
    assert callback.report.reason == rule
    assert 3 < trainer.current_epoch < 20


def test_the_progress_quotient_without_a_training_loss_is_refused():
    class Manual(ScriptedModule):
        def __init__(self):
            super().__init__([1.0])
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            pass

    with pytest.raises(pl.utilities.exceptions.MisconfigurationException, match="training loss"):
        fit(Manual(), ls.EarlyStopping("val_loss", rule="pq"))


def test_a_patience_in_seconds_goes_on_after_a_resume(tmp_path):
    callback = ls.EarlyStopping("val_loss", patience=1e6, patience_unit="seconds")
    trainer = fit(ScriptedModule([1.0, 2.0]), callback, max_epochs=2)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    state = torch.load(tmp_path / "a.ckpt", weights_only=True)
    own = next(iter(state["callbacks"].values()))["lightning_speedups"]
    own["seconds"] = 5e5
    torch.save(state, tmp_path / "b.ckpt")
    resumed = ls.EarlyStopping("val_loss", patience=4e5, patience_unit="seconds")
    fit(ScriptedModule([2.0]), resumed, ckpt_path=str(tmp_path / "b.ckpt"), max_epochs=10)
    assert (resumed.report.reason, resumed.report.stopped_epoch) == ("patience", 2)


def test_double_precision_metrics_are_judged_in_double_precision():
    class Double(ScriptedModule):
        def on_validation_epoch_end(self):
            self.log("val_loss", torch.tensor(1.0 - 1e-12 * self.checks, dtype=torch.float64))
            self.checks += 1

    callback = ls.EarlyStopping("val_loss", patience=2)
    fit(Double(), callback, max_epochs=6)
    assert callback.report.reason == "none"


def test_an_endless_loader_counts_whole_epochs():
    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([torch.zeros(8) for _ in range(8)])

    rows = torch.utils.data.DataLoader(Rows(), batch_size=4, collate_fn=lambda batch: [torch.stack(batch)])
    callback = ls.EarlyStopping("val_loss", patience=2, patience_unit="epochs")
    trainer = fit(ScriptedModule([1.0, 2.0, 2.0, 2.0]), callback, rows, max_epochs=8)
    assert trainer.current_epoch == 3
    assert (callback.report.epochs_saved, callback.report.steps_saved) == (5, None)


def test_validation_by_the_clock_has_no_interval_in_epochs(said):
    callback = ls.EarlyStopping("val_loss", patience=3)
    fit(ScriptedModule([1.0]), callback, max_epochs=2, val_check_interval="00:00:00:01")
    assert said().endswith("patience on val_loss: 3 checks")
