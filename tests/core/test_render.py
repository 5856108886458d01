"""Drawings of draft trees, on a tree of seven nodes drawn by hand."""

import io

import numpy as np
import pytest
from rich.console import Console

from talon_core.pictures.render import render_tree, to_svg
from talon_core.tree import TokenTree

TEXTS = ["def", " total", "_price", "(", "items", ")", ":\n", "    return"]


@pytest.fixture
def tree() -> TokenTree:
    """Seven nodes.

    def ── ·total ── ( ── :
     │         └──── items
     └── _price ── )
    """
    probs = np.array([1.0, 0.8, 0.1, 0.9, 0.05, 0.5, 0.97])
    parents = [-1, 0, 0, 1, 1, 2, 3]
    path_logp = np.zeros(7)
    for node in range(1, 7):
        path_logp[node] = path_logp[parents[node]] + np.log(probs[node])
    return TokenTree(tokens=range(7), parents=parents, path_logp=path_logp)


def draw(*arguments: object, width: int = 80, encoding: str = "utf-8", color: bool = False, **options: object) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=file, width=width, force_terminal=color, color_system="truecolor" if color else None)
    console.print(render_tree(*arguments, **options))
    file.flush()
    return raw.getvalue().decode(encoding)


def lines(drawing: str) -> list[str]:
    return [line.rstrip() for line in drawing.splitlines()]


def test_a_round_at_a_glance(tree):
    drawn = draw(tree, [0, 1, 3], TEXTS.__getitem__, next_token=7, round_number=7)
    assert lines(drawn) == [
        "round 7: 7 nodes, depth 3, accepted 2 + 1",
        "",
        "● def",
        "├─ ✔ ·total ▇80%",
        "│  ├─ ✔ ( ▇90%",
        "│  │  ├─ ◆ ····return",
        "│  │  ╰─ :↵ █97%",
        "│  ╰─ items ▁5%",
        "╰─ _price ▂10% ─ ) ▄50%",
        "",
        "✔ accepted   ◆ the target's own   % drafter's probability after the parent",
    ]


def test_ascii_terminals_get_ascii(tree):
    drawn = draw(tree, [0, 1, 3], [*TEXTS[:4], "é", *TEXTS[5:]].__getitem__, next_token=7, encoding="ascii")
    assert lines(drawn) == [
        "7 nodes, depth 3, accepted 2 + 1",
        "",
        "o def",
        "|- * _total 80%",
        "|  |- * ( 90%",
        "|  |  |- + ____return",
        "|  |  `- :\\n 97%",
        "|  `- \\xe9 5%",
        "`- _price 10% - ) 50%",
        "",
        "* accepted   + the target's own   % drafter's probability after the parent",
    ]


def test_a_fully_accepted_chain_is_one_line(tree):
    chain = tree.keep([0, 1, 3, 6])
    drawn = draw(chain, [0, 1, 2, 3], TEXTS.__getitem__, next_token=7)
    assert lines(drawn)[2:-2] == ["● def ─ ✔ ·total ▇80% ─ ✔ ( ▇90% ─ ✔ :↵ █97% ─ ◆ ····return"]


def test_what_branches_stands_under_the_last_node_of_its_line():
    tree = TokenTree(range(7), [-1, 0, 1, 2, 2, 3, 5], -0.1 * np.arange(7))
    drawing = (tree, [0, 1, 2], TEXTS.__getitem__, 7)
    assert lines(draw(*drawing))[2:-2] == [
        "● def ─ ✔ ·total ▇90% ─ ✔ _price ▇90%",
        "                        ├─ ◆ ····return",
        "                        ├─ ( ▇90% ─ ) ▇82% ─ :↵ ▇90%",
        "                        ╰─ items ▇82%",
    ]
    assert lines(draw(*drawing, encoding="ascii"))[2:6] == [
        "o def - * _total 90% - * _price 90%",
        "                       |- + ____return",
        "                       |- ( 90% - ) 82% - :\\n 90%",
        "                       `- items 82%",
    ]


def test_where_that_would_leave_too_little_room_the_last_node_begins_a_line():
    tree = TokenTree(range(7), [-1, 0, 1, 2, 2, 3, 5], -0.1 * np.arange(7))
    assert lines(draw(tree, [0, 1, 2], TEXTS.__getitem__, next_token=7, width=48))[2:7] == [
        "● def ─ ✔ ·total ▇90% ─",
        "  ✔ _price ▇90%",
        "  ├─ ◆ ····return",
        "  ├─ ( ▇90% ─ ) ▇82% ─ :↵ ▇90%",
        "  ╰─ items ▇82%",
    ]


def test_inside_a_branch_guides_go_on_beside_what_stands_further_right():
    tree = TokenTree([0, 1, 2, 3, 4, 5, 6, 1], [-1, 0, 0, 1, 3, 3, 4, 2], -0.1 * np.arange(8))
    assert lines(draw(tree, [0, 1, 3], TEXTS.__getitem__, next_token=7))[2:-2] == [
        "● def",
        "├─ ✔ ·total ▇90% ─ ✔ ( ▇82%",
        "│                  ├─ ◆ ····return",
        "│                  ├─ items ▇90% ─ :↵ ▇82%",
        "│                  ╰─ ) ▇82%",
        "╰─ _price ▇82% ─ ·total ▅61%",
    ]


def test_nothing_accepted_still_shows_the_target_s_own_token(tree):
    drawn = draw(tree.keep([0, 1, 2]), [0], TEXTS.__getitem__, next_token=7)
    assert lines(drawn)[2:-2] == ["● def", "├─ ◆ ····return", "╰─ ·total ▇80%   _price ▂10%"]


def test_a_token_that_was_not_emitted_is_not_drawn(tree):
    drawn = draw(tree, [0, 1], TEXTS.__getitem__)
    assert "accepted 1\n" in drawn.replace(" \n", "\n")
    assert "◆" not in "".join(lines(drawn)[:-1])


def test_the_root_alone():
    drawn = draw(TokenTree.root(0), [0], TEXTS.__getitem__, next_token=1)
    assert lines(drawn)[:3] == ["1 node, depth 0, accepted 0 + 1", "", "● def ─ ◆ ·total"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [20, 40, 80])
@pytest.mark.parametrize("parents_of", ["chain", "bush", "comb"])
def test_long_trees_stay_within_the_width_and_keep_every_token(parents_of, width, encoding):
    parents = {
        "chain": [-1, *range(62)],
        "bush": [-1, *(node // 2 for node in range(62))],
        "comb": [-1, *(node - node % 2 for node in range(62))],
    }[parents_of]
    tree = TokenTree(tokens=range(63), parents=parents, path_logp=[-0.1 * node for node in range(63)])
    deepest = int(tree.depths.argmax())
    drawn = draw(tree, tree.path(deepest), lambda token: f"t{token}.", next_token=99, width=width, encoding=encoding)
    assert max(map(len, drawn.splitlines())) <= width
    for token in [*range(63), 99]:
        assert f" t{token}." in drawn


def test_wide_and_unprintable_characters_do_not_disturb_the_lines():
    texts = ["\x1b[31m", "", "\ufffd", "漢字" * 30, "\t\r"]
    tree = TokenTree(tokens=range(5), parents=[-1, 0, 0, 1, 2], path_logp=np.zeros(5))
    drawn = draw(tree, [0, 1], texts.__getitem__)
    assert "\x1b" not in drawn
    assert "\\x1b[31m" in drawn
    assert "⇥␍" in drawn
    assert "漢字漢字" in drawn
    assert max(map(len, drawn.splitlines())) <= 80


def test_a_probability_above_one_by_rounding_is_one():
    tree = TokenTree(tokens=[0, 1], parents=[-1, 0], path_logp=[0.0, 1e-4])
    assert "█100%" in draw(tree, [0, 1], TEXTS.__getitem__)


def test_colour_adds_nothing_but_colour(tree, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    arguments = (tree, [0, 1, 3], TEXTS.__getitem__)
    coloured = draw(*arguments, color=True, next_token=7)
    assert "\x1b[1;32m✔ ·total\x1b[0m" in coloured
    from rich.text import Text

    assert lines(Text.from_ansi(coloured).plain) == lines(draw(*arguments, next_token=7))


def test_a_picture_loads_nothing_from_elsewhere(tree):
    svg = to_svg(render_tree(tree, [0, 1, 3], TEXTS.__getitem__, next_token=7), title="one round")
    assert svg.startswith("<svg")
    assert "one&#160;round" in svg
    assert "def" in svg
    assert "url(http" not in svg
    assert "@font-face" not in svg
