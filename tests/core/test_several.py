"""Several parts in one option: how they are written, and read."""

import pytest

from talon_core.plugins.nested import part_spec
from talon_core.plugins.several import made_parts, split_parts
from talon_core.plugins.specs import spelled
from talon_strategies import Bandit, Chain, DynamicDepth, SpecInfer, StaticTree, Talon


def test_parts_are_joined_by_plus_with_options_in_brackets():
    assert split_parts("a+b[c=1;d=2+3]+e", "things", "a+b") == ["a", "b[c=1;d=2+3]", "e"]


@pytest.mark.parametrize("of", ["", "+", "a+", "+a", "a++b", "a+a", "a[b", "a]b", "a[b[c]", "[b=1]", "a[b=1]c"])
def test_what_is_no_such_list_is_refused_in_words(of):
    with pytest.raises(
        ValueError, match=r"^of is '.*'; it must be different things joined by '\+', options in brackets"
    ):
        split_parts(of, "things", "a+b")


@pytest.mark.parametrize(
    ("written", "spec"),
    [
        ("a", "a"),
        ("a[]", "a"),
        ("a[b=1]", "a:b=1"),
        ("a[b=1;c=2]", "a:b=1,c=2"),
        ("ddd[checked=5;7;9;depth=10]", "ddd:checked=5;7;9,depth=10"),
        ("specinfer[widths=3;1;1]", "specinfer:widths=3;1;1"),
        ("a[b=;c=2]", "a:b=,c=2"),
    ],
)
def test_a_semicolon_stands_between_options_or_within_a_list(written, spec):
    assert part_spec(written) == spec


def test_parts_are_made_in_order_and_words_stand_for_what_they_are_said_to():
    none = object()
    found = made_parts("tree policy", ["chain[length=2]", "none", "talon"], {"none": none})
    assert found == (Chain(2), none, Talon())


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("chian", "^of: no tree policy 'chian'; did you mean 'chain'"),
        ("chain[depth=3]", "tree policy 'chain' has no option 'depth'"),
        ("chain[length=0]", "length"),
        ("chain[length]", "'length' in 'chain:length' is no option"),
    ],
)
def test_a_part_that_cannot_be_made_is_named(written, says):
    with pytest.raises(ValueError, match=says):
        made_parts("tree policy", [written], {})


@pytest.mark.parametrize(("besides", "there"), [({"none": None}, "heuristic, none, opt-tree"), ({}, "heuristic, opt-")])
def test_words_are_listed_where_they_stand_for_something(besides, there):
    with pytest.raises(ValueError, match=rf"^of: no tree policy 'nothing'; there are: .*{there}"):
        made_parts("tree policy", ["nothing"], besides)


@pytest.mark.parametrize(
    "policies",
    [
        (Chain(2), Talon()),
        (DynamicDepth(checked=(1, 2), threshold=0.2), StaticTree("0;0.0")),
        (SpecInfer(widths=(2, 1)),),
    ],
    ids=str,
)
def test_what_is_written_of_parts_is_read_as_them(policies):
    spec = spelled(Bandit(policies, explore=0.5))
    assert spec.endswith(",explore=0.5")
    of = spec.removeprefix("bandit:of=").removesuffix(",explore=0.5")
    assert Bandit(of, explore=0.5) == Bandit(policies, explore=0.5)
