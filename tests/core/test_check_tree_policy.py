"""The contract of policies, beyond `tests/strategies/test_contract.py`: what they say, what they draw, nasty rows."""

import attrs
import numpy as np
import pytest

from talon_core import Growth, PluginError, SequenceInfo, TreePolicy
from talon_core.drawn import Drawn
from talon_core.engine.drafting import DraftLimits
from talon_core.testing import TableDrafter, check_tree_policy, contract
from talon_core.testing.contract import Told
from talon_strategies.drawing import NOTHING


@attrs.frozen
class Draws(TreePolicy):
    """Two children of each node, without replacement."""

    name = "draws"
    children = "without-replacement"
    default_rule = "rrsw"
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
    default_rule = Drawn


@attrs.frozen
class SuitsNothing(Draws):
    default_rule = ""


@attrs.frozen
class UnknownKind(Draws):
    children = "without replacement"


@attrs.frozen
class ForNumbers(Draws):
    purpose = 5


@attrs.frozen
class InAPaperOfTwoLines(Draws):
    paper = "arXiv\n2601.07353"


@attrs.frozen
class ChildrenAreAList(Draws):
    children = ["iid"]  # noqa: RUF012 - that is the mistake


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (SuitsAClass, r"has default_rule <class '.*Drawn'>; it must be the name of a rule, as 'match'$"),
        (SuitsNothing, r"has default_rule ''; it must be the name of a rule"),
        (ForNumbers, "has purpose = 5; it must be a few words, or nothing: ''$"),
        (InAPaperOfTwoLines, r"has paper = 'arXiv\\n2601.07353'; it must be a few words, or nothing: ''$"),
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
    """Makes its trees smaller by what it has been told."""

    name = "remembers"
    budget: int = 6
    by: str = "seen"
    memory: Memory = attrs.field(init=False, eq=False, factory=Memory)

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
def test_a_policy_that_remembers_and_is_made_anew_passes(by):
    check_tree_policy(lambda: Remembers(by=by), max_examples=20)


@attrs.frozen
class Rests(Remembers):
    """Drafts in each round of so many, and says that it rests for `off` rounds more than it does."""

    off: object = 0
    every: int = 3

    def width(self, tree):
        return 0 if self.memory.seen % self.every else super().width(tree)

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1))

    def rests(self):
        return self.every - 1 - self.memory.seen % self.every + self.off


def test_a_policy_that_rests_as_long_as_it_says_passes():
    check_tree_policy(Rests, max_examples=20)


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize(
    ("off", "complaint"),
    [
        (1, "drafts in a round in which it was to rest: rests said 1 more before it"),
        (0.5, r"returned \d\.5 from rests; it must be in how many rounds to come nothing is drafted"),
        (-2, "returned -1 from rests; it must be"),
    ],
)
def test_a_policy_that_rests_otherwise_is_refused(off, complaint):
    with pytest.raises((AssertionError, PluginError), match=complaint):
        check_tree_policy(lambda: Rests(off=off, every=2))


@attrs.frozen
class CountsItsQuestions(Rests):
    """It drafts in each third round in which it was asked."""

    asked: list[bool] = attrs.field(init=False, eq=False, factory=list)

    def width(self, tree):
        self.asked[:] = [True]
        return super().width(tree)

    def observe(self, round_):
        if self.asked:
            super().observe(round_)
            self.asked.clear()


@pytest.mark.usefixtures("unshrunk")
def test_a_policy_that_has_to_be_asked_while_it_rests_is_refused():
    with pytest.raises(AssertionError, match=r"in which it (rested|was to rest)"):
        check_tree_policy(CountsItsQuestions)
    rounds = [Told(0, 0, 1, 0.1, 0.1)] * 9
    told = SequenceInfo(5, 64, 0.0), TableDrafter([[0.6, 0.4]]), rounds, DraftLimits(2, 4)
    contract._check_rests(Rests, *told)
    with pytest.raises(AssertionError, match="not asked for those of rounds in which it rested"):
        contract._check_rests(CountsItsQuestions, *told)


@attrs.frozen
class TakesItsMemoryAlong(Remembers):
    """Its memory is an option, so that equal policies share it."""

    memory: Memory = attrs.field(eq=False, factory=Memory)


@attrs.frozen
class TakesAnEmptiedMemoryAlong(TakesItsMemoryAlong):
    """As above, and it is emptied for each sequence: right after others, and wrong beside them."""

    def begin(self, sequence):
        self.memory.__init__()
        return attrs.evolve(self)


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize("make", [TakesItsMemoryAlong, TakesAnEmptiedMemoryAlong])
@pytest.mark.parametrize("by", REASONS)
def test_a_policy_that_remembers_other_sequences_is_refused(by, make):
    with pytest.raises(
        AssertionError, match=r"^tree policy 'remembers' .* for a sequence after and beside others than for the same"
    ):
        check_tree_policy(lambda: make(by=by))


@attrs.frozen
class ReturnsItself(Remembers):
    def begin(self, sequence):
        return self


@attrs.frozen
class EmptiesItself(Remembers):
    def begin(self, sequence):
        self.memory.__init__()
        return self


@attrs.frozen
class SharesItsMemory(Remembers):
    def begin(self, sequence):
        one = attrs.evolve(self)
        object.__setattr__(one, "memory", self.memory)
        return one


@pytest.mark.parametrize("make", [ReturnsItself, EmptiesItself, SharesItsMemory])
def test_a_field_in_which_a_policy_remembers_must_be_made_anew_even_if_no_tree_shows_it(make):
    with pytest.raises(
        AssertionError,
        match=r"^tree policy 'remembers' .* returned a policy from begin that shares memory with it; a f",
    ):
        check_tree_policy(lambda: make(by="fast", budget=2), max_examples=1)


@attrs.frozen
class BeginsAs(Draws):
    """Is served by another policy."""

    name = "begins-as"
    by: type[TreePolicy] = Draws

    def begin(self, sequence):
        return self.by()


def test_a_policy_may_be_served_by_another_of_the_same_children():
    check_tree_policy(BeginsAs, max_examples=10)


@pytest.mark.parametrize(
    ("by", "complaint"),
    [
        (Remembers, "returned a policy from begin whose children are deterministic; they must be without-replacement"),
        (int, "returned 0 from begin; it must return the policy that serves the sequence"),
    ],
)
def test_what_begin_returns_is_a_policy_of_the_same_children(by, complaint):
    with pytest.raises((AssertionError, PluginError), match=rf"^tree policy 'begins-as' .* {complaint}"):
        check_tree_policy(lambda: BeginsAs(by=by), max_examples=10)


@attrs.frozen
class ItselfWithoutMemory(Draws):
    """Has nothing to make anew, but for what follows from its options."""

    half: list = attrs.field(init=False, default=attrs.Factory(lambda self: [self.budget // 2], takes_self=True))

    def begin(self, sequence):
        return self


def test_a_policy_that_remembers_nothing_may_serve_every_sequence_itself():
    check_tree_policy(ItselfWithoutMemory, max_examples=10)


@attrs.frozen
class FailsFor(Draws):
    """Cannot serve some sequence."""

    fails: object = None

    def begin(self, sequence):
        if self.fails(sequence):
            raise ArithmeticError("not this one")
        return attrs.evolve(self)


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize(
    "fails",
    [
        lambda of: of.greedy,
        lambda of: of.temperature > 1,
        lambda of: 0 < of.temperature < 1,
        lambda of: of.prompt_length == 1,
        lambda of: of.prompt_length > 1000,
        lambda of: of.max_new_tokens == 1,
        lambda of: of.costs.verify(1, 1) is None,
        lambda of: of.costs.draft(4, 10) is not None and of.costs.verify(30, 100) is not None,
        lambda of: of.machine == {},
    ],
)
def test_sequences_of_all_sorts_are_tried(fails):
    with pytest.raises(PluginError, match="raised ArithmeticError in begin: not this one"):
        check_tree_policy(lambda: FailsFor(fails=fails))


@attrs.frozen
class LearnsOfTheMachine(Draws):
    """What it learns of the machine is for all sequences of a decoder, which this is no error of."""

    told: object = None

    def begin(self, sequence):
        return attrs.evolve(self, told=sequence)

    def observe(self, round_):
        self.told.machine["rounds"] = self.told.machine.get("rounds", 0) + 1

    def grow(self, tree, candidates, choices):
        return Growth(NOTHING) if self.told.machine.get("rounds") else super().grow(tree, candidates, choices)


def test_a_policy_may_learn_of_the_machine():
    check_tree_policy(LearnsOfTheMachine, max_examples=10)


@attrs.frozen
class OwnDice(Draws):
    """Tosses coins that nobody can repeat."""

    def grow(self, tree, candidates, choices):
        return super().grow(tree, candidates, choices) if np.random.default_rng().random() < 0.5 else Growth(NOTHING)


def test_a_policy_with_dice_of_its_own_is_refused_whatever_comes_out():
    with pytest.raises(
        AssertionError,
        match=r"(another tree when asked again|other trees (than|for)|does not do the same)",
    ):
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


def test_a_mistake_in_every_tree_is_told_after_a_few_trees():
    asked = []

    @attrs.frozen
    class Forgetful(TreePolicy):
        name = "forgetful"
        budget: int = 4

        def grow(self, tree, candidates, choices):
            asked.append(tree)
            return candidates.best(self.budget - len(tree))

    with pytest.raises(PluginError, match="returned ndarray from grow; it must return a Growth"):
        check_tree_policy(Forgetful)
    assert len(asked) < 50
