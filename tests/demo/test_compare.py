"""The comparison says what it found, also where the pack lost or nothing can be told."""

from __future__ import annotations

import pytest

from lightning_speedups.demo.compare import Row, compare
from lightning_speedups.demo.measures import RunResult
from lightning_speedups.demo.pack import PARTS
from tests.demo.results import result

LONG = (0.5, 0.9, 0.95, 0.94, 0.93, 0.95, 0.94, 0.94, 0.92, 0.94)


def _rows(stock: RunResult, pack: RunResult) -> dict[str, Row]:
    return {row.measure: row for row in compare(stock, pack).rows}


def test_a_run_that_stopped_early_is_faster_and_the_stopping_gets_the_gain() -> None:
    found = compare(result(accuracies=LONG), result(accuracies=LONG[:4]))
    wall = found.rows[0]
    assert (wall.stock, wall.pack, wall.verdict, wall.better) == ("20.0 s", "8.00 s", "2.5x faster", True)
    assert [(gain.cause, gain.gain_s, gain.share_pct) for gain in found.gains] == [
        ("EarlyStopping", pytest.approx(12.0), pytest.approx(100.0)),
        ("NoGradEvaluation", 0.0, 0.0),
        ("the rest", pytest.approx(0.0), pytest.approx(0.0)),
    ]
    assert "2.5x faster" in found.headline


def test_the_gains_add_up_to_the_difference_also_where_the_pack_was_slower_per_epoch() -> None:
    stock, pack = result(accuracies=LONG), result(epoch_s=2.5, accuracies=LONG[:5])
    found = compare(stock, pack)
    assert sum(gain.gain_s for gain in found.gains) == pytest.approx(stock.wall_s - pack.wall_s)
    assert sum(gain.share_pct or 0.0 for gain in found.gains) == pytest.approx(100.0)
    assert found.gains[-1].gain_s == pytest.approx(-2.5)


def test_a_slower_pack_says_so_and_shares_no_gain() -> None:
    found = compare(result(epoch_s=2.0), result(epoch_s=3.0, final_test_acc=0.85))
    verdicts = {row.measure: (row.verdict, row.better) for row in found.rows}
    assert verdicts["wall time of the fit"] == ("1.50x slower", False)
    assert verdicts["training images per second"] == ("1.50x slower", False)
    assert verdicts["test accuracy of the weights left"] == ("5.00 points lower", False)
    assert verdicts["epochs run"] == ("no difference", None)
    assert {gain.share_pct for gain in found.gains} == {None}
    assert "1.50x slower" in found.headline


def test_an_accuracy_that_the_pack_never_had_is_not_reached() -> None:
    rows = _rows(result(accuracies=LONG), result(accuracies=LONG[:2]))
    goal = rows["time to 95.00 % (stock's best)"]
    assert (goal.stock, goal.verdict, goal.better) == ("6.00 s", "not reached", False)
    assert rows["best validation accuracy"].verdict == "5.00 points lower"


def test_times_within_the_noise_are_no_difference() -> None:
    assert _rows(result(), result(epoch_s=1.92))["wall time of the fit"].verdict == "no difference"
    assert _rows(result(), result(epoch_s=1.8))["wall time of the fit"].verdict == "1.11x faster"


def test_epochs_of_uneven_length_widen_the_noise() -> None:
    stock, pack = result(accuracies=LONG), result(accuracies=LONG)
    ends = (1.0, 4.0, 5.0, 8.0, 9.0, 12.0, 13.0, 16.0, 17.0, 18.0)
    restless = tuple(
        type(point)(point.epoch, end, 0.1, point.train_loss, point.val_loss, point.val_acc)
        for point, end in zip(pack.curve, ends, strict=True)
    )
    found = compare(stock, result(accuracies=LONG, curve=restless, wall_s=18.0))
    assert found.noise_pct > 50
    assert found.rows[0].verdict == "no difference"


def test_memory_is_rss_without_workers_and_uss_with_them() -> None:
    assert _rows(result(), result(peak_rss_mib=250.0))["peak memory (RSS)"].verdict == "2.0x less"
    with_workers = _rows(result(), result(processes=3, peak_uss_mib=800.0))
    assert with_workers["peak memory (USS)"].verdict == "2.0x more"
    unknown = _rows(result(), result(processes=3, peak_uss_mib=None, peak_rss_mib=None))
    assert unknown["peak memory (RSS)"].verdict == "not measured"


def test_other_programs_on_the_machine_are_named() -> None:
    assert compare(result(), result()).warning == ""
    assert "40 % during the pack's" in compare(result(), result(others_cpu_pct=40.0)).warning


def test_every_callback_of_the_pack_is_one_that_the_package_has() -> None:
    made = [part.make() for part in PARTS]
    assert [type(callback).__name__ for callback in made] == [part.name for part in PARTS]
    assert PARTS[0].call == 'ls.EarlyStopping("val_acc", mode="max", patience=10, restore_best=True)'
