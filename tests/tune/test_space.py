"""What is searched: what the policy says of itself, and what the user says."""

import re

import attrs
import pytest
from attrs.validators import ge

from talon_core import Candidates, Choices, Growth, TokenTree, TreePolicy, hookimpl, searched, searched_among
from talon_core.errors import PluginError
from talon_core.plugins.registry import Registry, load_registry
from talon_core.searching import KEY, Among, Range
from talon_core.tune.space import space_of


@attrs.frozen
class Mixed(TreePolicy):
    """Options of several types."""

    name = "mixed"
    budget: int = attrs.field(default=8, validator=ge(2), metadata=searched(2, 32, log=True))
    rate: float = attrs.field(default=0.5, metadata=searched(0.1, 0.9))
    mode: str = attrs.field(default="deep", metadata=searched_among("deep", "wide"))
    twice: bool = attrs.field(default=False, metadata=searched_among(False, True))
    depth: int | None = None

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(1))


@attrs.frozen
class Odd(Mixed):
    """Says something else than a range."""

    name = "odd"
    rate: float = attrs.field(default=0.5, metadata={KEY: (0, 1)})


@attrs.frozen
class Bare(TreePolicy):
    """Has nothing to be set."""

    name = "bare"
    budget: int = attrs.field(init=False, default=2)

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(1))


class Plugin:
    @hookimpl
    def talon_policies(self) -> list[type[TreePolicy]]:
        return [Mixed, Odd, Bare, Narrow]


@pytest.fixture(scope="module")
def registry() -> Registry:
    ours = load_registry([("theirs:plugin", Plugin)])
    built_in = load_registry()
    together = {**built_in.entries["tree policy"], **ours.entries["tree policy"]}
    return attrs.evolve(built_in, entries={**built_in.entries, "tree policy": together})


def test_a_policy_says_itself_what_is_searched_a_plugins_too(registry: Registry) -> None:
    space = space_of(registry, "mixed")
    assert [(one.option, one.values, one.whole, one.default) for one in space.dimensions] == [
        ("budget", Range(2, 32, True), True, "8"),
        ("rate", Range(0.1, 0.9), False, "0.5"),
        ("mode", Among(("deep", "wide")), False, "deep"),
        ("twice", Among(("false", "true")), False, "false"),
    ]
    assert space.base == "mixed"


def test_what_is_written_in_the_spec_is_fixed(registry: Registry) -> None:
    space = space_of(registry, "mixed:rate=0.3,depth=2")
    assert [one.option for one in space.dimensions] == ["budget", "mode", "twice"]
    assert space.spec({"budget": "4"}) == "mixed:rate=0.3,depth=2,budget=4"


def test_a_user_adds_and_replaces(registry: Registry) -> None:
    space = space_of(registry, "mixed", ["depth=none|2|4", "budget=3..5", "rate=0.01..1:log"])
    assert {one.option: str(one.values) for one in space.dimensions} == {
        "budget": "3..5",
        "rate": "0.01..1.0:log",
        "mode": "deep|wide",
        "twice": "false|true",
        "depth": "none|2|4",
    }


def test_numbers_are_tried_with_three_digits_and_within_their_range(registry: Registry) -> None:
    budget, rate, *_ = space_of(registry, "mixed", ["rate=0.12345..0.9"]).dimensions
    assert rate.text(0.345678) == "0.346"
    assert rate.text(0.12346) == "0.12345"
    assert budget.text(31) == "31"
    assert (budget.of_text("31"), budget.of_text("33"), budget.of_text("auto")) == (31, None, None)


WRONG = {
    "buget=2..4": "--search buget=2..4: tree policy 'mixed' has no option 'buget'; did you mean 'budget'?",
    "budget": "--search is 'budget'; it is written OPTION=LOW..HIGH",
    "budget=": "--search is 'budget='; it is written",
    "budget=4..2": "--search budget=4..2: 4..2: the first number must be below the second",
    "budget=2..2": "the first number must be below the second",
    "budget=2.5..4": "'2.5' is not a whole number",
    "budget=two..4": "'two' is not a whole number",
    "rate=0..nan": "'nan' is not a finite number",
    "rate=0..1:log": "where factors count, the first number must be above 0",
    "rate=0.1..1:square": "'square' is no scale; there is log",
    "budget=4": "there must be two values or more",
    "mode=a..b": "the option is no number; write its values with | between them",
    "budget=1..8": "'budget' cannot be searched in 1..8: with 1, tree policy 'mixed': 'budget' must be >= 2",
    "budget=4|x": "option 'budget' of tree policy 'mixed' is 'x'; it must be a whole number",
}


@pytest.mark.parametrize("search", WRONG)
def test_what_cannot_be_searched_gets_a_sentence(registry: Registry, search: str) -> None:
    with pytest.raises(ValueError, match=re.escape(WRONG[search])):
        space_of(registry, "mixed", [search])


@pytest.mark.parametrize(
    ("spec", "searches", "sentence"),
    [
        ("mixed:rate=0.2", ["rate=0.1..0.3"], "--search has 'rate', which 'mixed:rate=0.2' gives a value already"),
        ("mixed", ["rate=0.1..0.3", "rate=0.1..0.4"], "--search has 'rate' twice"),
        ("static", [], "'static' does not say which values of its options may be worth a try; say it, as in --search "),
        ("bare", [], "tree policy 'bare' has no options"),
        ("chain:length=3", [], "there is nothing to search: 'chain' is given length; leave one of them out"),
        ("mixed:rate=x", [], "option 'rate' of tree policy 'mixed' is 'x'; it must be a number"),
    ],
)
def test_where_nothing_can_be_searched_a_sentence_says_how(
    registry: Registry, spec: str, searches: list[str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        space_of(registry, spec, searches)


def test_a_plugin_that_says_something_else_is_named(registry: Registry) -> None:
    with pytest.raises(PluginError, match=r"tree policy 'odd' \(.*Odd\) says of 'rate' that \(0, 1\) is searched"):
        space_of(registry, "odd")


@attrs.frozen
class Narrow(Mixed):
    """Says more than it takes."""

    name = "narrow"
    budget: int = attrs.field(default=4, validator=ge(4), metadata=searched(2, 8))


def test_a_plugins_ranges_are_checked_as_a_users_are(registry: Registry) -> None:
    with pytest.raises(ValueError, match=r"'budget' cannot be searched in 2\.\.8: with 2, tree policy 'narrow'"):
        space_of(registry, "narrow")


def test_ends_that_are_too_large_for_any_tree_are_refused_before_anything_is_tried() -> None:
    with pytest.raises(ValueError, match=r"'budget' cannot be searched in 2\.\.99999: .* at most 65536"):
        space_of(load_registry(), "talon", ["budget=2..99999"])
