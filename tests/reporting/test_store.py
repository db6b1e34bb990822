from __future__ import annotations

import dataclasses
import json
import os
import resource
import warnings

import pytest

from lightning_speedups.reporting.files import write_aside
from lightning_speedups.reporting.records import Record
from lightning_speedups.reporting.sections import Chart, Section
from lightning_speedups.reporting.store import file_stem, stored_sections, write_report
from tests.reporting.samples import HOSTILE, chart, run_python, sample_section, small_figure


@dataclasses.dataclass(frozen=True)
class Stop(Record):
    reason: str = "patience"
    seconds_saved: float = 63.0


def write(folder, name, words="It was done.", **changes):
    return write_report(folder, name, Stop(), Section(name, words, **changes))


def page(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_report_gets_its_json_its_plot_and_its_section_of_the_page(tmp_path):
    assert write_report(tmp_path / "a" / "b", "EarlyStopping", Stop(), sample_section(), small_figure())
    folder = tmp_path / "a" / "b"
    assert names(folder) == ["EarlyStopping.json", "EarlyStopping.png", "report.html"]
    data = json.loads((folder / "EarlyStopping.json").read_text())
    assert {**Stop().to_dict(), "section": data["section"]} == data
    assert "Stopped after epoch 23 of 60." in page(folder)
    assert (folder / "EarlyStopping.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_plot_there_is_no_png(tmp_path):
    write(tmp_path, "Loader")
    assert names(tmp_path) == ["Loader.json", "report.html"]


def test_several_callbacks_share_one_page_and_a_later_write_keeps_the_others(tmp_path):
    write(tmp_path, "EarlyStopping", "first words", charts=(chart(),))
    write(tmp_path, "Loader", "second words", charts=(chart(),))
    write(tmp_path, "EarlyStopping", "third words")
    assert [section.summary for section in stored_sections(tmp_path)] == ["third words", "second words"]
    assert "first words" not in page(tmp_path)
    assert page(tmp_path).count("<svg") == 1


def test_another_process_adds_its_section(tmp_path):
    write(tmp_path, "EarlyStopping", "the first process")
    program = (
        "import sys; from tests.reporting.test_store import write; from pathlib import Path;"
        "sys.exit(not write(Path(sys.argv[1]), 'Loader', 'the second process'))"
    )
    run_python(program, str(tmp_path))
    assert "the first process" in page(tmp_path)
    assert "the second process" in page(tmp_path)


def test_the_whole_runs_report_comes_first(tmp_path):
    for name in ("Loader", "report", "audit"):
        write(tmp_path, name)
    assert [section.title for section in stored_sections(tmp_path)] == ["report", "audit", "Loader"]


def test_broken_and_foreign_files_are_left_alone_and_not_shown(tmp_path):
    foreign = {
        "broken.json": b'{"section": {"title": "brok',
        "empty.json": b"",
        "binary.json": b"\xff\xfe\x00",
        "list.json": b"[1, 2]",
        "other.json": b'{"section": "a chapter of a book"}',
        "deep.json": b'{"section":' + b"[" * 100_000,
        "drawing.json": json.dumps(
            {"section": Section("foreign", "foreign", charts=(Chart("<p>"),)).to_dict()}
        ).encode(),
    }
    for name, content in foreign.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    assert write(tmp_path, "Loader")
    assert [section.title for section in stored_sections(tmp_path)] == ["Loader"]
    assert {name: (tmp_path / name).read_bytes() for name in foreign} == foreign
    assert "foreign" not in page(tmp_path)


def test_a_data_set_beside_the_reports_is_not_read(tmp_path):
    with (tmp_path / "annotations.json").open("wb") as file:
        file.truncate(2**40)  # Sparse: takes no room on the disk, and more than any memory when read.
    assert write(tmp_path, "Loader")


@pytest.mark.parametrize("name", ["../../escaped", "a/b", "val loss", "", ".hidden", "CON\x00", HOSTILE, "x" * 1000])
def test_any_name_makes_a_file_inside_the_folder(tmp_path, name):
    folder = tmp_path / "inner"
    assert write(folder, name)
    assert names(tmp_path) == ["inner"]
    assert sorted(names(folder)) == sorted([f"{file_stem(name)}.json", "report.html"])


def test_names_that_differ_only_in_replaced_letters_stay_apart():
    assert len({file_stem(name) for name in ("a/b", "a_b", "a:b", "a b", "", "report")}) == 6
    assert file_stem("EarlyStopping-val_loss.2") == "EarlyStopping-val_loss.2"


def test_a_folder_that_cannot_be_made_gives_one_warning_and_no_error(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.warns(UserWarning, match=r"report folder .*taken cannot be written \(.*\); training goes on") as caught:
        assert not write(tmp_path / "taken", "Loader")
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert (tmp_path / "taken").read_text() == "a file"


def test_a_full_disk_gives_one_warning_and_leaves_the_old_files_whole(tmp_path):
    write(tmp_path, "Loader", "old words")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    program = f"""
import resource, signal, sys, warnings
from pathlib import Path
from tests.reporting.test_store import write
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, {resource.RLIM_INFINITY}))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    written = write(Path(sys.argv[1]), "Loader", "new words")
print(written, len(caught), "File too large" in str(caught[0].message))
"""
    assert run_python(program, str(tmp_path)) == "False 1 True\n"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_in_the_place_of_a_file_is_no_error(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.warns(UserWarning, match="cannot be written"):
        assert not write(tmp_path, "Loader")
    assert names(tmp_path) == ["Loader.json", "report.html"]


def test_a_good_write_warns_of_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert write_report(tmp_path, "EarlyStopping", Stop(HOSTILE), sample_section(words=HOSTILE), small_figure())


def test_a_field_that_would_hide_the_section_is_refused(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Book(Record):
        section: str = "a chapter"

    with pytest.raises(ValueError, match="Book has a field named 'section'"):
        write_report(tmp_path, "Book", Book(), Section("a", "b"))
    assert names(tmp_path) == []


def test_a_file_written_aside_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    write_aside(tmp_path / "aside", b"content")
    assert (tmp_path / "aside").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert (tmp_path / "aside").read_bytes() == b"content"
