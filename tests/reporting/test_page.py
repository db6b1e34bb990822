from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from PIL import Image

from lightning_speedups.reporting import plots
from lightning_speedups.reporting.html import render_page
from lightning_speedups.reporting.sections import Chart, Section, Table, section_from_json
from tests.reporting.browser import browse
from tests.reporting.samples import HOSTILE, HOSTILE_AND_LONG, sample_section

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """The elements of a page, and whether each is closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] != ["style"]:
            self.words += data

    def named(self, *tags):
        return [attributes for tag, attributes in self.elements if tag in tags]


@pytest.fixture(scope="module")
def two_sections():
    return render_page("A run", [sample_section(), sample_section("Loader")], lead="It was 3.2x faster.")


@pytest.fixture(scope="module")
def hostile():
    return render_page(
        HOSTILE,
        [sample_section(HOSTILE, HOSTILE_AND_LONG), sample_section(HOSTILE, HOSTILE)],
        lead=HOSTILE,
        generated_by=HOSTILE,
    )


def test_the_first_screen_says_what_was_done_and_what_it_brought(two_sections):
    words = Page(two_sections).words
    places = [words.index(part) for part in ("A run", "It was 3.2x faster.", "EarlyStopping", "Loader")]
    assert places == sorted(places)
    assert words.index("Stopped after epoch 23 of 60.", places[-1]) - places[-1] < 20
    assert places[-1] < 400


def test_every_part_of_a_section_is_on_the_page():
    names = [f"part {number}" for number in range(11)]
    section = section_from_json(
        {
            "title": names[0],
            "summary": names[1],
            "facts": [{"label": names[2], "value": names[3], "note": names[4]}],
            "tables": [{"title": names[5], "columns": [names[6]], "rows": [[names[7]]], "numeric": []}],
            "charts": [],
            "notes": [names[8]],
            "code": [{"text": names[9], "caption": names[10]}],
            "source": "part 11",
        }
    )
    words = Page(render_page("A run", [section])).words
    assert [name for name in [*names, "part 11"] if name not in words] == []


def test_a_section_comes_back_from_its_json():
    section = sample_section()
    assert section_from_json(section.to_dict()) == section


@pytest.mark.parametrize(
    "change",
    [
        {"title": 1},
        {"summary": None},
        {"notes": "one"},
        {"notes": [1]},
        {"tables": [{"title": "t", "columns": ["a"], "rows": [["1", "2"]], "numeric": []}]},
        {"facts": [{"label": "a"}]},
        {"unknown": "a"},
    ],
)
def test_what_is_no_section_is_refused(change):
    with pytest.raises(ValueError):
        section_from_json({**Section("a", "b").to_dict(), **change})


def test_a_page_loads_nothing(two_sections, hostile):
    for html in (two_sections, hostile):
        page = Page(html)
        policy = next(
            meta["content"] for meta in page.named("meta") if meta.get("http-equiv") == "Content-Security-Policy"
        )
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        loading = ("src", "srcset", "href", "xlink:href", "action", "data", "poster", "formaction", "ping")
        targets = [value for _, attributes in page.elements for name, value in attributes.items() if name in loading]
        assert {target.partition("#")[0] for target in targets} == {"", "data:,"}
        style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
        assert "url(" not in style
        assert "@import" not in style


def test_no_foreign_string_becomes_an_element_or_an_attribute(two_sections, hostile):
    plain, attacked = Page(two_sections), Page(hostile)
    assert {tag for tag, _ in attacked.elements} == {tag for tag, _ in plain.elements}
    names = {name for _, attributes in attacked.elements for name in attributes}
    assert names <= {name for _, attributes in plain.elements for name in attributes}
    assert "{{ 7*7 }}" in attacked.words
    assert "\x1b" not in hostile
    assert "\x00" not in hostile
    hostile.encode("utf-8")


def test_a_page_has_its_landmarks_and_headings(two_sections):
    page = Page(two_sections)
    tags = [tag for tag, _ in page.elements]
    assert [tags.count(tag) for tag in ("html", "header", "nav", "main", "footer", "h1")] == [1] * 6
    assert page.named("html")[0]["lang"] == "en"
    assert page.named("a")[0]["href"] == "#" + page.named("main")[0]["id"]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"][1:] for a in page.named("a")] + [s["aria-labelledby"] for s in page.named("section")]
    assert set(links) <= set(ids)


def test_every_table_names_its_rows_and_columns_and_scrolls_by_keyboard(two_sections):
    page = Page(two_sections)
    scopes = [header.get("scope") for header in page.named("th")]
    assert scopes.count("col") == 2 * 2 * 2
    assert scopes.count("row") == 2 * (2 + 30)
    boxes = [attributes for _, attributes in page.elements if "box" in (attributes.get("class") or "").split()]
    assert len(boxes) == 2 * (2 + 2 + 2)
    assert all(box["tabindex"] == "0" and box["role"] == "region" and box["aria-label"] for box in boxes)


def test_a_chart_that_is_no_drawing_is_refused():
    with pytest.raises(ValueError, match="not an SVG drawing"):
        render_page("A run", [Section("a", "b", charts=(Chart("<p>"),))])


def test_a_table_of_uneven_rows_is_refused():
    with pytest.raises(ValueError, match="row 0 of the table 't' has 1 cells for 2 columns"):
        Table("t", ("a", "b"), (("1",),))


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_words_and_lines_keep_their_contrast_in_light_and_dark(two_sections):
    schemes = re.findall(r":root \{(.*?)\}", two_sections, re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colour = dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        for background in (colour["page"], colour["panel"]):
            assert all(contrast(colour[words], background) >= 4.5 for words in ("ink", "soft", "link"))
        drawn = (*plots.PALETTE[:4], plots.GREY)
        assert all(contrast(line, colour["page"]) >= 3 for line in drawn), [contrast(c, colour["page"]) for c in drawn]


@pytest.mark.page
@pytest.mark.parametrize("which", ["two_sections", "hostile"])
def test_a_browser_shows_the_page_without_a_complaint(which, request, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(request.getfixturevalue(which), encoding="utf-8")
    dom, log = browse(path, tmp_path, "--dump-dom")
    assert "CONSOLE" not in log
    page = Page(dom)
    assert "Loader" in page.words if which == "two_sections" else "{{ 7*7 }}" in page.words
    assert not page.named("script", "img", "iframe")
    assert [tag for tag, _ in page.elements].count("svg") == 4


@pytest.mark.page
def test_a_browser_would_not_run_a_script_that_got_into_the_page(two_sections, tmp_path):
    path = tmp_path / "report.html"
    script = "<script>document.querySelector('h1').textContent = 'taken over'</script>"
    path.write_text(two_sections.replace("</main>", f"{script}</main>"), encoding="utf-8")
    dom, log = browse(path, tmp_path, "--dump-dom")
    assert "<h1>A run</h1>" in dom
    assert "Content Security Policy" in log


@pytest.mark.page
@pytest.mark.parametrize(("scheme", "background"), [(0, (0x14, 0x17, 0x1A)), (1, (255, 255, 255))])
def test_a_browser_follows_the_readers_light_or_dark_setting(two_sections, tmp_path, scheme, background):
    path = tmp_path / "report.html"
    path.write_text(two_sections, encoding="utf-8")
    shot = tmp_path / "shot.png"
    browse(
        path,
        tmp_path,
        f"--screenshot={shot}",
        "--window-size=900,700",
        f"--blink-settings=preferredColorScheme={scheme}",
    )
    with Image.open(shot) as image:
        assert image.convert("RGB").getpixel((3, 300)) == background


@pytest.mark.page
@pytest.mark.parametrize("which", ["two_sections", "hostile"])
def test_a_phone_shows_the_page_without_scrolling_it_sideways(which, request, tmp_path):
    (tmp_path / "report.html").write_text(request.getfixturevalue(which), encoding="utf-8")
    phone = tmp_path / "phone.html"
    phone.write_text(
        '<iframe src="report.html" style="width:360px;height:640px;border:0"></iframe><p></p><script>'
        "onload = () => document.querySelector('p').textContent ="
        " `width ${document.querySelector('iframe').contentDocument.documentElement.scrollWidth}`</script>"
    )
    dom, _ = browse(phone, tmp_path, "--dump-dom", "--allow-file-access-from-files")
    width = int(re.search(r"<p>width (\d+)</p>", dom)[1])
    assert 300 < width <= 360
