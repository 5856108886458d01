"""The page as text: well-formed, by itself, harmless whatever is in it, and legible in both schemes."""

import json
import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise

import attrs
import numpy as np
import pytest

from talon_core.report import figures as of
from talon_core.report import svg_figures
from talon_core.report.colours import DARK, HEAT, LIGHT, SHAPES, blended, channels, contrast, number_of, shape_of
from talon_core.report.figures import Report
from talon_core.report.gather import report_of
from talon_core.report.page import page_of
from talon_core.report.sections import sections
from talon_core.report.svg import shortened, ticks

VOID = {"meta", "input", "br", "link", "img", "hr"}
BLIND = {
    "nobody": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""What people see who lack one kind of cone, of linear red, green and blue: Machado et al. 2009, severity 1."""
LMS = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
LMS += [[0.0883024619, 0.2817188376, 0.6299787005]]
LAB = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099]]
LAB += [[0.0259040371, 0.7827717662, -0.808675766]]
JUST_SEEN = 0.02
"""The distance in OKLab at which two colours beside each other can just be told apart."""
HOSTILE = (
    """</script><script>document.title='owned'</script><img src=x onerror="document.title='owned'">' & {{ 7 * 7 }}"""
)


@attrs.define
class Element:
    name: str
    attributes: dict[str, str]
    text: str = ""


class Reader(HTMLParser):
    """Every element in order; it fails where something is closed that was not opened last."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Element] = []
        self._open: list[Element] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, name, attributes):
        element = Element(name, {key: value or "" for key, value in attributes})
        self.found.append(element)
        if name not in VOID:
            self._open.append(element)

    def handle_startendtag(self, name, attributes):
        self.found.append(Element(name, {key: value or "" for key, value in attributes}))

    def handle_endtag(self, name):
        assert self._open.pop().name == name

    def handle_data(self, data):
        for element in self._open:
            element.text += data

    def all_of(self, *names: str) -> list[Element]:
        return [each for each in self.found if each.name in names]


@pytest.fixture(scope="module")
def page(page_file):
    return page_file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def read(page):
    return Reader(page)


def test_pictures_are_xml_and_have_a_label(page):
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) > 30
    for picture in pictures:
        root = ET.fromstring(picture)
        assert root.get("aria-hidden") == "true" or root.get("role") == "img"
        if "figure" in root.get("class", "") and root.get("id") is None:
            assert root.get("aria-label")


def test_headings_follow_each_other_and_names_are_there_once(read):
    levels = [int(each.name[1]) for each in read.all_of("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [each.attributes["id"] for each in read.found if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    for each in read.found:
        for name in ("aria-labelledby", "for"):
            assert each.attributes.get(name, ids[0]) in ids
        if each.attributes.get("href", "").startswith("#"):
            assert each.attributes["href"][1:] in ids
    assert read.found[0].attributes["lang"] == "en"
    first = next(each for each in read.found if each.name in ("a", "button", "input"))
    assert (first.attributes["href"], first.text) == ("#main", "Skip to the figures")


def test_every_figure_has_a_caption_and_a_table(read):
    assert len(read.all_of("figure")) == len(read.all_of("figcaption")) == len(of.FIGURES)
    assert all(each.text.strip() for each in read.all_of("figcaption"))
    assert len(read.all_of("table")) >= len(of.FIGURES)
    assert all(each.attributes.get("scope") in ("row", "col") for each in read.all_of("th"))


def test_nothing_is_fetched(page, read):
    namespace = "http://www.w3.org/2000/svg"
    assert set(re.findall(r"https?://[^\s\"'<>)]+", page)) <= {namespace}
    for each in read.found:
        assert not {"src", "srcset", "data", "action", "poster", "xlink:href"} & {*each.attributes}
        assert each.attributes.get("href", "#").startswith("#")
        assert not [name for name in each.attributes if name.startswith("on")]
    assert not read.all_of("link", "iframe", "object", "embed", "base")
    assert all(address.startswith("#") for address in re.findall(r"url\(([^)]*)\)", page))
    assert "@import" not in page
    [policy] = [each for each in read.all_of("meta") if "http-equiv" in each.attributes]
    assert "default-src 'none'" in policy.attributes["content"]


def hostile(report):
    """The report with something wicked in the place of every text that a user, a plugin or a model chooses."""
    methods = [attrs.evolve(one, label=HOSTILE + one.label) for one in report.methods]
    walks = attrs.evolve(
        report.walks,
        words=[HOSTILE for _ in report.walks.words],
        prompts=[attrs.evolve(each, text=HOSTILE, answer=HOSTILE, set=HOSTILE) for each in report.walks.prompts],
    )
    sets = {HOSTILE: 1, **report.sets}
    rest = {"title": HOSTILE, "name": HOSTILE, "headline": HOSTILE, "notes": [HOSTILE], "facts": [(HOSTILE, HOSTILE)]}
    oracle = attrs.evolve(report.oracle, drafter=HOSTILE)
    speed = [*report.speed, attrs.evolve(report.speed[0], set=HOSTILE)]
    missing = {of.SHAPES: HOSTILE}
    return attrs.evolve(
        report, methods=methods, walks=walks, sets=sets, oracle=oracle, speed=speed, missing=missing, **rest
    )


def test_names_and_texts_are_only_text(report, read):
    page = page_of(hostile(report))
    found = Reader(page)
    assert len(found.all_of("script")) == len(read.all_of("script")) == 2
    assert not found.all_of("img")
    assert not [each for each in found.found if any(name.startswith("on") for name in each.attributes)]
    assert "{{ 7 * 7 }}" in page  # it is no template
    [data] = [each for each in found.all_of("script") if each.attributes.get("id") == "walks"]
    assert set(json.loads(data.text)["words"]) == {HOSTILE}
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(picture)


def test_the_same_report_is_the_same_page(report, page):
    assert page_of(report) == page


def test_what_is_missing_is_told_where_it_would_be(results):
    found = Reader(page_of(report_of(results)))
    told = [each.text for each in found.all_of("p") if each.attributes.get("class") == "missing"]
    assert any("talon bench report --trace" in each for each in told)
    assert any("JavaScript" in each for each in told)


def test_an_unfinished_run_is_marked(report):
    progress = of.Progress(3, 5, "talon bench run")
    page = page_of(attrs.evolve(report, progress=progress))
    assert "3 of 5 prompts are measured" in page
    assert "3 of 5 prompts are measured" not in page_of(report)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_marks_are_legible(scheme):
    for behind in (scheme.page, scheme.panel):
        for colour in (scheme.ink, scheme.faint, scheme.accent, scheme.drafter, *scheme.methods):
            assert contrast(colour, behind) >= 4.5, (colour, behind)
    assert contrast(scheme.ink, blended(scheme.heat, HEAT, scheme.page)) >= 4.5
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def seen(colour, who):
    """A colour in OKLab, as it is seen."""
    linear = np.clip(np.array(BLIND[who]) @ channels(colour), 0, 1)
    return np.array(LAB) @ np.cbrt(np.array(LMS) @ linear)


@pytest.mark.parametrize("who", BLIND)
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_methods_can_be_told_apart_by_everybody(scheme, who):
    colours = [seen(colour, who) for colour in scheme.methods]
    for number, one in enumerate(colours):
        for other in colours[:number]:
            assert math.dist(one, other) >= 4 * JUST_SEEN
    assert len(LIGHT.methods) == len(DARK.methods)


def test_colour_and_shape_together_come_again_late():
    looks = [(number_of(place), shape_of(place)) for place in range(31)]
    assert len(set(looks)) == len(looks)
    assert number_of(0) == 0
    assert 0 not in {number_of(place) for place in range(1, 31)}
    assert len(SHAPES) == 5


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.03, 0.9), (1, 6.2), (0.5, 3.1), (0, 4837), (2, 2), (1e-7, 3e-7)])
def test_ticks_are_round_and_inside(low, high):
    found = ticks(low, high)
    assert 1 <= len(found) <= 8
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    steps = {round(after - before, 12) for before, after in pairwise(found)}
    assert len(steps) <= 1


def test_of_a_long_name_both_ends_stay():
    name = "draft-model:model=./folder / talon:budget=8"
    assert shortened(name, len(name)) == name
    assert shortened(name, 12) == "draft-…get=8"
    assert [len(shortened(name, most)) for most in (5, 11, 12, 40)] == [5, 11, 12, 40]


def test_control_characters_of_a_prompt_are_no_part_of_the_page(report: Report) -> None:
    page = page_of(attrs.evolve(report, notes=["nul \x00 bell \x07 escape \x1b tab \t"]))
    assert "nul \ufffd bell \ufffd escape \ufffd tab \t" in page
    assert not [each for each in page if each < " " and each not in "\t\n"]


def test_lines_of_speed_are_drawn_for_any_range() -> None:
    assert [*svg_figures._speeds(svg_figures.Axis(0, 1, 54, 700), svg_figures.Axis(1, 1e30, 330, 40), 0.1)]


def test_what_a_dash_means_is_said_where_there_is_one(report: Report) -> None:
    def caption(*shares: of.DepthShare) -> str:
        changed = attrs.evolve(report, depths={next(iter(report.depths)): list(shares)})
        return next(one.caption for one in sections(changed) if one.name == of.DEPTHS)

    said = " In the table - says that there was no such round, or that the run did not count them."
    assert caption(of.DepthShare(1, 4, 3, 9), of.DepthShare(2, 0, 0, 3)).endswith(said)
    assert caption(of.DepthShare(1, None, 3, 9)).endswith(said)
    assert said not in caption(of.DepthShare(1, 4, 3, 9))
