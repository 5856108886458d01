"""Trees, rounds and results as plain data, and back."""

import json
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.drawn import Drawn
from talon_core.request import Result
from talon_core.rounds import BESIDE, LAYERED, PARTS, WORKS, Round, Span, Stats
from talon_core.testing import draft_trees, drawn_trees
from talon_core.tree import TokenTree

TREE = TokenTree([9, 3, 2, 5], [-1, 0, 0, 1], [0.0, -0.1, -np.inf, -0.3], {0: Drawn([2], [0.0, 0.5, 0.5])})
SPANS = (Span("draft", 0.1, 0.2, "layer", 3), Span("verify", 0.3, 1e14), Span("accept", 0.0, 5e-324))
ROUND = Round(TREE, np.array([0, 1]), np.array([3, 7]), TREE, 1, SPANS, 9, 2, 11)
RESULT = Result(np.array([1, 9]), [3, 7], "né\n", "length", True, [ROUND], Stats.of([ROUND], 1.5, 0.25))

amounts = st.floats(0.0, 1e12)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """A tree of any kind, with its laws or without, and any path in it."""
    tree = draw(draft_trees() | drawn_trees())
    tree = draw(st.sampled_from([tree, tree.without_laws()]))
    path = tree.path(draw(st.integers(0, len(tree) - 1)))
    tokens = np.append(tree.tokens[path[1:]], draw(st.integers(0, 2**40)))
    drafted = draw(st.none() | draft_trees())
    times = st.tuples(amounts, amounts).map(sorted)
    spans = []
    for part in draw(st.lists(st.sampled_from([*PARTS, *BESIDE]), max_size=3)):
        work = draw(st.sampled_from([None, *WORKS.get(part, ())]))
        spans.append(Span(part, *draw(times), work, draw(st.integers(0, 9)) if work in LAYERED else None))
    passes, *counts = [draw(st.integers(0, 1000)) for _ in range(5)]
    return Round(tree, path, tokens, drafted, passes, tuple(spans), *counts)


def same(one: Any, other: Any) -> bool:
    """Whether two records hold the same, to the last bit and the type of every field."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype == np.float64)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if attrs.has(type(one)):
        return all(same(getattr(one, each.name), getattr(other, each.name)) for each in attrs.fields(type(one)))
    return bool(one == other)


def through_json(record: Any) -> Any:
    return type(record).from_dict(json.loads(json.dumps(record.as_dict(), allow_nan=False)))


def test_a_span_says_no_more_than_it_knows():
    layer, verify, _ = SPANS
    assert layer.as_dict() == {"part": "draft", "start": 0.1, "end": 0.2, "work": "layer", "layer": 3}
    assert verify.as_dict() == {"part": "verify", "start": 0.3, "end": 1e14}


@given(rounds())
def test_a_round_comes_back_from_json_as_it_was(record):
    assert same(record, through_json(record))
    assert same(record.tree, through_json(record.tree))
    assert through_json(record).tree.depths.tolist() == record.tree.depths.tolist()


@settings(max_examples=40, deadline=None)
@given(st.lists(rounds(), max_size=3), st.sampled_from([True, False, "claimed"]), st.none() | st.text())
def test_a_result_comes_back_from_json_as_it_was(some, lossless, text):
    tokens = [token for one in some for token in one.tokens.tolist()]
    result = Result(np.array([1, 2]), tokens, text, "eos", lossless, some, Stats.of(some, 2.0, 0.5))
    assert same(result, through_json(result))


def test_numbers_that_json_does_not_know_come_back_too():
    odd = TokenTree([0, 1, 2, 3], [-1, 0, 0, 0], [0.0, -np.inf, np.nan, np.inf])
    assert odd.as_dict()["path_logp"] == [0.0, "-Infinity", "NaN", "Infinity"]
    assert same(odd, through_json(odd))


def test_what_came_back_is_read_only_like_what_was_written():
    back = through_json(ROUND)
    for array in (back.path, back.tokens, back.tree.tokens, back.tree.path_logp, back.tree.drawn[0].law):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_data_from_before_a_field_with_a_default_is_read_as_if_it_were_not_given():
    old = TokenTree([4, 5], [-1, 0], [0.0, -1.0]).as_dict()
    del old["drawn"]
    assert TokenTree.from_dict(old).drawn == {}


def changed(record: Any, *where: Any, to: Any) -> dict[str, Any]:
    """The record as plain data, with another value at one place; `...` leaves the field out."""
    data = json.loads(json.dumps(record.as_dict()))
    inner = data
    for step in where[:-1]:
        inner = inner[step]
    if to is ...:
        del inner[where[-1]]
    else:
        inner[where[-1]] = to
    return data


@pytest.mark.parametrize(
    ("cls", "data", "sentence"),
    [
        (TokenTree, 7, "no TokenTree: 7 is no dictionary; give what as_dict gave"),
        (TokenTree, [], "no TokenTree: [] is no dictionary; give what as_dict gave"),
        (TokenTree, {}, "no TokenTree: 'tokens', 'parents', 'path_logp' are missing; it has nothing"),
        (TokenTree, changed(TREE, "parents", to=...), "no TokenTree: 'parents' is missing; it has 'tokens', "),
        (TokenTree, changed(TREE, "shape", to=1), "no TokenTree: 'shape' is not known; there are 'tokens', "),
        (TokenTree, changed(TREE, "tokens", to="abc"), "'tokens' is 'abc'; it must be a list of whole numbers"),
        (TokenTree, changed(TREE, "tokens", 1, to=1.5), "'tokens' has 1.5 at 1; it must hold whole numbers of at"),
        (TokenTree, changed(TREE, "tokens", 1, to=True), "'tokens' has True at 1; it must hold whole numbers"),
        (TokenTree, changed(TREE, "tokens", 1, to=2**63), f"'tokens' has {2**63} at 1"),
        (TokenTree, changed(TREE, "tokens", 1, to=-3), "'tokens' has -3 at 1; it must hold whole numbers of at"),
        (TokenTree, changed(TREE, "parents", 1, to=3), "no TokenTree: node 1 has parent 3: a parent must stand"),
        (TokenTree, changed(TREE, "path_logp", to=[0.0]), "no TokenTree: a tree needs equally many tokens, parents"),
        (TokenTree, changed(TREE, "path_logp", 1, to="much"), "'path_logp' has 'much' at 1; it must hold numbers"),
        (TokenTree, changed(TREE, "path_logp", 1, to=10**400), "'path_logp' has 1000"),
        (TokenTree, changed(TREE, "path_logp", 1, to=None), "'path_logp' has None at 1; it must hold numbers"),
        (TokenTree, changed(TREE, "path_logp", 1, to=[]), "'path_logp' has [] at 1; it must hold numbers"),
        (TokenTree, changed(TREE, "drawn", to={"0": {}}), "'drawn' is {'0': {}}; it must be a list"),
        (TokenTree, changed(TREE, "drawn", 0, to={}), "'drawn' has at 0 {}; it must be a dictionary with a node"),
        (TokenTree, changed(TREE, "drawn", to=TREE.as_dict()["drawn"] * 2), "'drawn' has a node twice"),
        (TokenTree, changed(TREE, "drawn", 0, "node", to="0"), "'drawn' has at 0 a node that is '0'; it must be a"),
        (TokenTree, changed(TREE, "drawn", 0, "tokens", to=[]), "'drawn' has at 0 no Drawn: drawn tokens and their"),
        (TokenTree, changed(TREE, "drawn", 0, "replacement", to=0), "no Drawn: 'replacement' is 0; it must be true"),
        (TokenTree, changed(TREE.without_laws(), "drawn", 0, "logp", to=[]), "logp has shape (0,) for 1 drawn"),
        (Round, changed(ROUND, "tree", to=None), "no Round: 'tree' is no TokenTree: None is no dictionary"),
        (Round, changed(ROUND, "tree", "tokens", 0, to="x"), "no Round: 'tree' is no TokenTree: 'tokens' has 'x' at 0"),
        (Round, changed(ROUND, "path", to=[0, 3]), "no Round: 'path' is [0, 3]; it must lead down from the root"),
        (Round, changed(ROUND, "path", to=[0, 9]), "no Round: 'path' is [0, 9]"),
        (Round, changed(ROUND, "path", to=[]), "no Round: 'path' is []"),
        (Round, changed(ROUND, "draft_passes", to=1.0), "'draft_passes' is 1.0; it must be a whole number of at"),
        (Round, changed(ROUND, "spans", 0, "start", to=-1), "'start' is -1; it must be a finite number from"),
        (Round, changed(ROUND, "spans", 0, "end", to="NaN"), "'end' is 'NaN'; it must be a finite number"),
        (Round, changed(ROUND, "spans", 0, "end", to=0.05), "no Span: 'end' is 0.05; it must be no less than 'start'"),
        (Round, changed(ROUND, "spans", 1, "part", to="pray"), "no Span: 'part' is 'pray'; it must be one of"),
        (
            Round,
            changed(ROUND, "spans", 0, "part", to="accept"),
            "'work' is 'layer'; of the part 'accept' it must be",
        ),
        (
            Round,
            changed(ROUND, "spans", 0, "work", to="grow"),
            "'work' is 'grow'; of the part 'draft' it must be one",
        ),
        (Round, changed(ROUND, "spans", 0, "work", to=[]), "no Span: 'work' is []; it must be text"),
        (
            Round,
            changed(ROUND, "spans", 0, "work", to="commit"),
            "no Span: 'layer' is 3 and 'work' is commit; there",
        ),
        (
            Round,
            changed(ROUND, "spans", 0, "layer", to=None),
            "no Span: 'layer' is None and 'work' is layer; ther",
        ),
        (Round, changed(ROUND, "spans", 0, "layer", to=-1), "no Span: 'layer' is -1; it must be a whole number of at"),
        (Stats, changed(RESULT.stats, "rounds", to="1"), "no Stats: 'rounds' is '1'; it must be a whole number"),
        (Result, changed(RESULT, "rounds", to=3), "no Result: 'rounds' is 3; it must be a list"),
        (Result, changed(RESULT, "rounds", 0, "path", to=[0, 2, 3]), "no Result: 'rounds' has at 0 no Round: 'path'"),
        (Result, changed(RESULT, "stats", to=[]), "no Result: 'stats' is no Stats: [] is no dictionary"),
        (Result, changed(RESULT, "lossless", to=1), "no Result: 'lossless' is 1; it must be one of true, false, "),
        (Result, changed(RESULT, "text", to=b""), "no Result: 'text' is b''; it must be text"),
    ],
)
def test_what_is_no_record_is_refused_in_a_sentence(cls, data, sentence):
    with pytest.raises(ValueError, match=r"^no ") as raised:
        cls.from_dict(data)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("field", "value"), [("lossless", "false"), ("lossless", 1), ("lossless", None), ("finish_reason", "done")]
)
def test_a_result_says_only_what_results_can_say(field, value):
    result = Result(np.array([1]), [2], "b", "eos", True, [], Stats.of([], 2.0, 0.5))
    with pytest.raises(ValueError, match=f"'{field}' .*one of"):
        Result.from_dict({**result.as_dict(), field: value})
