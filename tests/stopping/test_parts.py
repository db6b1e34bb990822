"""The parts beside the rules: spelling, what a patience means, agreement between ranks, the copy of the weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_speedups.stopping.agreement import agree
from lightning_speedups.stopping.schedule import Schedule, cut_short_warning, plateau_warning
from lightning_speedups.stopping.settings import Settings
from lightning_speedups.stopping.snapshot import Snapshot
from lightning_speedups.stopping.spelling import closest, misspelling


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("val_los", "val_loss"),
        ("vall_loss", "val_loss"),
        ("Val_Loss", "val_loss"),
        ("val-loss", "val_loss"),
        ("val/loss", "val_loss"),
        ("valloss", "val_loss"),
        ("valid_loss", "val_loss"),
        ("val_lsos", "val_loss"),
        ("val_losss", "val_loss"),
        ("val_lss", "val_loss"),
        ("val_acuracy", "val_accuracy"),
    ],
)
def test_a_mistyped_name_is_found(typed, meant):
    assert misspelling(typed, [meant, "lr", "train_loss"]) == meant


@pytest.mark.parametrize(
    ("monitor", "logged"),
    [
        ("val_auc", "val_acc"),
        ("val_rmse", "val_mse"),
        ("val_miou", "val_iou"),
        ("val_bacc", "val_acc"),
        ("val_nrmse", "val_rmse"),
        ("val_auroc", "val_auc"),
        ("val_sdri", "val_sdr"),
        ("val_psnr", "val_snr"),
        ("eval_loss", "val_loss"),
        ("val_xqd", "val_qd"),
        ("top1", "top5"),
        ("val_f1", "val_f2"),
        ("loss_a", "loss_b"),
        ("train_loss", "val_loss"),
        ("test_loss", "val_loss"),
        ("val_loss", "val_loss_epoch"),
        ("val_loss/dataloader_idx_0", "val_loss/dataloader_idx_1"),
        ("val_f1_macro", "val_f1_micro"),
        ("loss", "val_loss"),
    ],
)
def test_another_metric_is_no_misspelling(monitor, logged):
    assert misspelling(monitor, [logged]) is None


def test_the_closest_name_is_given_where_there_is_any_likeness():
    assert closest("val_loss", ["lr", "valid/loss"]) == "valid/loss"
    assert closest("val_loss", ["qqq"]) is None


@pytest.mark.parametrize(
    ("schedule", "settings", "words"),
    [
        (Schedule(8, batches_between=2), Settings(patience=3), "3 checks = 0.75 epochs = 6 steps"),
        (Schedule(8, accumulation=2), Settings(patience=3), "3 checks = 3 epochs = 12 steps"),
        (Schedule(7, accumulation=2, epochs_between=5), Settings(patience=3), "3 checks = 15 epochs = 60 steps"),
        (
            Schedule(8, batches_between=2),
            Settings(patience=3, patience_unit="epochs"),
            "3 epochs = 12 checks = 24 steps",
        ),
        (
            Schedule(8, batches_between=2),
            Settings(patience=6, patience_unit="steps"),
            "6 steps = 3 checks = 0.75 epochs",
        ),
        (Schedule(math.inf), Settings(patience=3), "3 checks = 3 epochs"),
        (
            Schedule(math.inf, batches_between=100, across_epochs=True),
            Settings(patience=3),
            "3 checks = 300 steps",
        ),
        (Schedule(10, batches_between=20, across_epochs=True), Settings(patience=3), "3 checks = 6 epochs = 60 steps"),
        (
            Schedule(8, batches_between=2),
            Settings(patience=60, patience_unit="seconds"),
            "60 seconds, looked at 4 times an epoch",
        ),
        (Schedule(8, batches_between=math.nan), Settings(patience=3), "3 checks"),
    ],
)
def test_a_patience_in_all_units(schedule, settings, words):
    assert schedule.translated(settings) == words


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule(8, max_epochs=10), None),
        (Schedule(8, epochs_between=20, max_epochs=10), "every 20 epochs, and max_epochs=10"),
        (Schedule(8, batches_between=100, across_epochs=True, max_epochs=10), "step 100, and the run ends at step 80"),
        (Schedule(8, batches_between=100, max_epochs=10), "an epoch has 8"),
        (Schedule(100, batches_between=50, max_steps=20), "step 50, and the run ends at step 20"),
        (Schedule(100, batches_between=50, max_steps=50), None),
        (Schedule(math.inf, batches_between=50, across_epochs=True), None),
        (Schedule(8, batches_between=math.nan, max_epochs=10), None),
    ],
)
def test_a_run_without_any_check_is_told(schedule, words):
    found = schedule.why_no_check()
    assert found is None if words is None else words in found


def test_a_plateau_scheduler_must_get_its_turn():
    assert plateau_warning(30, 30, "3 checks", "patience=3") is not None
    assert plateau_warning(31, 30, "3 checks", "patience=3") is None
    assert plateau_warning(math.nan, 30, "60 seconds", "patience=3") is None


def test_a_schedule_to_the_end_must_not_be_cut_short():
    assert cut_short_warning("OneCycleLR", 100, 30, 100) is not None
    assert cut_short_warning("OneCycleLR", 100, 100, 100) is None
    assert cut_short_warning("OneCycleLR", 200, 30, 100) is None, "the plan itself cuts it"


@given(values=st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=8))
def test_ranks_agree_on_the_mean(values):
    everywhere = [True] * len(values)
    agreed = agree(everywhere, everywhere, values)
    assert min(values) <= agreed.value <= max(values)
    assert agree(everywhere, everywhere, values[:1] * len(values)).value == values[0]


def test_one_rank_that_is_not_finite_is_enough():
    assert math.isnan(agree([True] * 3, [True] * 3, [1.0, math.nan, 1.0]).value)


def test_a_metric_of_some_ranks_is_judged_by_those():
    agreed = agree([False, True, True], [False, True, True], [math.nan, 1.0, 3.0])
    assert (agreed.value, agreed.absent_ranks, agreed.known) == (2.0, (0,), True)


def test_a_value_that_no_rank_logged_again_is_none():
    assert agree([True, True], [False, False], [1.0, 1.0]).value is None
    assert agree([False, False], [False, False], [math.nan] * 2).known is False


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3, bias=False)
        self.tied.weight = self.linear.weight
        self.register_buffer("average", torch.zeros(3), persistent=False)
        self.steps = 0

    def get_extra_state(self):
        return {"steps": self.steps}

    def set_extra_state(self, state):
        self.steps = state["steps"]


def changed(module):
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.add_(1)
    module.steps += 1


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_copy_brings_back_everything_in_place(tmp_path, on_disk):
    module = Everything()
    snapshot = Snapshot(tmp_path / "made" if on_disk else None)
    before = {name: value.clone() for name, value in [*module.named_parameters(), *module.named_buffers()]}
    weight = module.linear.weight
    snapshot.take(module)
    changed(module)
    assert snapshot.put_back(module) == ()
    after = dict([*module.named_parameters(), *module.named_buffers()])
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert module.linear.weight is weight is module.tied.weight
    assert module.steps == 0
    snapshot.drop()
    assert not list(tmp_path.rglob("*.pt")) and not snapshot.taken


def test_a_failed_write_keeps_the_copy_before(tmp_path, monkeypatch):
    module = nn.Linear(2, 2)
    snapshot = Snapshot(tmp_path)
    snapshot.take(module)
    before = module.weight.detach().clone()
    changed_weight = before + 1
    with torch.no_grad():
        module.weight.copy_(changed_weight)

    def half_written(tensors, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half_written)
    with pytest.raises(OSError, match="No space"):
        snapshot.take(module)
    assert [path.suffix for path in tmp_path.iterdir()] == [".pt"]
    snapshot.put_back(module)
    assert torch.equal(module.weight, before)


def test_a_tensor_of_another_shape_is_named_and_left_alone():
    module = nn.Module()
    module.register_buffer("seen", torch.zeros(2))
    module.register_buffer("count", torch.zeros(1))
    snapshot = Snapshot()
    snapshot.take(module)
    module.seen = torch.ones(5)
    module.count += 1
    assert snapshot.put_back(module) == ("seen",)
    assert module.seen.shape == (5,) and module.count.item() == 0


def test_a_buffer_that_is_expanded_is_left_alone_unless_it_has_changed():
    module = nn.Module()
    module.register_buffer("positions", torch.arange(4).unsqueeze(1).expand(4, 3))
    module.register_buffer("constant", torch.zeros(1).expand(5))
    snapshot = Snapshot()
    snapshot.take(module)
    assert snapshot.put_back(module) == ()
    module.constant = torch.ones(1).expand(5)
    assert snapshot.put_back(module) == ("constant",)
