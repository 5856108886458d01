"""Trees and rounds as notebooks show them."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given

from talon_core.drawn import Drawn
from talon_core.pictures.notebook import MOST_NODES, picture_of
from talon_core.rounds import Round
from talon_core.testing import draft_trees, drawn_trees
from talon_core.tree import TokenTree

TREE = TokenTree([40, 41, 42, 43, 44], [-1, 0, 0, 1, 1], np.log([1.0, 0.75, 0.1, 0.6, 0.15]))
SVG = "{http://www.w3.org/2000/svg}"


def round_of(tree, path, own=None):
    tokens = tree.tokens[path[1:]].tolist() + ([] if own is None else [own])
    return Round(tree, np.array(path), np.array(tokens))


def page(html):
    """The picture read as XML, which is stricter than any browser."""
    assert html.count("<svg") == 1
    return ElementTree.fromstring(html.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"').replace("&nbsp;", ""))


def boxes(html):
    """For each node its texts, as many as it shows, and its rectangle."""
    return [([t.text for t in g.iter(f"{SVG}text")], g.find(f"{SVG}rect").attrib) for g in page(html).iter(f"{SVG}g")]


def test_a_tree_shows_its_tokens_by_their_ids_and_how_likely_each_is_after_its_parent():
    assert [texts for texts, _ in boxes(TREE._repr_html_())] == [
        ["40"],
        ["41", "75%"],
        ["42", "10%"],
        ["43", "80%"],
        ["44", "20%"],
    ]
    assert "5 nodes, depth 2" in TREE._repr_html_()


def test_a_round_shows_what_was_accepted_and_the_target_s_own_token():
    html = round_of(TREE, [0, 1, 4], own=77)._repr_html_()
    assert "5 nodes, depth 2, accepted 2 + 1" in html
    coloured = [texts[0] for texts, look in boxes(html) if look.get("stroke", "").startswith("#")]
    assert coloured == ["41", "44", "77"]
    rows = {texts[0]: look["y"] for texts, look in boxes(html)}
    assert len({rows[token] for token in ("40", "41", "44", "77")}) == 1  # the accepted path is one straight line


def test_a_round_that_a_stop_condition_cut_shows_what_it_emitted():
    html = round_of(TREE, [0, 1, 4])._repr_html_()
    assert "accepted 2</b>" in html
    assert "77" not in [texts[0] for texts, _ in boxes(html)]


def test_tokens_are_shown_as_text_where_somebody_can_tell_it():
    texts = ["", " a", "<b>&\"'", "\n", "x" * 99]
    html = picture_of(TREE, lambda token: texts[token - 40]).html
    assert [texts[0] for texts, _ in boxes(html)] == ["␀", "·a", "<b>&\"'", "↵", "x" * 23 + "…"]


@pytest.mark.parametrize("text", ["</svg><script>alert(1)</script>", "]]>", "\x00\x1b[31m", "\ud800", "&#0;", "<!--"])
def test_no_text_of_a_token_gets_out_of_the_picture(text):
    html = picture_of(TREE, lambda _: text).html
    assert len(boxes(html)) == 5
    assert "<script" not in html
    html.encode()


def test_drawn_children_are_dashed():
    drawn = TokenTree(TREE.tokens, TREE.parents, TREE.path_logp, {0: Drawn([42], np.eye(50)[42])})
    assert [texts[0] for texts, look in boxes(drawn._repr_html_()) if "stroke-dasharray" in look] == ["42"]
    assert "dashed: drawn" in drawn._repr_html_()
    assert "dashed" not in TREE._repr_html_()


def test_nothing_is_loaded_and_colours_are_the_page_s_own_or_seen_on_any():
    html = round_of(TREE, [0, 1], own=3)._repr_html_()
    assert not re.search(r"https?:|url\(|<script|<style|<link|@import|\bid=|class=", html)
    assert 'fill="currentColor"' in html
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", html)) == {"#2da44e", "#d29922"}


def test_large_trees_are_cut_to_what_is_accepted_and_what_is_likely():
    nodes = 1000
    wide = TokenTree(range(nodes), [-1] + [0] * (nodes - 1), -0.01 * np.arange(nodes))
    html = round_of(wide, [0, nodes - 1], own=3)._repr_html_()
    assert f"{nodes - MOST_NODES - 1} unlikely nodes are not shown" in html
    assert str(nodes - 1) in [texts[0] for texts, _ in boxes(html)]
    assert len(html) < 150_000


@given(draft_trees() | drawn_trees())
def test_every_node_has_a_place_of_its_own_inside_the_picture_right_of_its_parent(tree):
    html = tree._repr_html_()
    svg = next(page(html).iter(f"{SVG}svg"))
    width, height = float(svg.get("width")), float(svg.get("height"))
    places = [tuple(float(look[name]) for name in ("x", "y", "width", "height")) for _, look in boxes(html)]
    assert len(places) == len(tree)
    for node, (x, y, wide, high) in enumerate(places):
        assert x >= 0 <= y
        assert x + wide <= width
        assert y + high <= height
        if node:
            left, _, parents_width, _ = places[int(tree.parents[node])]
            assert x > left + parents_width
        assert all(x >= a + c or x + wide <= a or y >= b + d or y + high <= b for a, b, c, d in places[:node])


def test_probabilities_that_are_no_numbers_are_shown_as_such():
    odd = TokenTree([0, 1, 2, 3], [-1, 0, 1, 0], [0.0, -np.inf, -np.inf, np.nan])
    assert [texts for texts, _ in boxes(odd._repr_html_())] == [["0"], ["1", "<1%"], ["2", "nan%"], ["3", "nan%"]]
