"""The page in a real browser: a person with a mouse, with keys alone, with a screen reader, without scripts."""

import os
from pathlib import Path

import attrs
import pytest

from talon_core.bench.rounds import read_rounds
from talon_core.report import svg_figures
from talon_core.report.lane_page import page_of_lanes
from talon_core.report.lanes import timeline_of
from talon_core.report.page import page_of
from talon_core.report.svg_lanes import bands
from talon_tests.chromium import chromium, find_chromium

SCREENSHOTS = Path(__file__).parents[2] / "build/report-screenshots"
"""Kept as output of CI."""
NEEDED = "TALON_NEEDS_CHROMIUM"
"""The environment variable that says that the browser must be there."""


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """A tab of a browser; without a browser these tests are skipped, in sight."""
    path = find_chromium()
    if path is None:
        missing = "there is no Chromium; install it, on Debian with: apt-get install chromium"
        if os.environ.get(NEEDED):
            pytest.fail(missing)
        pytest.skip(missing)
    with chromium(path, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(tab, page_file):
    """The page, opened anew."""
    tab.requests.clear()
    tab.errors.clear()
    tab.open(page_file)
    return tab


@pytest.fixture(scope="module")
def lane_page(results, tmp_path_factory):
    """A timeline of rounds of that run, as if some had been prepared."""
    kept = next(one for one in read_rounds(results.folder) if one.rounds[0].spans)
    rounds = [attrs.evolve(one, hit=number % 3 == 1 if number % 4 else None) for number, one in enumerate(kept.rounds)]
    file = tmp_path_factory.mktemp("lanes") / "timeline.html"
    file.write_text(page_of_lanes(timeline_of(rounds), "a tiny model", "ngram/talon"), encoding="utf-8")
    return file


@pytest.mark.parametrize(("width", "dark"), [(1000, False), (1000, True), (390, False)])
def test_a_timeline_suits_every_scheme_and_width_and_is_read_with_keys(tab, lane_page, width, dark):
    tab.requests.clear()
    tab.errors.clear()
    tab.open(lane_page, width=width, dark=dark)
    assert (tab.requests, tab.errors) == ([lane_page.as_uri()], [])
    assert tab.value("document.documentElement.scrollWidth") == width
    tab.press("Tab", "Enter")
    assert focused(tab) == "main"
    tab_to(tab, "scroll", 9)
    assert tab.value("document.activeElement.getAttribute('aria-label')") == "Who did what when: figure"
    tab_to(tab, "SUMMARY", 9)
    tab.press("Enter")
    assert tab.value("document.querySelector('details').open")
    assert tab.value("document.querySelectorAll('tbody tr').length") > 3
    fills = tab.value("[...document.querySelectorAll('.lane-hit')].map((one) => getComputedStyle(one).fill)")
    hollow = tab.value("[...document.querySelectorAll('.lane-miss')].map((one) => getComputedStyle(one).fill)")
    assert len({*fills}) == len({*hollow}) == 1
    assert fills[0] != hollow[0] == tab.value("getComputedStyle(document.documentElement).backgroundColor")
    tab.screenshot(SCREENSHOTS / f"timeline-{width}-{'dark' if dark else 'light'}.png")


OUTSIDE = """[...document.querySelectorAll('svg.figure')].flatMap((svg) => [...svg.querySelectorAll('text')].filter(
    (text) => text.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1
           || text.getBoundingClientRect().left < svg.getBoundingClientRect().left - 1).map(
    (text) => svg.getAttribute('aria-label') + ': ' + text.textContent))"""
"""Texts that stick out of their figures."""


def times(one, by):
    """It, with every measured number so many times as large; counts are whole numbers and stay."""
    if isinstance(one, dict):
        return {key: times(each, by) for key, each in one.items()}
    if isinstance(one, list | tuple):
        return [times(each, by) for each in one]
    if attrs.has(type(one)):
        return attrs.evolve(one, **{each.name: times(getattr(one, each.name), by) for each in attrs.fields(type(one))})
    return one * by if isinstance(one, float) else one


def test_no_text_sticks_out_of_a_figure_on_any_machine(tab, report, lane_page, tmp_path):
    figures = []
    for step in range(40):  # a hundredth to 800 times of what was measured
        by = 10 ** (step / 8 - 2)
        machine = attrs.evolve(
            report, **{name: times(getattr(report, name), by) for name in ("speed", "time", "timeline")}
        )
        figures += [svg_figures.time_per_token(machine), svg_figures.timeline(machine)]
        figures += [svg_figures.estimates(machine, machine.speed, "x", "speed")]
        figures += [bands(times(one, by), "lanes") for one in report.lanes.values()]
    wide = attrs.evolve(report.shapes[0], widths=[{width: 1} for width in (1, 2, 3, 4, 6, 9, 14, 24, 49, 99)])
    figures += [svg_figures.tree_shapes(wide, report.methods[0], svg_figures.rows_of([wide]), 12, 4)]
    page = tmp_path / "figures.html"
    frame = lane_page.read_text(encoding="utf-8")
    page.write_text(frame.replace("<main", "".join(figures) + "<main", 1), encoding="utf-8")
    tab.open(page)
    assert tab.value("document.querySelectorAll('svg.figure').length") > len(figures)
    assert tab.value(OUTSIDE) == []


def text(tab, name):
    return tab.value(f"document.getElementById('step-{name}').textContent")


def focused(tab):
    return tab.value("(({id, className, tagName}) => id || className || tagName)(document.activeElement)")


def tab_to(tab, name, most=200):
    for _ in range(most):
        tab.press("Tab")
        if focused(tab).split(" ")[0] == name:
            return
    pytest.fail(f"{name} is not reached")


def test_the_page_loads_itself_and_nothing_else_without_an_error(opened, page_file):
    assert opened.requests == [page_file.as_uri()]
    assert opened.errors == []


@pytest.mark.parametrize(
    ("name", "width", "dark"), [("light", 1000, False), ("dark", 1000, True), ("narrow", 390, False)]
)
def test_it_looks_right_in_every_scheme_and_width(tab, page_file, name, width, dark):
    tab.open(page_file, width=width, dark=dark)
    light = tab.value("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert light is not dark
    assert tab.value("document.documentElement.scrollWidth") == width  # nothing sticks out
    assert tab.value(OUTSIDE) == []
    tab.screenshot(SCREENSHOTS / f"{name}.png")
    assert (SCREENSHOTS / f"{name}.png").stat().st_size > 10_000


def test_the_scheme_can_be_chosen(opened):
    background = "getComputedStyle(document.documentElement).backgroundColor"
    before = opened.value(background)
    opened.value("document.querySelector('input[value=dark]').click()")
    assert opened.value(background) != before
    opened.value("document.querySelector('input[value=auto]').click()")
    assert opened.value(background) == before


def test_everything_is_reached_and_done_with_keys(opened, report):
    opened.press("Tab")
    assert focused(opened) == "skip"
    assert opened.value("document.querySelector('.skip').getBoundingClientRect().left") >= 0
    opened.press("Enter")
    assert focused(opened) == "main"
    tab_to(opened, "stepper")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert opened.value(outline) == "solid"
    rounds = len(report.walks.prompts[0].walks[0].steps)
    assert text(opened, "told").startswith(f"Round 1 of {rounds}: ")
    opened.press("ArrowRight")
    assert text(opened, "told").startswith(f"Round 2 of {rounds}: ")
    opened.press("ArrowLeft", "ArrowLeft")
    assert text(opened, "told").startswith("Round 1 of ")
    opened.press("End")
    assert text(opened, "told").startswith(f"Round {rounds} of ")
    assert focused(opened) == "stepper"
    opened.press("Home")
    tab_to(opened, "step-on", 20)
    opened.press("Enter")
    assert text(opened, "told").startswith("Round 2 of ")
    for _ in range(rounds):
        opened.press("Enter")  # the button cannot be pressed at the end, and whoever was on it is not lost
    assert focused(opened) == "stepper"
    tab_to(opened, "step-play", 20)
    opened.press(" ")
    assert opened.value("document.activeElement.getAttribute('aria-pressed')") == "true"
    opened.press(" ")
    assert opened.value("document.activeElement.getAttribute('aria-pressed')") == "false"


def test_the_last_round_shows_the_whole_text_and_each_round_its_tree(opened, report):
    for number, extreme in enumerate(report.walks.prompts):
        for choice, walk in enumerate(extreme.walks):
            choose = "(id, to) => { const one = document.getElementById(id); one.value = to; "
            choose += "one.dispatchEvent(new Event('change')); }"
            opened.value(f"({choose})('step-prompt', {number})")
            opened.value(f"({choose})('step-method', {choice})")
            assert text(opened, "asked") == extreme.text
            nodes = "document.querySelectorAll('#step-tree .node').length"
            first = walk.steps[0]
            assert opened.value(nodes) == len(first.parents) + (first.own is not None)
            accepted = "document.querySelectorAll('#step-tree .node.accepted').length"
            assert opened.value(accepted) == len(first.path) - 1
            assert opened.value("document.querySelectorAll('#step-table tbody tr').length") == len(first.parents)
            opened.value("document.getElementById('step-last').click()")
            assert text(opened, "text") == "".join(piece for step in walk.steps for piece in step.pieces)


def test_a_screen_reader_has_a_name_for_everything_that_it_stops_at(opened):
    tree = opened.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "link", "image", "img", "combobox", "slider", "radio", "region", "table", "SvgRoot"}
    seen = [each for each in tree if not each.get("ignored") and each["role"]["value"] in roles]
    assert {"button", "link", "combobox", "slider", "radio", "region"} <= {each["role"]["value"] for each in seen}
    assert "Rounds, step by step" in [each.get("name", {}).get("value") for each in tree]
    assert [each["role"] for each in seen if not each.get("name", {}).get("value")] == []


def test_without_scripts_all_but_the_stepper_is_there(tab, page_file):
    tab.open(page_file, scripts=False)
    dom = tab.call("DOM.getDocument", depth=-1)["root"]
    html = tab.call("DOM.getOuterHTML", nodeId=dom["nodeId"])["outerHTML"]
    assert 'id="stepper" class="stepper" role="group" aria-label="Rounds, step by step" tabindex="0" hidden=""' in html
    tree = tab.call("Accessibility.getFullAXTree")["nodes"]
    said = " ".join(str(each.get("name", {}).get("value", "")) for each in tree if not each.get("ignored"))
    assert "this page needs JavaScript, which is switched off" in said
    assert "Acceptance by depth" in said
    tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_it_is_printed_in_light_colours_without_what_needs_hands(tab, page_file):
    tab.open(page_file, dark=True)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    tab.call("Emulation.setEmulatedMedia", media="print", features=[scheme])
    assert tab.value("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert tab.value("getComputedStyle(document.getElementById('stepper')).display") == "none"
    tab.call("Emulation.setEmulatedMedia", media="")


def test_nothing_wicked_in_a_name_is_run(tab, report, tmp_path):
    label = """</script><script>document.title='owned'</script><img src=x onerror="document.title='owned'">"""
    walks = attrs.evolve(report.walks, words=[label for _ in report.walks.words])
    methods = [attrs.evolve(one, label=label) for one in report.methods]
    wicked = tmp_path / "wicked.html"
    wicked.write_text(page_of(attrs.evolve(report, methods=methods, walks=walks, headline=label)), encoding="utf-8")
    tab.errors.clear()
    tab.open(wicked)
    assert tab.value("document.title") == f"{report.title}: talon bench report"
    assert tab.value("document.images.length") == 0
    assert label in tab.value("document.querySelector('#step-tree text').textContent")
    assert tab.errors == []
