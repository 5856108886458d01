"""The contract of acceptance rules as a function: the built-in rules keep it, and mistakes are refused in words."""

import attrs
import numpy as np
import pytest

from talon_core import AcceptanceRule, Accepted
from talon_core.errors import PluginError
from talon_core.plugins.registry import load_registry
from talon_core.rule import check_claims, descend
from talon_core.testing import check_rule
from talon_strategies import RecursiveRejection
from talon_tests.wrong import BonusOffByOne, NoLeftover

RULES = {
    name: entry.cls
    for name, entry in load_registry().entries["rule"].items()
    if entry.plugin == "talon-core:talon-strategies"
}


@pytest.mark.parametrize("name", RULES)
def test_every_built_in_rule_keeps_the_contract(name):
    check_rule(RULES[name], max_examples=40)


@attrs.frozen
class Rule(AcceptanceRule):
    """Sample and match, for a mistake to be made in."""

    name = "mistaken"
    exact_for = frozenset({"deterministic", "without-replacement"})

    def walk(self, tree, laws, choices):
        return descend(tree, laws, lambda node: laws.draw(node, choices))


@attrs.frozen
class LeafFromItsParentsLaw(BonusOffByOne):
    name = Rule.name
    exact_for = Rule.exact_for


@attrs.frozen
class ForgetsWhatWasRejected(NoLeftover):
    name = Rule.name
    exact_for = Rule.exact_for


@attrs.frozen
class Independent(RecursiveRejection):
    """Is exact for independent draws only."""

    name = Rule.name
    exact_for = Rule.exact_for


@attrs.frozen
class GoesOnAfterTheEnd(Rule):
    def walk(self, tree, laws, choices):
        path = [0]
        while True:
            token = laws.draw(path[-1], choices)
            child = tree.child(path[-1], token)
            if child is None:
                return Accepted(np.array(path), token)
            path.append(child)


@attrs.frozen
class LeavesTheRootOut(Rule):
    def walk(self, tree, laws, choices):
        accepted = super().walk(tree, laws, choices)
        return Accepted(accepted.path[1:], accepted.token)


@attrs.frozen
class SkipsANode(Rule):
    def walk(self, tree, laws, choices):
        accepted = super().walk(tree, laws, choices)
        return Accepted(np.delete(accepted.path, 1), accepted.token) if len(accepted.path) > 2 else accepted


@attrs.frozen
class ReturnsTokens(Rule):
    def walk(self, tree, laws, choices):
        accepted = super().walk(tree, laws, choices)
        return [*tree.tokens[accepted.path], accepted.token]


@attrs.frozen
class ReturnsAList(Rule):
    def walk(self, tree, laws, choices):
        accepted = super().walk(tree, laws, choices)
        return Accepted(accepted.path.tolist(), accepted.token)


@attrs.frozen
class ReturnsNumbersThatAreNoIndices(Rule):
    def walk(self, tree, laws, choices):
        accepted = super().walk(tree, laws, choices)
        return Accepted(accepted.path * 1.0, accepted.token)


@attrs.frozen
class CountsFromTheEnd(Rule):
    def walk(self, tree, laws, choices):
        accepted = super().walk(tree, laws, choices)
        return Accepted(np.where(accepted.path > 0, accepted.path - len(tree), 0), accepted.token)


@attrs.frozen
class ReturnsAFloat(Rule):
    def walk(self, tree, laws, choices):
        accepted = super().walk(tree, laws, choices)
        return Accepted(accepted.path, float(accepted.token))


@attrs.frozen
class ReturnsAnUnknownToken(Rule):
    def walk(self, tree, laws, choices):
        return Accepted(np.array([0]), len(laws.at(0)))


@attrs.frozen
class TimidAtTemperature0(Rule):
    follows_argmax = True

    def walk(self, tree, laws, choices):
        return Accepted(np.array([0]), laws.draw(0, choices))


@attrs.frozen
class AsksSiblings(Rule):
    """Asks of one child after the other whether it comes: as often as another rule accepts, with other draws."""

    follows_target = True

    def walk(self, tree, laws, choices):
        def draw(node):
            law = laws.at(node).copy()
            for child in np.flatnonzero(tree.parents == node).tolist():
                token = int(tree.tokens[child])
                if law[token] > 0 and choices.coin(law[token] / law.sum()):
                    return token
                law[token] = 0
            return choices.pick(law / law.sum())

        return descend(tree, laws, draw)


@attrs.frozen
class PeeksAtChildren(Rule):
    def walk(self, tree, laws, choices):
        for node in range(len(tree)):
            laws.at(node)
        return super().walk(tree, laws, choices)


@attrs.frozen
class TakesTurns(Rule):
    """Remembers how often it walked."""

    walks: list[int] = attrs.field(init=False, eq=False, factory=list)

    def walk(self, tree, laws, choices):
        self.walks.append(1)
        return Accepted(np.array([0]), len(self.walks) % 2)


@attrs.frozen
class OwnDice(Rule):
    """Tosses coins that nobody can enumerate, nor repeat."""

    def walk(self, tree, laws, choices):
        dice = np.random.default_rng()
        return descend(tree, laws, lambda node: int(dice.choice(len(laws.at(node)), p=laws.at(node))))


@attrs.frozen
class Raises(Rule):
    def walk(self, tree, laws, choices):
        raise KeyError("on purpose")


@attrs.frozen
class Writes(Rule):
    def walk(self, tree, laws, choices):
        tree.tokens[0] = 0
        return super().walk(tree, laws, choices)


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (LeafFromItsParentsLaw, r"changes what comes out: with (deterministic|without-replacement) trees the text"),
        (ForgetsWhatWasRejected, r"with without-replacement trees the text .* comes with probability \d.*, and "),
        (Independent, r"with without-replacement trees the text"),
        (GoesOnAfterTheEnd, r"went on after token \d, which ends the text"),
        (LeavesTheRootOut, r"accepted the path \[.*\]; a path begins with the root, 0, and each node "),
        (SkipsANode, r"accepted the path \[0, .*\]; a path begins"),
        (ReturnsTokens, r"returned list from walk; it must return an Accepted"),
        (ReturnsAList, r"accepted the path \[0.*\]; a path is an array of node indices"),
        (ReturnsNumbersThatAreNoIndices, r"accepted the path array\(\[0\..*\]\); a path is an array of node indices"),
        (CountsFromTheEnd, r"accepted the path \[0, -\d.*\]; a path begins"),
        (ReturnsAFloat, r"emitted token \d\.0; the vocabulary has ids"),
        (ReturnsAnUnknownToken, r"emitted token [23]; the vocabulary has ids 0 to [12]"),
        (TimidAtTemperature0, r"accepted the path \[0\] and token \d at temperature 0; .* follows_argmax, .* \[0, \d"),
        (AsksSiblings, r"emitted \[.*\] and drew \[.*\]; it says that it follows_target"),
        (PeeksAtChildren, r"asked for the law at node \d, and accepted the path \[0.* looks_ahead = True"),
        (TakesTurns, r"does not do the same .*; what is random must come from Choices alone"),
        (OwnDice, r"(what is random must come from Choices alone|changes what comes out)"),
        (Raises, r"raised KeyError in walk: 'on purpose'"),
        (Writes, r"raised ValueError in walk: .*read-only"),
    ],
)
def test_a_mistake_is_refused_in_words(make, complaint):
    with pytest.raises((AssertionError, RuntimeError), match=rf"(?s)^rule 'mistaken' \(.*\) .*{complaint}"):
        check_rule(make)


@attrs.frozen
class Unnamed(Rule):
    name = "Mistaken Rule"


@attrs.frozen
class ExactForNothing(Rule):
    exact_for = frozenset()


@attrs.frozen
class ExactForATypo(Rule):
    exact_for = frozenset({"iid", "with-replacement"})


@attrs.frozen
class ExactForALetter(Rule):
    exact_for = "any"


@attrs.frozen
class SaysNothing(AcceptanceRule):
    name = "mistaken"

    def walk(self, tree, laws, choices):
        return Accepted(np.array([0]), laws.draw(0, choices))


@attrs.frozen
class Demanding(Rule):
    wish: int = attrs.field(kw_only=True)


@attrs.define
class Mutable(AcceptanceRule):
    name = "mistaken"
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        return Accepted(np.array([0]), laws.draw(0, choices))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (Unnamed, "has the name 'Mistaken Rule'; a name is lower case"),
        (ExactForNothing, "is exact for no trees at all and does not say that it is lossy"),
        (ExactForATypo, "is exact for 'with-replacement' trees; kinds are any, deterministic, sampled, iid, "),
        (ExactForALetter, r"has exact_for = 'any'; it must be a frozenset of kinds of trees, as frozenset\({'any'}\)"),
        (lambda: Demanding(wish=1), "has options without a default: wish"),
        (SaysNothing, "has exact_for = None; it must be a frozenset"),
        (Mutable, r"^rule 'mistaken' \(.*\) must be an @attrs.frozen class"),
        (dict, "is not an AcceptanceRule"),
    ],
)
def test_what_a_rule_says_of_itself_is_refused_in_words(make, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_rule(make)


def test_a_lossy_rule_may_change_the_law_and_nothing_else():
    @attrs.frozen
    class Eager(Rule):
        """Takes the first child whatever the target says."""

        exact_for = frozenset()
        lossy = True

        def walk(self, tree, laws, choices):
            return descend(tree, laws, lambda node: self._first(tree, node, laws, choices))

        def _first(self, tree, node, laws, choices):
            children = np.flatnonzero(tree.parents == node)
            return int(tree.tokens[children[0]]) if len(children) else laws.draw(node, choices)

    check_rule(Eager, max_examples=30)

    @attrs.frozen
    class EagerWithoutRoot(Eager):
        def walk(self, tree, laws, choices):
            return Accepted(super().walk(tree, laws, choices).path[1:], 0)

    with pytest.raises(PluginError, match="a path begins with the root"):
        check_rule(EagerWithoutRoot)


def test_a_mistake_in_every_walk_is_told_after_a_few_walks():
    asked = []

    @attrs.frozen
    class Silent(Rule):
        def walk(self, tree, laws, choices):
            asked.append(tree)

    with pytest.raises(PluginError, match="returned NoneType from walk; it must return an Accepted"):
        check_rule(Silent)
    assert len(asked) < 50


@attrs.frozen
class OrderedOtherwise(RecursiveRejection):
    name = Rule.name
    tests = "leaves-first"


@attrs.frozen
class DrawsOnceMore(RecursiveRejection):
    """Uses a number of which nothing comes."""

    name = Rule.name
    tests = RecursiveRejection.tests

    def walk(self, tree, laws, choices):
        accepted = super().walk(tree, laws, choices)
        choices.pick(np.ones(1))
        return accepted


@attrs.frozen
class DrawsAlone(Rule):
    exact_for = frozenset({"iid"})
    tests = "in-turn"


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (OrderedOtherwise, r"says tests = 'leaves-first', and .*"),
        (DrawsOnceMore, r"drew with another number of numbers than the \d+ that its tests take"),
        (DrawsAlone, r"accepted the path .* it says tests = 'in-turn', and with the same numbers these lead along"),
    ],
)
def test_a_rule_tests_as_it_says(rule, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_rule(rule)


def test_an_order_that_there_is_not_is_refused():
    class Sideways(Rule):
        tests = "sideways"

    with pytest.raises(
        PluginError, match="has tests = 'sideways'; it must be None or one of 'in-turn', 'leaves-first'"
    ):
        check_claims(Sideways())
