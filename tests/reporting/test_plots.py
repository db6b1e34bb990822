from __future__ import annotations

import warnings
from xml.etree import ElementTree

import matplotlib
import pytest
from PIL import Image

from lightning_speedups.reporting import plots, svg
from tests.reporting.samples import HOSTILE, HOSTILE_AND_LONG, run_python, small_figure


def picture(path):
    with Image.open(path) as image:
        return image.convert("RGB").copy()


@pytest.fixture
def hostile_settings():
    """A program that asks for LaTeX and white letters."""
    with matplotlib.rc_context({"text.usetex": True, "text.color": "white", "axes.facecolor": "black"}):
        yield


def test_a_png_shows_the_figure(tmp_path):
    plots.save_png(small_figure(), tmp_path / "loss.png")
    image = picture(tmp_path / "loss.png")
    assert image.size == (1008, 547)
    colours = {colour for _, colour in image.getcolors(image.width * image.height)}
    assert {(255, 255, 255), (0x00, 0x72, 0xB2)} <= colours
    assert [path.name for path in tmp_path.iterdir()] == ["loss.png"]


def test_plots_import_no_pyplot_and_leave_the_settings_alone():
    program = """
import sys
from lightning_speedups.reporting import plots, store, records
assert "matplotlib" not in sys.modules
import matplotlib
before = list(dict.items(matplotlib.rcParams))  # Reading "backend" the usual way would itself import pyplot.
from tests.reporting.samples import chart
chart()
assert "matplotlib.pyplot" not in sys.modules
assert list(dict.items(matplotlib.rcParams)) == before
print("fine")
"""
    assert run_python(program) == "fine\n"


def test_the_programs_own_style_does_not_reach_the_plot(tmp_path, request):
    plots.save_png(small_figure("val_loss, 50 % of #3"), tmp_path / "plain.png")
    request.getfixturevalue("hostile_settings")
    plots.save_png(small_figure("val_loss, 50 % of #3"), tmp_path / "styled.png")
    assert matplotlib.rcParams["text.usetex"] is True
    assert picture(tmp_path / "styled.png").tobytes() == picture(tmp_path / "plain.png").tobytes()


def test_a_text_made_outside_the_style_is_not_sent_to_latex(tmp_path, hostile_settings):
    figure, axes = plots.new_figure("Loss")
    axes.text(0.5, 0.5, "val_loss")
    plots.save_png(figure, tmp_path / "loss.png")
    assert picture(tmp_path / "loss.png").size == (1008, 547)


@pytest.mark.parametrize("words", [HOSTILE, HOSTILE_AND_LONG, "$", "a$b$c", "$\\frac{", "損失 🙂", "", "\n", "_loss"])
def test_any_name_can_stand_on_a_plot(tmp_path, words):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = small_figure(words)
        plots.save_png(figure, tmp_path / "loss.png")
        drawn = plots.to_svg(figure, title=words, description=words)
    root = ElementTree.fromstring(drawn)
    assert root.tag == "svg"
    assert len(drawn) < 200_000
    assert all(element.tag not in ("script", "img", "foreignObject", "style") for element in root.iter())


def test_dollars_are_shown_as_dollars():
    _, axes = plots.new_figure("cost $5 to $9")
    shown = axes.get_title(loc="left")
    assert axes.title._preprocess_math(shown) == ("cost $5 to $9", False)


def test_a_name_that_starts_with_an_underscore_stays_in_the_legend():
    legend = small_figure("_loss").axes[0].get_legend()
    assert [words.get_text().strip() for words in legend.get_texts()] == ["_loss"]


def test_a_long_name_is_cut():
    assert plots.label("x" * 10_000) == "x" * 39 + "…"


def test_an_svg_reads_in_light_and_dark_and_to_those_who_do_not_see_it():
    drawn = plots.to_svg(small_figure(), title="Loss & more", description="It falls.")
    root = ElementTree.fromstring(drawn)
    named = {element.get("id"): element.text for element in root.iter()}
    assert root.get("role") == "img"
    assert [named[name] for name in root.get("aria-labelledby").split()] == ["Loss & more", "It falls."]
    assert "currentColor" in drawn
    assert plots.INK not in drawn
    assert "style=" not in drawn
    assert "http" not in drawn
    assert drawn.startswith("<svg")


def test_the_same_figure_gives_the_same_svg_and_another_one_other_ids():
    first, again, other = (plots.to_svg(small_figure(), title=title) for title in ("a", "a", "b"))
    assert first == again
    assert not ids(first) & ids(other)


def test_every_reference_in_an_svg_has_its_target():
    drawn = plots.to_svg(small_figure(), title="Loss")
    root = ElementTree.fromstring(drawn)
    targets = [element.get("href") for element in root.iter("use")]
    clips = [value for element in root.iter() if (value := element.get("clip-path"))]
    assert len(targets) > 10
    assert clips
    assert {target[1:] for target in targets} | {clip[5:-1] for clip in clips} <= ids(drawn)


def ids(drawn: str) -> set[str]:
    return {element.get("id") for element in ElementTree.fromstring(drawn).iter() if element.get("id")}


@pytest.mark.parametrize(
    "content",
    [
        "<script>alert(1)</script>",
        '<g onload="alert(1)"/>',
        '<a href="https://evil.example"><path d="M0 0"/></a>',
        '<image href="https://evil.example/x.png"/>',
        '<use href="https://evil.example/x.svg#a"/>',
        '<path fill="url(https://evil.example/x.svg#a)"/>',
        '<path style="fill: url(https://evil.example/x.svg#a)"/>',
        "<style>* { background: url(https://evil.example) }</style>",
        '<foreignObject><iframe src="https://evil.example"/></foreignObject>',
        "<title><script>alert(1)</script></title>",
        "<!-- alert(1) https://evil.example --><metadata>evil.example</metadata>",
    ],
)
def test_what_runs_or_loads_is_taken_out_of_a_drawing(content):
    drawn = svg.to_text(svg.parse(f'<svg xmlns="http://www.w3.org/2000/svg"><path d="M1 2"/>{content}</svg>'), "p-")
    assert 'd="M1 2"' in drawn
    assert "alert" not in drawn
    assert "evil" not in drawn


@pytest.mark.parametrize(
    "drawn",
    ["", "no drawing", "<p/>", "<svg>", "<svg>\x00</svg>", '<!DOCTYPE svg [<!ENTITY a "b">]><svg>&a;</svg>'],
)
def test_what_is_no_drawing_is_refused(drawn):
    with pytest.raises(ValueError, match=r"drawing|<svg>"):
        svg.parse(drawn)
