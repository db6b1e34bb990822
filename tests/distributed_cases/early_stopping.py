"""EarlyStopping where the ranks do not see the same: they must still agree, and never wait for one another in vain."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lightning_speedups as ls
from tests.distributed import ddp_trainer, distributed_case, on_every_rank
from tests.helpers import ScriptedModule, loader


class ByRank(ScriptedModule):
    """Each rank logs values of its own, without ``sync_dist``; None logs nothing."""

    def __init__(self, *curves: list[float | None]) -> None:
        super().__init__()
        self.curves = curves

    def on_validation_epoch_end(self) -> None:
        if self.trainer.sanity_checking:
            return
        value = self.curves[self.global_rank][min(self.checks, len(self.curves[0]) - 1)]
        if value is not None:
            self.log("val_loss", value)
        self.checks += 1


def outcome(module: Any, callback: Any, **settings: Any) -> Any:
    trainer = ddp_trainer(**{"max_epochs": 8, "callbacks": [callback], **settings})
    trainer.fit(module, loader(n=16), loader())
    report = callback.report
    ended = trainer.current_epoch, report.reason, report.message, report.best_score, report.best_epoch
    first, second = on_every_rank((ended, callback.stopping_reason.name, str(report.history)))
    assert first == second
    return ended


@distributed_case
def the_mean_over_the_ranks_is_judged() -> None:
    # Rank 0 alone would stop after three checks, rank 1 alone never.
    module = ByRank([1.0, 1.0, 1.0, 1.0, 1.0], [3.0, 2.0, 1.5, 1.2, 1.1])
    epochs, reason, _, best, _ = outcome(module, ls.EarlyStopping("val_loss", patience=2), max_epochs=5)
    assert (epochs, reason) == (5, "none")
    assert best == pytest.approx(1.05)


@distributed_case
def one_rank_that_is_not_finite_stops_all_for_the_same_reason() -> None:
    module = ByRank([1.0, 0.9, 0.8], [1.0, math.nan, 0.8])
    epochs, reason, message, *_ = outcome(module, ls.EarlyStopping("val_loss"))
    assert (epochs, reason) == (2, "non_finite")
    assert "the training loss is finite" in message


@distributed_case
def a_metric_of_one_rank_is_judged_by_all_with_one_warning() -> None:
    module = ByRank([1.0, 2.0, 2.0, 2.0], [None] * 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        epochs, reason, *_ = outcome(module, ls.EarlyStopping("val_loss", patience=2))
    told = [str(each.message) for each in caught if "some ranks only" in str(each.message)]
    assert (epochs, reason) == (3, "patience")
    assert len(told) == (1 if dist.get_rank() == 0 else 0)


@distributed_case
def a_missing_metric_raises_on_all_ranks() -> None:
    with pytest.raises(RuntimeError, match="did you mean 'val_loss'"):
        outcome(ByRank([1.0], [1.0]), ls.EarlyStopping("val_los"))
    dist.barrier()


class RaggedSanity(ByRank):
    """Logs during sanity too, and on rank 0 a key that rank 1 does not know."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", 1.0)
        if self.global_rank == 0:
            self.log("val_los", 1.0)

    def on_validation_epoch_end(self) -> None:
        pass


@distributed_case
def a_name_that_one_rank_knows_is_no_misspelling() -> None:
    module = RaggedSanity([], [])
    epochs, *_ = outcome(module, ls.EarlyStopping("val_los", patience=9), max_epochs=2, num_sanity_val_steps=1)
    assert epochs == 2


class Stamped(ByRank):
    """The weights carry the epoch that they are from."""

    def on_train_epoch_start(self) -> None:
        with torch.no_grad():
            self.linear.weight.fill_(self.current_epoch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


@distributed_case
def the_best_weights_are_back_on_every_rank() -> None:
    module = Stamped([3.0, 1.0, 5.0, 5.0], [3.0, 1.0, 5.0, 5.0])
    outcome(module, ls.EarlyStopping("val_loss", patience=2, restore_best=True))
    assert on_every_rank(float(module.linear.weight[0, 0].detach())) == [1.0, 1.0]


@distributed_case
def an_error_on_one_rank_restores_there_without_asking_the_other() -> None:
    class Breaks(Stamped):
        def on_validation_end(self) -> None:
            if self.global_rank == 1 and self.current_epoch == 2:
                raise ValueError("only here")

    module = Breaks([3.0, 1.0, 5.0, 5.0], [3.0, 1.0, 5.0, 5.0])
    callback = ls.EarlyStopping("val_loss", patience=5, restore_best=True, check_on_train_epoch_end=False)
    trainer = ddp_trainer(max_epochs=3, callbacks=[callback])
    if dist.get_rank() == 1:
        with pytest.raises(ValueError, match="only here"):
            trainer.fit(module, loader(n=16), loader())
    else:
        trainer.fit(module, loader(n=16), loader())
    assert float(module.linear.weight[0, 0].detach()) == 1.0


@distributed_case
def a_stop_held_by_min_steps_comes_on_all_ranks_at_once() -> None:
    module = ByRank([1.0, 2.0, 2.0, 2.0, 2.0, 2.0], [1.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    trainer = ddp_trainer(max_epochs=9, min_steps=9, callbacks=[ls.EarlyStopping("val_loss", patience=1)])
    trainer.fit(module, loader(n=16), loader())
    assert on_every_rank(trainer.global_step) == [9, 9]


@distributed_case
def a_patience_in_seconds_follows_one_clock() -> None:
    module = ByRank([1.0] + [2.0] * 50, [1.0] + [2.0] * 50)
    callback = ls.EarlyStopping("val_loss", patience=0.05, patience_unit="seconds")
    _, reason, *_ = outcome(module, callback, max_epochs=50)
    assert reason == "patience"
