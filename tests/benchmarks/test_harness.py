from __future__ import annotations

import json
import math

import harness
import numpy as np
import pytest
import references
from harness import Measurement
from hypothesis import given
from hypothesis import strategies as st
from references import Band

from lightning_speedups.reporting import terminal

REASON = "seen within this in five runs"


class Bench:
    """A benchmark called ``sample`` in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.figures = {"speedup": 1.5}
        self.tables = []
        self.details = {}
        self.asked_quick = []

    def measure(self, quick):
        self.asked_quick.append(quick)
        return Measurement(self.figures, self.tables, self.details)

    def run(self, *argv):
        return harness.main("sample", self.measure, "what it measures", list(argv), self.folder)

    @property
    def reference(self):
        return self.folder / "reference" / "sample.json"

    def refer(self, stored):
        self.reference.parent.mkdir(exist_ok=True)
        self.reference.write_text(stored if isinstance(stored, str) else json.dumps(stored))

    def result(self):
        return json.loads((self.folder / "results" / "sample.json").read_text())


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def band(low=None, high=None, reason=REASON):
    bounds = {"low": low, "high": high}
    return {**{name: bound for name, bound in bounds.items() if bound is not None}, "reason": reason}


def test_a_figure_in_its_band_passes_and_the_last_line_gives_it(bench, capsys):
    bench.refer({"figures": {"speedup": band(1.2, 1.8), "runs": band()}})
    bench.figures = {"speedup": 1.512345, "runs": 20}
    bench.tables = [terminal.table("What was compared", ("case", "time"), [("one", "1 s")])]

    assert bench.run() == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[-1] == "sample: speedup=1.512 runs=20"
    assert any("What was compared" in line for line in lines)
    assert any("1.2 to 1.8" in line and "ok" in line for line in lines)
    assert any("not held" in line and "ok" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "bounds", "says"),
    [
        (0.9, {"low": 1.0}, "speedup=0.9, reference at least 1 (seen within this in five runs)"),
        (1.1, {"high": 1.0}, "speedup=1.1, reference at most 1 ("),
        (3, {"low": 1, "high": 2}, "speedup=3, reference 1 to 2 ("),
        (2, {"low": 1, "high": 1}, "speedup=2, reference exactly 1 ("),
        (math.nan, {"low": 1.0}, "speedup=nan, reference at least 1 ("),
        (math.inf, {"low": 1.0, "high": 9.0}, "speedup=inf, reference 1 to 9 ("),
    ],
)
def test_a_figure_outside_its_band_fails_and_says_why(bench, capsys, value, bounds, says):
    bench.refer({"figures": {"speedup": band(**bounds)}})
    bench.figures = {"speedup": value}

    assert bench.run() == 1
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[-2].startswith(f"MISSED {says}")
    assert lines[-1] == f"sample: speedup={references.short(value)}"
    assert bench.result()["misses"][0].startswith(says)


def test_bounds_are_part_of_the_band(bench):
    bench.refer({"figures": {"speedup": band(1.5, 1.5)}})
    assert bench.run() == 0


def test_without_a_reference_it_fails_and_says_how_to_write_one(bench, capsys):
    assert bench.run("--quick") == 1
    said = capsys.readouterr().out
    assert "MISSED there is no reference reference/sample.json" in said
    assert '--write-reference "REASON" --quick' in said


def test_a_figure_without_a_band_and_a_band_without_a_figure_both_fail(bench, capsys):
    bench.refer({"figures": {"gone": band(1, 2)}})

    assert bench.run() == 1
    said = capsys.readouterr().out
    assert "MISSED speedup=1.5 has no reference" in said
    assert "MISSED gone has a reference and was not measured" in said


def test_quick_has_bands_of_its_own_and_takes_the_others_from_the_full_run(bench, capsys):
    bench.refer({"figures": {"speedup": band(2.0), "exact": band(0, 0)}, "quick": {"speedup": band(1.0)}})
    bench.figures = {"speedup": 1.5, "exact": 0}

    assert bench.run("--quick") == 0
    assert bench.result()["quick"] is True
    assert bench.run() == 1
    assert bench.asked_quick == [True, False]


def test_quick_may_leave_out_what_only_the_full_run_measures(bench):
    bench.refer({"figures": {"speedup": band(1.0), "costly": band(1.0)}})
    assert bench.run("--quick") == 0


def test_a_reference_is_written_with_its_reason_and_then_holds(bench):
    bench.figures = {"speedup": 2.0, "loss": -4.0, "zero": 0}

    assert bench.run("--write-reference", REASON, "--band-pct", "10") == 0
    stored = json.loads(bench.reference.read_text())
    assert stored == {
        "figures": {"speedup": band(1.8, 2.2), "loss": band(-4.4, -3.6), "zero": band(0.0, 0.0)},
    }
    bench.figures = {"speedup": 2.3, "loss": -4.0, "zero": 0}
    assert bench.run() == 1


def test_writing_keeps_the_bands_that_are_there(bench):
    bench.refer({"figures": {"speedup": band(9.0, reason="as the claim says")}})
    bench.figures = {"speedup": 1.5, "new": 1.0}

    assert bench.run("--write-reference", REASON) == 1
    stored = json.loads(bench.reference.read_text())["figures"]
    assert stored["speedup"] == band(9.0, reason="as the claim says")
    assert stored["new"] == band(0.75, 1.25)


def test_quick_figures_are_never_written_as_those_of_the_full_run(bench):
    assert bench.run("--quick", "--write-reference", REASON) == 0
    assert set(json.loads(bench.reference.read_text())) == {"quick"}
    assert bench.run() == 1


@pytest.mark.parametrize("reason", ["", "   ", "noise"])
def test_a_reference_is_not_written_without_a_reason(bench, capsys, reason):
    with pytest.raises(SystemExit, match="2"):
        bench.run("--write-reference", reason)

    assert "why the band is as wide as it is" in capsys.readouterr().err
    assert not bench.reference.exists()
    assert bench.asked_quick == []


@pytest.mark.parametrize("width", ["-1", "nan", "wide"])
def test_a_width_that_is_none_is_refused(bench, capsys, width):
    with pytest.raises(SystemExit, match="2"):
        bench.run("--write-reference", REASON, "--band-pct", width)
    assert "--band-pct" in capsys.readouterr().err


def test_no_band_is_written_around_what_is_no_number(bench, capsys):
    bench.figures = {"speedup": math.nan}

    assert bench.run("--write-reference", REASON) == 1
    assert "MISSED speedup is nan, around which there is no band" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ("{", "is no JSON"),
        ([], 'keys "figures" and "quick" only'),
        ({"speedup": band(1)}, 'keys "figures" and "quick" only'),
        ({"figures": []}, "must be objects that hold one band a figure"),
        ({"figures": {"speedup": 1.0}}, 'keys "low", "high" and "reason", got 1.0'),
        ({"figures": {"speedup": {"max": 1, "reason": REASON}}}, 'keys "low", "high" and "reason"'),
        ({"figures": {"speedup": {"low": 1}}}, 'speedup needs a "reason"'),
        ({"figures": {"speedup": band("1")}}, "has the bound '1', which is no number"),
        ({"figures": {"speedup": band(2, 1)}}, "a low of 2 above its high of 1"),
    ],
)
def test_a_reference_that_makes_no_sense_fails_by_name(bench, capsys, stored, says):
    bench.refer(stored)

    assert bench.run() == 1
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("MISSED"))
    assert "reference/sample.json" in said
    assert says in said


def test_the_result_says_what_was_run_where_and_with_which_versions(bench):
    bench.details = {"runs": (1.0, math.nan), "band": Band(1.0, None, REASON)}
    bench.run("--quick")
    result = bench.result()

    assert result["command"] == "python benchmarks/sample.py --quick"
    assert result["cores"].endswith("per rank")
    assert {"python", "torch", "lightning_speedups"} <= set(result["versions"])
    assert result["figures"] == {"speedup": 1.5}
    assert result["details"]["runs"] == [1.0, "nan"]
    assert result["details"]["band"]["low"] == 1.0
    assert result["seconds_s"] >= 0


def test_numpys_numbers_and_truths_are_figures(bench, capsys):
    bench.figures = {"ratio": np.float32(1.5), "count": np.int64(3), "fair": True}
    bench.run()

    assert capsys.readouterr().out.strip().endswith("sample: ratio=1.5 count=3 fair=1")


@pytest.mark.parametrize("value", ["fast", None, [1.0]])
def test_what_is_no_number_is_no_figure(bench, value):
    bench.figures = {"verdict": value}
    with pytest.raises(TypeError, match="figure 'verdict' must be a number"):
        bench.run()


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.floats(0, 100))
def test_a_written_band_holds_the_figure_that_it_was_written_for(value, band_pct):
    margin = abs(value) * band_pct / 100
    assert Band(value - margin, value + margin, REASON).holds(value)
