"""The contract of policies, beyond `tests/strategies/test_contract.py`: what they say, what they draw, nasty rows."""

import attrs
import numpy as np
import pytest

from talon_core import Growth, PluginError, TreePolicy
from talon_core.drawn import Drawn
from talon_core.testing import check_tree_policy
from talon_strategies.drawing import NOTHING


@attrs.frozen
class Draws(TreePolicy):
    """Two children of each node, without replacement."""

    name = "draws"
    children = "without-replacement"
    suits = "rrsw"
    budget: int = 7

    def width(self, tree):
        return 1

    def grow(self, tree, candidates, choices):
        room, drawn = self.budget - len(tree), {}
        for row in np.flatnonzero(candidates.tokens[:, 0] >= 0).tolist():
            if room > 0:
                drawn[row] = candidates.draw(choices, row, min(2, room))
                room -= len(drawn[row].tokens)
        return Growth(NOTHING, drawn=drawn)


def test_a_policy_that_draws_passes():
    check_tree_policy(Draws, max_examples=50)


@attrs.frozen
class SuitsAClass(Draws):
    suits = Drawn


@attrs.frozen
class SuitsNothing(Draws):
    suits = ""


@attrs.frozen
class UnknownKind(Draws):
    children = "without replacement"


@attrs.frozen
class ChildrenAreAList(Draws):
    children = ["iid"]  # noqa: RUF012 - that is the mistake


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (SuitsAClass, r"suits <class '.*Drawn'>; it must be the name of a rule, as 'match'$"),
        (SuitsNothing, r"suits ''; it must be the name of a rule"),
        (UnknownKind, r"says that its children are 'without replacement'; kinds are deterministic, sampled, iid, "),
        (ChildrenAreAList, r"says that its children are \['iid'\]; kinds are"),
    ],
)
def test_what_a_policy_says_of_itself_is_refused_in_words(make, complaint):
    with pytest.raises((AssertionError, PluginError), match=rf"^tree policy 'draws' \(.*\) {complaint}"):
        check_tree_policy(make)


def test_a_policy_in_the_place_of_its_class_is_refused_in_words():
    with pytest.raises(
        TypeError, match=r"Draws\(budget=7\) is no class .*; give its class, or lambda: Draws\(budget=7\)"
    ):
        check_tree_policy(Draws())


@attrs.frozen
class RecordsAnotherLaw(Draws):
    """Tosses a coin of its own, for the law that it writes down alone."""

    coin: np.random.Generator = attrs.field(init=False, eq=False, factory=lambda: np.random.default_rng(0))

    def grow(self, tree, candidates, choices):
        growth = super().grow(tree, candidates, choices)
        if self.coin.random() < 0.5:
            flat = np.full(len(candidates.law(0)), 1 / len(candidates.law(0)))
            drawn = {row: Drawn(own.tokens, flat, logp=own.logp) for row, own in growth.drawn.items()}
            return Growth(NOTHING, drawn=drawn)
        return growth


@pytest.mark.usefixtures("unshrunk")
def test_trees_that_differ_in_the_record_of_their_draws_alone_are_not_the_same():
    with pytest.raises(AssertionError, match="drafts another tree when asked again"):
        check_tree_policy(RecordsAnotherLaw, max_examples=20)


@attrs.define
class Memory:
    seen: int = 0
    accepted: int = 0
    seconds: float = 0.0


@attrs.frozen
class Remembers(TreePolicy):
    """Makes its trees smaller by what it has been told, and forgets what it is told to forget."""

    name = "remembers"
    budget: int = 6
    by: str = "seen"
    forgets: bool = True
    memory: Memory = attrs.field(init=False, eq=False, factory=Memory)

    def begin(self):
        if self.forgets:
            self.memory.__init__()

    def observe(self, round_):
        self.memory.seen += 1
        self.memory.accepted += round_.accepted
        self.memory.seconds += round_.verify_seconds

    def grow(self, tree, candidates, choices):
        small = {
            "seen": self.memory.seen > 0,
            "accepted": self.memory.accepted > 0,
            "nothing accepted": self.memory.seen > 0 and self.memory.accepted == 0,
            "slow": self.memory.seconds > 1,
            "fast": 0 < self.memory.seconds < 1e-5,
        }[self.by]
        return Growth(candidates.best((2 if small else self.budget) - len(tree)))


REASONS = ["seen", "accepted", "nothing accepted", "slow", "fast"]


@pytest.mark.parametrize("by", REASONS)
def test_a_policy_that_remembers_and_forgets_passes(by):
    check_tree_policy(lambda: Remembers(by=by), max_examples=20)


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize("by", REASONS)
def test_a_policy_whose_begin_forgets_nothing_is_refused(by):
    with pytest.raises(
        AssertionError, match=r"^tree policy 'remembers' .* for a second sequence than .* begin must for"
    ):
        check_tree_policy(lambda: Remembers(by=by, forgets=False))


@attrs.frozen
class OwnDice(Draws):
    """Tosses coins that nobody can repeat."""

    def grow(self, tree, candidates, choices):
        return super().grow(tree, candidates, choices) if np.random.default_rng().random() < 0.5 else Growth(NOTHING)


def test_a_policy_with_dice_of_its_own_is_refused_whatever_comes_out():
    with pytest.raises(AssertionError, match=r"(another tree when asked again|other trees than|does not do the same)"):
        check_tree_policy(OwnDice)


@attrs.frozen
class ExpectsEveryRow(Draws):
    """Draws from rows of which nothing is known."""

    def grow(self, tree, candidates, choices):
        rows = range(min(len(candidates.frontier), (self.budget - len(tree)) // 2))
        return Growth(NOTHING, drawn={row: candidates.draw(choices, row, 2) for row in rows})


@pytest.mark.usefixtures("unshrunk")
def test_hostile_candidates_are_met_too():
    with pytest.raises(
        PluginError, match=r"frontier row \d+ is all padding and has no law; draw where something is offered"
    ):
        check_tree_policy(ExpectsEveryRow, max_examples=300)
