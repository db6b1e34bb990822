"""What early stopping reports: the files, the plot, what it counts as saved."""

import json
import math

import pytest

import lightning_speedups as ls
from tests.helpers import ScriptedModule
from tests.stopping.runs import fit


def test_the_report_is_written_and_reads_back(tmp_path):
    callback = ls.EarlyStopping(
        "val_loss", patience=2, restore_best=True, report_dir=tmp_path / "out", name="<b>main</b>"
    )
    fit(ScriptedModule([1.0, math.nan, 2.0, 2.0]), callback, max_epochs=20)
    fit(ScriptedModule([1.0, 2.0, 2.0]), ls.EarlyStopping("val_loss", patience=2, report_dir=tmp_path / "out"))
    report = json.loads((tmp_path / "out" / "early_stopping.json").read_text())
    assert (report["reason"], report["stopped_epoch"], report["epochs_saved"]) == ("patience", 2, 7)
    assert [check["values"] for check in report["history"]] == [[1.0], [2.0], [2.0]]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;b&gt;main" in page and "<b>main" not in page
    assert (tmp_path / "out" / "early_stopping.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "out").glob("early_stopping_*.json"))) == 1


def test_a_report_folder_that_cannot_be_written_costs_no_run(tmp_path):
    (tmp_path / "file").write_text("")
    callback = ls.EarlyStopping("val_loss", patience=1, report_dir=tmp_path / "file" / "below")
    with pytest.warns(UserWarning, match="cannot be written"):
        trainer = fit(ScriptedModule([1.0, 2.0]), callback)
    assert trainer.state.finished


@pytest.mark.parametrize("monitor", ["val_loss", [("val_loss", "min"), ("train_loss", "min")]])
def test_the_plot_is_a_picture(tmp_path, monitor):
    callback = ls.EarlyStopping(monitor, patience=2)
    fit(ScriptedModule([1.0, 0.5, 2.0, 2.0]), callback)
    callback.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_saved_is_counted_from_the_plan():
    callback = ls.EarlyStopping("val_loss", patience=2)
    fit(ScriptedModule([1.0, 2.0, 2.0]), callback, max_epochs=10)
    assert (callback.report.epochs_saved, callback.report.steps_saved) == (7, 14)
    assert callback.report.seconds_saved > 0
    endless = ls.EarlyStopping("val_loss", patience=2)
    fit(ScriptedModule([1.0, 2.0, 2.0]), endless, max_epochs=-1)
    assert (endless.report.epochs_saved, endless.report.steps_saved) == (None, None)
    unstopped = ls.EarlyStopping("val_loss", patience=20)
    fit(ScriptedModule([1.0, 2.0, 2.0]), unstopped, max_epochs=3)
    assert (unstopped.report.reason, unstopped.report.steps_saved) == ("none", None)
