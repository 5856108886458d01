"""Laws that are composed of the laws of rounds are those of whole generations, for whatever has no memory."""

from itertools import islice

import attrs
import pytest

from talon_core import AcceptanceRule, Growth, TreePolicy
from talon_core.certify.composed import composed_law
from talon_core.certify.exact import Given, ancestral_law, distance, emitted_law
from talon_core.certify.ticks import Ticks
from talon_core.certify.trial import WHOLE, CertificationError, _Trial, certify
from talon_core.certify.worlds import random_worlds
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import build
from talon_core.engine.memory import is_memoryless
from talon_core.plugins.registry import load_registry
from talon_core.rule import descend
from talon_core.testing.odd_policies import CoinTosser
from talon_strategies import SampledChain, Talon
from talon_tests.wrong import BonusOffByOne, KeepsTheLikelier, NoLeftover

LEARNS = {
    *("adaedl", "bandit", "bastion", "caddtree", "gammatune", "gammatune-plus", "heuristic", "speckv", "sps"),
    *("talon-cost", "talon-cost-sampled", "taps"),
}
"""Policies that remember rounds: their generations are enumerated whole."""

COMPOSED = sorted(load_registry().entries["tree policy"].keys() - LEARNS)
SPECS = {"specinfer": "specinfer:widths=2"}


def laws_of(policy, rule):
    """By worlds: the composed law of a text, the law of whole generations, and the target's own."""
    for world in islice(random_worlds(1), 25):
        world = attrs.evolve(world, max_new_tokens=min(3, world.max_new_tokens), processors=())
        decoder = Decoder(world.make_target(), rule, world.varied(policy), Given(world.make_drafter()), now=Ticks())
        composed = composed_law(decoder, world.request, most=200)
        if composed is not None:
            yield composed, emitted_law(decoder, world.request), ancestral_law(world.make_target(), world.request)


@pytest.mark.parametrize("name", [*COMPOSED, "coin-tosser"])
def test_rounds_chained_have_the_law_of_whole_generations(name):
    policy = CoinTosser() if name == "coin-tosser" else build("tree policy", SPECS.get(name, name))
    accepting = 0
    for composed, whole, _ in laws_of(policy, build("rule", policy.default_rule)):
        assert distance(composed.law, whole) <= 1e-12
        accepting += composed.accepting
    assert accepting >= 5


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        ("talon", BonusOffByOne()),
        ("chain", BonusOffByOne()),
        ("sampled-chain", NoLeftover()),
        ("talon-sampled", NoLeftover()),
        (KeepsTheLikelier(), build("rule", "rrsw")),
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_rounds_chained_are_as_wrong_as_whole_generations(policy, rule):
    """A composed law that is right whatever the rounds are would pass all that is lossless."""
    made = build("tree policy", policy) if isinstance(policy, str) else policy
    wrong = 0
    for composed, whole, own in laws_of(made, rule):
        assert distance(composed.law, whole) <= 1e-12
        wrong += distance(whole, own) > 0.01
    assert wrong > 0


def test_too_many_outcomes_are_no_law():
    (world,) = islice(random_worlds(0), 1)
    decoder = Decoder(world.make_target(), build("rule", "match"), Talon(), Given(world.make_drafter()))
    assert composed_law(decoder, world.request, most=1) is None


@attrs.define
class Notes:
    rounds: int = 0


@attrs.frozen
class KeepsNotes(Talon):
    notes: Notes = attrs.field(init=False, eq=False, factory=Notes)


@attrs.frozen
class Observes(Talon):
    def observe(self, round_):
        pass


@attrs.frozen
class Follows(Talon):
    """Chooses its options by the sequence, and remembers nothing after that."""

    def begin(self, sequence):
        return attrs.evolve(self, top_k=1 if sequence.greedy else 2)


@attrs.define
class CanBeSet(AcceptanceRule):
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        return descend(tree, laws, lambda node: laws.draw(node, choices))


@pytest.mark.parametrize("part", [KeepsNotes(), Observes(), CanBeSet()], ids=lambda part: type(part).__name__)
def test_whoever_could_remember_a_round_is_not_composed(part):
    assert not is_memoryless(part)


def test_a_policy_that_follows_the_request_is_composed():
    assert is_memoryless(Follows())
    assert certify(Follows(), worlds=WHOLE + 1).certified


@attrs.frozen
class Remembers(TreePolicy):
    """Drafts in every second round alone."""

    name = "remembers"
    budget: int = 3
    notes: Notes = attrs.field(init=False, eq=False, factory=Notes)

    def observe(self, round_):
        self.notes.rounds += 1

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best((self.budget - len(tree)) * (self.notes.rounds % 2)))


@attrs.frozen
class IsServedByOneThatRemembers(Talon):
    def begin(self, sequence):
        return Remembers()


def test_who_is_served_by_one_that_remembers_is_not_composed():
    """Nothing is ever drafted in a first round, so chained rounds would not show a single accepted token."""
    assert is_memoryless(IsServedByOneThatRemembers())
    trial = _Trial(IsServedByOneThatRemembers(), build("rule", "match"), None, 200, None)
    accepting = 0
    for world in islice(random_worlds(2), 200):
        examined = trial.examine(world, whole=False)
        accepting += examined is not None and examined.accepting
    assert accepting > 0


@attrs.frozen
class SavesWhereCostsAreKnown(SampledChain):
    """Draws fewer tokens where passes were measured before it began."""

    def begin(self, sequence):
        return attrs.evolve(self, length=1 if sequence.costs.verify(1, 1) is not None else self.length)


@attrs.frozen
class AsksForCosts(SampledChain):
    """Draws fewer tokens in the rounds after the first."""

    told: object = None

    def begin(self, sequence):
        return attrs.evolve(self, told=sequence)

    def grow(self, tree, candidates, choices):
        if len(tree) > 1 and self.told.costs.verify(1, 1) is not None:
            return Growth([])
        return super().grow(tree, candidates, choices)


@pytest.mark.parametrize("policy", [SavesWhereCostsAreKnown, AsksForCosts])
def test_outcomes_know_nothing_of_what_the_passes_of_others_took(policy):
    assert certify(policy(length=2), worlds=WHOLE + 5).certified


@pytest.mark.parametrize(("kind", "whole"), [("tree policy", LEARNS), ("rule", set())])
def test_every_built_in_that_remembers_nothing_is_composed(kind, whole):
    entries = load_registry().entries[kind]
    assert {name for name, entry in entries.items() if not is_memoryless(entry.cls())} == whole


HIDDEN = []


@attrs.frozen
class RemembersElsewhere(AcceptanceRule):
    """Takes the target's most likely token in every second walk, which it counts where nobody looks."""

    name = "remembers-elsewhere"
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        HIDDEN.append(tree)
        if len(HIDDEN) % 2:
            return descend(tree, laws, lambda node: laws.draw(node, choices))
        return descend(tree, laws, lambda node: int(laws.at(node).argmax()))


def test_a_rule_that_remembers_in_its_module_is_not_certified():
    assert is_memoryless(RemembersElsewhere())
    with pytest.raises(CertificationError):
        certify(Talon(), RemembersElsewhere(), worlds=WHOLE)


@attrs.frozen
class DrawsOnceAfterAnother(TreePolicy):
    """Draws two children in its first round and one from then on: exact, and only whole generations can tell."""

    name = "draws-once-after-another"
    children = "without-replacement"
    default_rule = "rrsw"
    budget: int = 3
    notes: Notes = attrs.field(init=False, eq=False, factory=Notes)

    def observe(self, round_):
        self.notes.rounds += 1

    def grow(self, tree, candidates, choices):
        room = min(self.budget - len(tree), 1 if self.notes.rounds else 2)
        return Growth([], drawn={0: candidates.draw(choices, 0, room)} if room else {})


def test_a_policy_with_a_memory_is_certified_by_whole_generations():
    assert certify(DrawsOnceAfterAnother(), worlds=40).certified
