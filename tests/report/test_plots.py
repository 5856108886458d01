"""The figures as files."""

import sys
import xml.etree.ElementTree as ET

import attrs
import pytest

from talon_core.report.figures import FIGURES, SHAPES
from talon_core.report.plots import DRAWN, pictures_of


@pytest.fixture(scope="module")
def drawn(report):
    return pictures_of(report, ["svg", "png"])


def test_every_figure_is_drawn_in_every_form(drawn):
    assert set(drawn) == {f"{name}.{form}" for name in FIGURES for form in ("svg", "png")}
    for name, data in drawn.items():
        assert data.startswith(b"\x89PNG") if name.endswith(".png") else ET.fromstring(data).tag.endswith("svg")


def test_a_figure_is_the_same_file_each_time_and_a_missing_one_is_left_out(report, drawn):
    missing = {name: "not now" for name in FIGURES if name not in ("speed", "ranks", "timeline")}
    again = pictures_of(attrs.evolve(report, missing=missing), ["svg"])
    assert set(again) == {"speed.svg", "ranks.svg", "timeline.svg"}
    assert all(again[name] == drawn[name] for name in again)


def test_lines_of_equal_speed_are_drawn_where_a_draft_pass_has_a_cost(report):
    def lines(cost):
        known = attrs.evolve(report, efficiency=attrs.evolve(report.efficiency, cost=cost))
        [axes] = DRAWN["efficiency"](known).axes
        first = len(axes.lines) - len(axes.texts)  # they are drawn last
        return [(text.get_text(), line) for text, line in zip(axes.texts, axes.lines[first:], strict=True)]

    assert not lines(None)
    for cost in (0.0, 0.2):
        assert lines(cost)
        for said, line in lines(cost):
            for delta, tau in zip(*line.get_data(), strict=True):
                assert tau / (1 + cost * delta) == pytest.approx(float(said.removesuffix("x")))


def test_names_are_no_formulas(report):
    methods = [attrs.evolve(one, label="$\\nonsense{$ & <b>_x^{ 🙂\x01" * 9) for one in report.methods]
    missing = dict.fromkeys({*FIGURES} - {"speed", SHAPES, "efficiency"}, "not now")
    found = pictures_of(attrs.evolve(report, methods=methods, missing=missing), ["svg"])
    assert all(ET.fromstring(data).tag.endswith("svg") for data in found.values())


def test_nothing_of_ours_stays_in_matplotlib(drawn):
    import matplotlib

    assert matplotlib.rcParams["svg.hashsalt"] is None
    assert "matplotlib.pyplot" not in sys.modules


def test_without_matplotlib_a_sentence_says_how_to_get_it(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ValueError, match=r"^--figures needs matplotlib, .* install it with: pip install 'talon-core\[plots\]'$"
    ):
        pictures_of(report, ["png"])
