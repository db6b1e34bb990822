"""Situations from public reports, ES-05, ES-07 and ES-11: mistyped names, resumed runs, the weights afterwards."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import lightning_speedups as ls
from tests.helpers import ScriptedModule, loader, quiet_trainer


class LogsInSanity(ScriptedModule):
    """Logs ``val_loss`` and ``val_acc`` in the sanity check as well, as most modules do."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log_dict({"val_loss": 1.0, "val_acc": 0.5})

    def on_validation_epoch_end(self) -> None:
        pass


def steps_until_raised(stopping: Any, module: Any, match: str, **trainer: Any) -> int:
    """Fit until the mistyped monitor is found; returns the optimizer steps done by then."""
    run = quiet_trainer(max_epochs=5, callbacks=[stopping], **trainer)
    with pytest.raises(RuntimeError, match=match):
        run.fit(module, loader(), loader())
    return run.global_step


class TestMistypedMonitor:
    """ES-05: a name that nothing logs is found as early as it can be, and the right one is named."""

    @pytest.mark.parametrize("monitor", ["val_los", "vall_loss", "val/loss", [("val_acc", "max"), ("val_lss", "min")]])
    def test_a_misspelling_is_found_before_the_first_step(self, monitor: Any) -> None:
        stopping = ls.EarlyStopping(monitor)
        assert steps_until_raised(stopping, LogsInSanity(), "did you mean 'val_loss'", num_sanity_val_steps=2) == 0

    def test_without_a_sanity_check_it_is_found_at_the_first_check(self) -> None:
        assert steps_until_raised(ls.EarlyStopping("val_los"), ScriptedModule([1, 2]), "val_loss") == 2

    def test_a_sanity_check_that_logs_nothing_says_nothing(self) -> None:
        stopping = ls.EarlyStopping("val_los")
        assert steps_until_raised(stopping, ScriptedModule([1, 2]), "val_loss", num_sanity_val_steps=2) == 2

    def test_a_metric_of_training_may_be_absent_from_the_sanity_check(self) -> None:
        run = quiet_trainer(max_epochs=2, callbacks=[ls.EarlyStopping("train_loss")], num_sanity_val_steps=2)
        run.fit(LogsInSanity(), loader(), loader())
        assert run.global_step == 4

    def test_another_word_is_no_misspelling_and_raises_when_it_should_be_there(self) -> None:
        stopping = ls.EarlyStopping("val_auc")
        assert steps_until_raised(stopping, LogsInSanity(), "val_auc", num_sanity_val_steps=2) == 2

    def test_non_strict_warns_once_and_names_the_close_match(self) -> None:
        run = quiet_trainer(max_epochs=3, callbacks=[ls.EarlyStopping("val_los", strict=False)])
        with pytest.warns(UserWarning, match="val_los'.*val_loss") as caught:
            run.fit(ScriptedModule([1, 2, 3]), loader(), loader())
        assert run.current_epoch == 3
        assert sum("val_los'" in str(warning.message) for warning in caught) == 1


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The checkpoint of a run that patience 2 ended after 3 epochs, best value 1.0."""
    run = quiet_trainer(max_epochs=8, callbacks=[ls.EarlyStopping("val_loss", patience=2)])
    run.fit(ScriptedModule([1, 2, 2, 2]), loader(), loader())
    assert run.current_epoch == 3
    run.save_checkpoint(tmp_path / "stopped.ckpt")
    return tmp_path / "stopped.ckpt"


class TestResume:
    """ES-07: a checkpoint brings back what happened, and never what was asked for."""

    def resume(self, stopping: Any, checkpoint: Path, val: Any, epochs: int = 8) -> Any:
        run = quiet_trainer(max_epochs=epochs, callbacks=[stopping])
        run.fit(ScriptedModule(val), loader(), loader(), ckpt_path=checkpoint)
        return run

    def test_a_raised_patience_is_in_force(self, stopped: Path, said: Any) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=50)
        run = self.resume(stopping, stopped, [2, 2, 2, 0.1, 0.05])
        assert (run.current_epoch, stopping.patience) == (8, 50)
        assert stopping.report.best_score == pytest.approx(0.05)
        assert "resumed: best 1, wait 2, patience 2 -> 50 (new argument)" in said()

    def test_the_wait_goes_on_where_it_was(self, stopped: Path) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=4)
        run = self.resume(stopping, stopped, [2])
        assert (run.current_epoch, stopping.report.best_epoch) == (5, 0)

    def test_a_new_unit_and_delta_are_in_force_too(self, stopped: Path) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=4, patience_unit="epochs", min_delta=0.5, min_delta_mode="rel")
        run = self.resume(stopping, stopped, [0.9, 0.8, 0.7, 0.6])
        # 0.9 is better than 1.0, but not by half: four epochs after the first one it is over.
        assert (run.current_epoch, stopping.report.best_score) == (5, 1.0)

    def test_reset_forgets_the_history(self, stopped: Path) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=2, on_resume="reset")
        run = self.resume(stopping, stopped, [2])
        assert (run.current_epoch, stopping.report.best_score, stopping.report.best_epoch) == (6, 2.0, 3)

    def test_two_on_one_metric_coexist_by_name(self, tmp_path: Path) -> None:
        def pair() -> list[Any]:
            return [
                ls.EarlyStopping("val_loss", patience=30, name="patient"),
                ls.EarlyStopping("val_loss", patience=9, min_delta=0.5, name="coarse"),
            ]

        first, second = pair(), pair()
        run = quiet_trainer(max_epochs=3, callbacks=first)
        run.fit(ScriptedModule([1, 0.8, 0.6]), loader(), loader())
        run.save_checkpoint(tmp_path / "two.ckpt")
        resumed = quiet_trainer(max_epochs=4, callbacks=second)
        resumed.fit(ScriptedModule([0.7]), loader(), loader(), ckpt_path=tmp_path / "two.ckpt")
        assert [stopping.report.best_score for stopping in second] == [pytest.approx(0.6), 1.0]
        assert [stopping.wait_count for stopping in second] == [1, 3]

    def test_a_second_fit_without_a_checkpoint_begins_anew(self) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=2)
        for _ in range(2):
            run = quiet_trainer(max_epochs=8, callbacks=[stopping])
            run.fit(ScriptedModule([1, 2]), loader(), loader())
            assert (run.current_epoch, len(stopping.report.history)) == (3, 3)


class Stamped(ScriptedModule):
    """Its bias, and a buffer outside the ``state_dict``, hold the epoch in which they were last trained."""

    def __init__(self, val: Any, raises: BaseException | None = None) -> None:
        super().__init__(val)
        self.raises = raises
        self.register_buffer("average", torch.zeros(1), persistent=False)

    def on_train_epoch_start(self) -> None:
        if self.raises is not None and self.current_epoch == 4:
            raise self.raises
        with torch.no_grad():
            self.linear.bias.fill_(float(self.current_epoch))
            self.average.fill_(float(self.current_epoch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def epoch_of_weights(self) -> tuple[float, float]:
        return self.linear.bias.item(), self.average.item()


@pytest.fixture
def own_ctrl_c() -> Iterator[None]:
    """Lightning switches Ctrl-C off for good once it has seen one; it is back after the test."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


class TestBestWeights:
    """ES-11: the best weights come back, whatever ended the run; and a warm-up bump does not end it."""

    VAL = (3, 2, 1, 5, 6, 7)

    @pytest.mark.parametrize("snapshot", ["memory", "disk"])
    def test_after_a_stop(self, snapshot: Any) -> None:
        module = Stamped(self.VAL)
        stopping = ls.EarlyStopping("val_loss", patience=3, restore_best=True, snapshot=snapshot)
        run = quiet_trainer(max_epochs=10, callbacks=[stopping])
        run.fit(module, loader(), loader())
        assert (run.current_epoch, module.epoch_of_weights()) == (6, (2.0, 2.0))
        assert (stopping.report.restored, stopping.report.best_epoch) == (True, 2)

    def test_after_max_epochs(self) -> None:
        module = Stamped(self.VAL)
        stopping = ls.EarlyStopping("val_loss", patience=99, restore_best=True)
        quiet_trainer(max_epochs=5, callbacks=[stopping]).fit(module, loader(), loader())
        assert (module.epoch_of_weights(), stopping.report.reason) == ((2.0, 2.0), "none")

    # On Ctrl-C the Trainer ends the program, which a test sees as SystemExit.
    @pytest.mark.parametrize(
        ("raised", "seen"),
        [(ValueError("broken"), ValueError), (KeyboardInterrupt(), SystemExit)],
        ids=["bug", "ctrl-c"],
    )
    @pytest.mark.usefixtures("own_ctrl_c")
    def test_after_an_interruption(self, raised: BaseException, seen: type[BaseException]) -> None:
        module = Stamped(self.VAL, raises=raised)
        run = quiet_trainer(max_epochs=9, callbacks=[ls.EarlyStopping("val_loss", patience=99, restore_best=True)])
        with pytest.raises(seen):
            run.fit(module, loader(), loader())
        assert module.epoch_of_weights() == (2.0, 2.0)

    def test_in_max_mode_and_with_checks_inside_the_epoch(self) -> None:
        module = Stamped([1, 1, 1, 5, 4, 4, 4, 4])
        stopping = ls.EarlyStopping("val_loss", mode="max", patience=4, restore_best=True)
        run = quiet_trainer(max_epochs=10, val_check_interval=0.5, callbacks=[stopping])
        run.fit(module, loader(), loader())
        assert (run.global_step, stopping.report.best_step, module.epoch_of_weights()) == (8, 4, (1.0, 1.0))

    def test_off_by_default(self) -> None:
        module = Stamped(self.VAL)
        stopping = ls.EarlyStopping("val_loss")
        quiet_trainer(max_epochs=10, callbacks=[stopping]).fit(module, loader(), loader())
        assert (module.epoch_of_weights(), stopping.report.restored) == ((5.0, 5.0), False)

    def test_the_restored_epoch_is_said(self, said: Any) -> None:
        stopping = ls.EarlyStopping("val_loss", restore_best=True)
        quiet_trainer(max_epochs=10, callbacks=[stopping]).fit(Stamped(self.VAL), loader(), loader())
        assert "restored epoch 2 (val_loss 1" in said()

    @pytest.mark.parametrize("start", [("epochs", 3), ("steps", 6)])
    def test_a_warm_up_bump_is_not_judged(self, start: tuple[str, int]) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=2, start_from=start)
        run = quiet_trainer(max_epochs=7, callbacks=[stopping])
        run.fit(ScriptedModule([0.9, 1.2, 1.1, 1.05, 0.8, 0.7, 0.6]), loader(), loader())
        assert (run.current_epoch, stopping.report.best_score) == (7, pytest.approx(0.6))

    def test_a_best_value_of_the_warm_up_does_not_stand_in_the_way(self) -> None:
        stopping = ls.EarlyStopping("val_loss", patience=2, start_from=("epochs", 1))
        run = quiet_trainer(max_epochs=9, callbacks=[stopping])
        run.fit(ScriptedModule([0.1, 1.2, 1.1, 1.0, 1.0]), loader(), loader())
        assert (run.current_epoch, stopping.report.best_epoch) == (6, 3)
