"""Policies of any kind, asked in turn for trees that grow side by side, have the rounds of each text by itself."""

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core import Candidates, Growth, TokenTree, TreePolicy
from talon_core.choices import Choices
from talon_core.errors import PluginError
from talon_core.policy import SequenceInfo
from talon_core.rounds import Round
from talon_core.testing.benchmarks import SHIPPED
from talon_core.testing.odd_policies import CoinTosser, Erratic
from talon_core.trace import trying
from talon_core.trace.folder import Trace, read_trace
from talon_core.trace.replay import Method, Replay, Replayed
from talon_core.trace.several import SeveralTexts
from talon_core.trace.together import OneAfterTheOther, together
from talon_core.trace.trying import Done, Trying
from talon_strategies import Chain, Match, Talon
from talon_tests.prices import PricesByLength
from talon_tests.replayed import same

SHIPPED_TRACE = read_trace(SHIPPED)


def rounds_of(policy: TreePolicy, costs: Any = None, trace: Trace = SHIPPED_TRACE) -> tuple[list[Replayed], Any]:
    """Text by text, and all at once; the latter is None where that is not done."""
    replay, texts = Replay(trace, costs, timed=False), [*trace]
    method = Method(policy.name, policy, Match())
    grown = together(replay, method, SeveralTexts(texts))
    assert grown is None or isinstance(grown, OneAfterTheOther)
    return [replay.text(method, text) for text in texts], None if grown is None else grown.replayed()


def all_same(policy: TreePolicy, costs: Any = None, trace: Trace = SHIPPED_TRACE) -> bool:
    one_by_one, grown = rounds_of(policy, costs, trace)
    return grown is not None and all(map(same, one_by_one, grown))


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(0, 9))
def test_whatever_it_chooses_drafts_from_and_keeps(seed: int, budget: int, spare: int) -> None:
    assert all_same(Erratic(seed, budget, spare))


def test_so_it_is_where_questions_are_not_answered_and_at_a_temperature(
    tiny: Any, recorded: Callable[..., Trace]
) -> None:
    few = recorded(tiny, width=2, nodes=1, depth=2)
    for policy in (Erratic(3, 12, 4), Remembers()):
        assert all_same(policy, trace=few)
        assert all_same(policy, trace=recorded(tiny, temperature=0.7, seed=3))
    assert sum(one.outside for one in rounds_of(Erratic(3, 12, 4), trace=few)[1]) > 0


@attrs.define
class Memory:
    rounds: int = 0
    seconds: float = 0.0
    ids: list[int] = attrs.field(factory=list)


@attrs.frozen
class Remembers(TreePolicy):
    """Wants as many candidates as the numbers of all its rounds say."""

    name = "remembers"
    budget: int = 9
    memory: Memory = attrs.field(init=False, eq=False, factory=Memory)

    def width(self, tree: TokenTree) -> int:
        return (self.memory.rounds + sum(self.memory.ids)) % 4

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(min(2, self.budget - len(tree))))

    def observe(self, round_: Round) -> None:
        self.memory.rounds += 1 + len(round_.tokens) + round_.context + len(round_.tree)
        self.memory.seconds += sum(span.seconds for span in round_.spans)
        self.memory.ids.append(int(1000 * self.memory.seconds) + round_.draft_passes)


@pytest.mark.parametrize("costs", [None, PricesByLength()])
def test_each_is_told_of_its_own_rounds_and_of_what_they_took(costs: Any) -> None:
    assert all_same(Remembers(), costs)


@attrs.frozen
class OfTexts(Chain):
    """Longer where the prompt is, with a budget that is not."""

    name = "of-texts"
    least: int = 0

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        return attrs.evolve(self, least=sequence.prompt_length % 3)

    def width(self, tree: TokenTree) -> int:
        return 0 if len(tree) > self.least else 1

    def observe(self, round_: Round) -> None:
        assert round_.tree.depths.max() <= 1 + self.least


def test_each_has_what_begin_has_made_for_its_text() -> None:
    assert len({text.prompt_tokens % 3 for text in SHIPPED_TRACE}) > 1
    assert all_same(OfTexts(length=4))


@attrs.frozen
class OfAnotherBudget(OfTexts):
    name = "of-another-budget"

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        return attrs.evolve(self, length=1 + sequence.prompt_length % 3)


@attrs.frozen
class Reorders(Talon):
    """Verifies what it drafted, in another order."""

    name = "reorders"

    def finish(self, tree: TokenTree) -> TokenTree:
        if len(tree) < 3 or (tree.parents[1:] > 0).any():
            return tree
        order = [0, *range(len(tree) - 1, 0, -1)]
        return TokenTree(tree.tokens[order], tree.parents, tree.path_logp[order])


@attrs.frozen
class Rescores(Talon):
    """Verifies what it drafted, with other scores."""

    name = "rescores"

    def finish(self, tree: TokenTree) -> TokenTree:
        return TokenTree(tree.tokens, tree.parents, tree.path_logp - 1.0)


@attrs.frozen
class LooksForALaw(Chain):
    name = "looks-for-a-law"

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        try:
            candidates.law(0)
        except ValueError:
            return Growth(candidates.best(1))
        raise AssertionError("there is none")


@attrs.frozen
class NoCopy(Remembers):
    """Serves each text itself, and begins anew at each root."""

    name = "no-copy"

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        self.memory.rounds, self.memory.seconds = sequence.prompt_length, 0.0
        self.memory.ids.clear()
        return self


@attrs.frozen
class Shrinks(TreePolicy):
    """Its budget is smaller once some rounds are over."""

    name = "shrinks"
    memory: Memory = attrs.field(init=False, eq=False, factory=Memory)

    @property
    def budget(self) -> int:  # type: ignore[override]
        return 9 if self.memory.rounds < 2 else 3

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(min(2, self.budget - len(tree))))

    def observe(self, round_: Round) -> None:
        self.memory.rounds += 1


def test_a_policy_that_draws_is_not_asked_in_turn() -> None:
    method, replay = Method("coin-tosser", CoinTosser(), Match()), Replay(SHIPPED_TRACE)
    with pytest.raises(ValueError, match="record with --laws"):
        replay.check(method)
    assert together(replay, method, SeveralTexts([*SHIPPED_TRACE])) is None


@pytest.mark.parametrize(
    "policy", [OfAnotherBudget(length=4), Reorders(), Rescores(), LooksForALaw(), NoCopy(), Shrinks()]
)
def test_what_is_unusual_is_tried_text_by_text(policy: TreePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "FEWEST", 2)
    # not timed, as some learn from seconds
    method, replay = Method(policy.name, policy, Match()), Replay(SHIPPED_TRACE, timed=False)
    assert together(replay, method, SeveralTexts([*SHIPPED_TRACE])) is None
    done = Trying(replay, [*SHIPPED_TRACE]).done(method)
    assert done == [Done.of(replay.text(method, text)) for text in SHIPPED_TRACE]


@attrs.frozen
class Answers(Chain):
    """Gives what it is told to."""

    name = "answers"
    of: Any = attrs.field(default=None, eq=False)

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        given = self.of(tree, candidates)
        return given if given is None else Growth(*given)


WRONG: list[tuple[Callable[[TokenTree, Candidates], Any], str]] = [
    (lambda tree, _: None, "returned NoneType from grow"),
    (lambda tree, _: (np.array([-1]),), "chose candidate -1"),
    (lambda tree, some: (np.array([some.tokens.size]),), "chose candidate"),
    (lambda tree, _: (np.array([0, 0]),), "chose the same candidate twice"),
    (lambda tree, _: (np.array([0.5]),), "must be one-dimensional and hold integers"),
    (lambda tree, _: (np.array([0]), np.array([0])), "wants to draft from a node twice"),
    (lambda tree, _: (np.array([0]), np.array([9])), "wants to draft from a node outside its tree"),
    (lambda tree, _: 1 / 0, "raised ZeroDivisionError"),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG)
def test_what_is_wrong_is_said_as_it_is_for_a_single_tree(
    given: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trying, "FEWEST", 2)
    policy = Answers(of=given)
    method, replay = Method("answers", policy, Match()), Replay(SHIPPED_TRACE)
    assert together(replay, method, SeveralTexts([*SHIPPED_TRACE])) is None
    with pytest.raises(PluginError, match="tree policy 'answers'") as raised:
        Trying(replay, [*SHIPPED_TRACE]).done(method)
    assert sentence in str(raised.value)


@attrs.frozen
class Writes(Talon):
    """Writes into all that it is shown, as far as it can."""

    name = "writes"

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        growth = super().grow(tree, candidates, choices)
        for array in (candidates.frontier, candidates.tokens, candidates.logp, candidates.path_logp, tree.tokens):
            for own in (array,) if array.base is None else (array.base, array):
                try:
                    own.flags.writeable = True
                    own[...] = 1
                except (ValueError, TypeError, AttributeError):
                    continue
        return growth


@attrs.frozen
class NeedsALaw(Chain):
    name = "needs-a-law"

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        candidates.law(0)
        return Growth(candidates.best(1))


def test_who_asks_for_a_law_is_told_how_to_record_them() -> None:
    method, replay = Method("needs-a-law", NeedsALaw(length=2), Match()), Replay(SHIPPED_TRACE)
    says = "in grow: the law of frontier row 0 is asked for, and the trace has none; record with --laws"
    with pytest.raises(PluginError, match=says):
        Trying(replay, [*SHIPPED_TRACE]).done(method)


def test_a_policy_cannot_change_what_it_is_shown() -> None:
    method = Method("writes", Writes(), Match())
    found = together(Replay(SHIPPED_TRACE), method, SeveralTexts([*SHIPPED_TRACE]))
    assert isinstance(found, OneAfterTheOther)
    plain = together(Replay(SHIPPED_TRACE), Method("talon", Talon(), Match()), SeveralTexts([*SHIPPED_TRACE]))
    assert plain is not None
    assert found.totals() == plain.totals()
