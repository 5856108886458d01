"""Timelines: every stretch in its lane, to scale, for any rounds; and the same as a table."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.report.lane_page import FORMS, page_of_lanes, timeline_file
from talon_core.report.lanes import HEADS, LANED, LANES, stretches, timeline_of
from talon_core.report.svg_lanes import bands
from talon_core.rounds import BESIDE, LAYERED, PARTS, WORKS, Round, Span
from talon_core.tree import TokenTree

TREE = TokenTree.root(3)


def one_round(*spans, hit=None, tokens=1):
    made = tuple(Span(*span) for span in spans)
    return Round(tree=TREE, path=np.zeros(1, dtype=np.int64), tokens=np.arange(tokens), spans=made, hit=hit)


def two_rounds():
    """The drafter goes on from 2 to 5 while the target verifies from 2 to 4; a round then waits for a second."""
    first = one_round(
        *[("draft", 0, 0.5, "layer", 0), ("draft", 0.5, 2, "layer", 1), ("verify", 2, 4)],
        *[("prepare", 2, 5, "layer", 0), ("draft", 4, 5, "commit"), ("wait", 4, 5)],
        tokens=2,
    )
    return [first, one_round(("verify", 5, 9), ("policy", 5, 5), hit=True, tokens=3)]


@st.composite
def some_rounds(draw):
    """Rounds after each other, whose spans lie as they like."""
    at, found = draw(st.floats(0, 10)), []
    for _ in range(draw(st.integers(1, 12))):
        spans = []
        for _ in range(draw(st.integers(1, 5))):
            start = at + draw(st.floats(0, 1))
            spans.append((draw(st.sampled_from([*PARTS, *BESIDE])), start, start + draw(st.floats(0, 1))))
        spans.sort(key=lambda span: span[1])
        found.append(one_round(*spans, hit=draw(st.sampled_from([None, True, False]))))
        at = max(end for _, _, end in spans)
    return found


def test_every_part_of_a_round_has_a_lane():
    assert sorted(LANED) == sorted([*PARTS, *BESIDE])


def test_what_happened_is_said():
    said = timeline_of(two_rounds()).said
    assert said.startswith("2 rounds, 5 tokens in 9000.0 ms. The target was at work in 67% of the time")
    assert "the drafter in 56%, both at once in 22%; rounds waited for the drafter in 11%." in said
    assert said.endswith("1 of 1 round began with what was prepared.")


def test_rounds_in_turn_overlap_in_nothing():
    timeline = timeline_of([one_round(("draft", 0, 1), ("verify", 1, 3)), one_round(("draft", 3, 4), ("verify", 4, 5))])
    assert timeline.at_once == 0
    assert timeline.said.endswith("at work in 60% of the time and the drafter in 40%, one after the other.")
    assert "waiting" not in timeline.lanes


@given(some_rounds())
def test_shares_of_the_time_are_shares(rounds):
    timeline = timeline_of(rounds)
    for own in LANES.values():
        assert 0 <= timeline.busy(*own) <= 1 + 1e-9
    assert timeline.at_once <= min(timeline.busy("verify"), timeline.busy("draft", "prepare")) + 1e-9


@given(some_rounds())
def test_bands_have_every_round_once_and_none_is_longer_than_the_scale(rounds):
    timeline = timeline_of(rounds)
    found = timeline.bands()
    assert [turn.number for band in found for turn in band] == list(range(1, len(rounds) + 1))
    assert all(band[-1].end - band[0].start <= timeline.width * (1 + 1e-9) for band in found)


@given(some_rounds())
def test_every_stretch_is_drawn_in_its_lane_and_to_scale(rounds):
    timeline = timeline_of(rounds)
    root = ET.fromstring(bands(timeline, "some rounds"))
    boxes = [each for each in root.iter() if each.tag == "rect"]
    stretches = [one for turn in timeline.turns for one in turn.stretches]
    assert sorted(each.get("class").split()[1] for each in boxes) == sorted(one.part for one in stretches)
    width = float(root.get("width"))
    assert all(0 <= float(each.get("x")) <= width for each in boxes)
    marks = [each.get("class") for each in root.iter() if each.tag == "circle"]
    assert marks.count("lane-hit") == sum(one.hit is True for one in rounds)
    assert marks.count("lane-miss") == sum(one.hit is False for one in rounds)


def test_the_table_has_what_the_picture_shows():
    first, second = timeline_of(two_rounds()).rows()
    told = dict(zip(HEADS, first, strict=True))
    assert (told["round"], told["prepared"], told["tokens"]) == ("1", "-", "2")
    assert (told["draft"], told["prepare"], told["verify"], told["wait"]) == (
        "3000.00",
        "3000.00",
        "2000.00",
        "1000.00",
    )
    assert second[1] == "hit"
    assert told["of draft"] == "layer 1 500.00, layer 2 1500.00, commit 1000.00"
    assert second[-1] == "-"


def test_every_stretch_is_called_by_what_it_is_wherever_it_lies():
    works = [(part, work) for part in (*PARTS, *BESIDE) for work in (None, *WORKS.get(part, ()))]
    spans = [Span(part, 1, 2, work, 6 if work in LAYERED else None) for part, work in works]
    named = dict(zip(works, stretches(spans, 0.0), strict=True))
    assert named["draft", "layer"].name == "draft layer 7"
    assert named["draft", "layer"].work == "layer 7"
    assert named["draft", "commit"].name == "the drafter reads what was accepted"
    assert named["draft", "answers"].work == "answers"
    assert named["draft", None].name == "drafting"
    assert named["verify", None].name == named["verify", None].work == "verify"
    names = [one.name for one in named.values()]
    assert len({*names}) == len(names)  # all are told apart
    of_layers = [name for name in names if "7" in name]
    assert len(of_layers) == 4
    assert [one.name for one in stretches(spans[::-1], 0.0)] == names[::-1]


def test_the_picture_and_the_table_name_layers_and_the_commit():
    page = page_of_lanes(timeline_of(two_rounds()), "a model")
    named = "draft layer 1", "draft layer 2", "the drafter reads what was accepted", "layer 1 of what is prepared"
    for name in named:
        assert f"<title>round 1, {name}" in page
    assert "layer 1 500.00, layer 2 1500.00, commit 1000.00" in page


def test_a_page_draws_the_first_rounds_and_has_all_in_its_table():
    rounds = [one_round(("verify", at, at + 1)) for at in range(7)]
    page = page_of_lanes(timeline_of(rounds), "a <model> & more", "ngram/talon", most=3)
    assert "The first 3 of 7 rounds are drawn" in page
    assert "a &lt;model&gt; &amp; more" in page
    assert len(re.findall(r'<tr><th scope="row">', page)) == 7
    assert 'aria-label="Timeline of 3 rounds in lanes: target, drafter, policy, accept, commit"' in page


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rounds_are_the_same_file(form):
    timeline = timeline_of(two_rounds())
    first = timeline_file(timeline, form, "a $model")
    assert first == timeline_file(timeline, form, "a $model")
    assert first.startswith({"html": b"<!doctype", "png": b"\x89PNG", "svg": b"<?xml"}[form])


def test_another_form_is_refused():
    with pytest.raises(ValueError, match="the form is 'pdf'; it must be one of html, png, svg"):
        timeline_file(timeline_of(two_rounds()), "pdf", "a model")


def test_rounds_without_times_are_refused_and_others_left_out():
    with pytest.raises(ValueError, match="no round that says what took time"):
        timeline_of([one_round()])
    assert [turn.number for turn in timeline_of([one_round(), *two_rounds()]).turns] == [2, 3]


def test_rounds_of_the_middle_keep_their_numbers():
    timeline = timeline_of([one_round(("verify", at, at + 1)) for at in range(7)])
    assert [turn.number for turn in timeline.middle(3).turns] == [3, 4, 5]
    assert timeline.middle(9) == timeline
