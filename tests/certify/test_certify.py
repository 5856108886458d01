"""Certificates: every built-in policy and rule earns one, over enumerated worlds."""

import re
from typing import ClassVar

import attrs
import numpy as np
import pytest

from talon_core import Growth, Request, TableTarget, TokenTree, TreePolicy
from talon_core.certify import trial
from talon_core.certify.exact import Given, emitted_law
from talon_core.certify.trial import TOLERANCE
from talon_core.certify.worlds import random_worlds
from talon_core.decoding.decoder import Decoder
from talon_core.drawn import KINDS, without
from talon_core.engine.memory import is_memoryless
from talon_core.plugins.registry import load_registry
from talon_core.sampling import Sampling
from talon_core.testing import TableDrafter, certify
from talon_core.testing.odd_policies import CoinTosser, Erratic
from talon_strategies import DynamicDepth, Match, Talon, TalonSampled
from talon_strategies.convex import convex_fit
from talon_strategies.rules.rrsw import RejectionWithoutReplacement
from talon_tests.wrong import KeepsTheLikelier

SPECS = {
    "specinfer": "specinfer:widths=2;1",
    "talon-sampled": "talon-sampled:mu=0.3",
    "ddd": "ddd:checked=1;2;3",
    "speckv": "speckv:gammas=1;2",
    "taps": "taps:of=talon[budget=4;top_k=2]",
}
"""Where the default options would leave too little room in small worlds, or take long in them."""


WITH_A_MEMORY = 250
"""Worlds for policies that remember rounds: whole generations are enumerated, which takes several times as long."""

OF_THE_REST, OF_THE_REST_WITH_A_MEMORY = 200, 60
"""The same of pairs that nobody gets who names no rule; the whole matrix tries as many worlds of each."""


def remembers_nothing(policy):
    return is_memoryless(load_registry().get("tree policy", policy).cls())


def pairs():
    """Every built-in policy with every built-in rule that says it is exact for such trees."""
    registry = load_registry()
    for policy in registry.entries["tree policy"].values():
        for rule in registry.entries["rule"].values():
            ours = policy.plugin == rule.plugin == "talon-core:talon-strategies"
            if ours and {policy.cls.children, "any"} & rule.cls.exact_for:
                yield policy, rule


def exact_for_kind(kind):
    """The built-in rules that say they are exact for trees of a kind."""
    rules = load_registry().entries["rule"].values()
    return [rule.cls for rule in rules if not rule.cls.lossy and {kind, "any"} & rule.cls.exact_for]


PAIRS = list(pairs())
FULL = [
    (policy.name, rule.name)
    for policy, rule in PAIRS
    if rule.name == policy.cls.default_rule or (policy.cls.children == "without-replacement" and rule.name != "match")
]
"""What users get where they name no rule, and with it every rule."""


def test_the_pairs_hold_every_built_in_policy_and_every_lossless_rule():
    registry = load_registry()
    lossless = {name for name, rule in registry.entries["rule"].items() if not rule.cls.lossy}
    assert {policy for policy, _ in FULL} == set(registry.entries["tree policy"])
    assert {rule for _, rule in FULL} == lossless


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "rule"), FULL, ids=["-".join(pair) for pair in FULL])
def test_every_built_in_is_certified(policy, rule):
    worlds = 2000 if remembers_nothing(policy) else WITH_A_MEMORY
    certificate = certify(SPECS.get(policy, policy), rule, worlds=worlds)
    assert certificate.worlds >= worlds
    assert certificate.largest_error <= TOLERANCE
    assert certificate.accepting > 0.3 * worlds  # so much was at stake
    assert certificate.proved
    assert certificate.subject.code == {}  # TALON's version stands for it
    assert (certificate.unkept is None) == (worlds == 2000)


PUBLISHED = ["caddtree:convex=true", "speckv:objective=paper,gammas=1;2"]
"""Options that make a policy the paper's, where the default is ours."""


@pytest.mark.slow
@pytest.mark.parametrize("spec", PUBLISHED)
def test_so_is_a_published_rule_that_is_an_option(spec, monkeypatch):
    fits = []

    def noted(sizes, values):
        fits.append(sizes)
        return convex_fit(sizes, values)

    monkeypatch.setattr("talon_strategies.caddtree.convex_fit", noted)
    certificate = certify(spec, worlds=WITH_A_MEMORY)
    assert (certificate.policy, certificate.rule) == (spec, "match")
    assert certificate.largest_error <= TOLERANCE
    assert certificate.accepting > 0.3 * WITH_A_MEMORY
    assert certificate.proved
    assert bool(fits) == spec.startswith("caddtree")  # later rounds know what the first ones took


REST = [(policy.name, rule.name) for policy, rule in PAIRS if (policy.name, rule.name) not in FULL]


@pytest.mark.parametrize(("policy", "rule"), REST, ids=["-".join(pair) for pair in REST])
def test_so_is_every_other_pair_that_the_decoder_lets_through(request, policy, rule):
    many = remembers_nothing(policy) or request.config.getoption("--matrix")
    worlds = OF_THE_REST if many else OF_THE_REST_WITH_A_MEMORY
    assert certify(SPECS.get(policy, policy), rule, worlds=worlds).accepting > worlds / 4


@pytest.mark.parametrize("policy", [CoinTosser(), Erratic(1), Erratic(7)])
def test_so_are_policies_that_behave_as_badly_as_the_rules_allow(policy):
    assert certify(policy, worlds=60).certified


@attrs.frozen
class Twins(TreePolicy):
    """Sends the first child of the root twice: once more at the end of the tree, or before everything else."""

    name = "twins"
    budget: int = 5
    before: bool = False

    def grow(self, tree, candidates, choices):
        room = self.budget - 1 - len(tree)
        if room < 1:
            return Growth([])
        if self.children == "deterministic":
            return Growth(candidates.best(min(2, room)))
        if self.children == "hybrid":
            fixed = candidates.best(1)
            row = int(fixed[0]) // candidates.width
            law = without(candidates.law(row), candidates.tokens.ravel()[fixed])
            return Growth(fixed, drawn={row: candidates.draw(choices, row, law=law)} if room > 1 and law.any() else {})
        draws = min(room, KINDS[self.children].most or 2)
        return Growth([], drawn={0: candidates.draw(choices, 0, draws, replacement=self.children == "iid")})

    def finish(self, tree):
        if len(tree) < 2:
            return tree
        if not self.before:
            return tree.extend(tree.tokens[1:2], [0], tree.path_logp[1:2])
        return TokenTree(
            np.insert(tree.tokens, 1, tree.tokens[1]),
            np.insert(np.where(tree.parents > 0, tree.parents + 1, tree.parents), 1, 0),
            np.insert(tree.path_logp, 1, tree.path_logp[1]),
            {node + (node > 0): drawn for node, drawn in tree.drawn.items()},
        )


TWINS = [(kind, rule.name) for kind in KINDS if kind != "sampled" for rule in exact_for_kind(kind)]


@pytest.mark.parametrize("before", [False, True], ids=["behind", "before"])
@pytest.mark.parametrize(("kind", "rule"), TWINS)
def test_every_rule_is_exact_for_trees_with_two_equal_siblings(kind, rule, before):
    twins = attrs.frozen(type("Twins", (Twins,), {"children": kind, "__module__": __name__}))
    assert certify(twins(before=before), rule, worlds=12, vary={"budget": 3}).certified


@attrs.define
class Memory:
    accepted: int = 0
    seconds: float = 0.0


@attrs.frozen
class Remembers(TreePolicy):
    """Draws more or less by what was accepted and how long it took."""

    name = "remembers"
    children = "without-replacement"
    default_rule = "rrsw"
    budget: int = 4
    memory: Memory = attrs.field(init=False, eq=False, factory=Memory)

    def observe(self, round_):
        self.memory.accepted += round_.accepted
        self.memory.seconds += round_.verify_seconds

    def grow(self, tree, candidates, choices):
        count = 1 if self.memory.accepted or self.memory.seconds > 0.015 else 2
        room = self.budget - len(tree)
        return Growth([], drawn={0: candidates.draw(choices, 0, min(count, room))} if room > 0 else {})


def test_a_policy_that_learns_from_rounds_and_looks_at_the_clock_can_be_certified():
    certificate = certify(Remembers(), worlds=300)
    assert certificate.rule == "rrsw"
    assert certificate.accepting > 100


def test_a_drafter_of_the_registry_drafts_in_every_world():
    certificate = certify("talon", drafter="ngram", worlds=200)
    assert certificate.drafter == "ngram"
    assert certificate.accepting > 30


def test_the_same_seed_gives_the_same_worlds_and_another_gives_others():
    def tried(seed):
        one = certify("chain", worlds=60, seed=seed)
        return one.outcomes, one.accepting, one.largest_error

    assert tried(3) == tried(3)
    assert len({tried(seed) for seed in range(3)}) > 1


def test_the_versions_are_those_of_packages_that_are_installed(monkeypatch):
    monkeypatch.setattr(trial, "PACKAGES", ("numpy", "not-installed"))
    assert [*certify("chain", worlds=10).versions] == ["Python", "numpy"]


def test_a_certificate_says_what_was_tried_and_with_what():
    told = []
    certificate = certify(Talon(budget=4, top_k=2), "match", worlds=50, seed=5, report=lambda *of: told.append(of))
    assert told == [(done, 50) for done in range(1, 51)]
    text = str(certificate)
    assert text.startswith("CERTIFIED: policy talon:budget=4,top_k=2 with rule match, drafter: random tables")
    assert re.search(r"50 worlds, \d+ outcomes; .* in \d+ worlds", text)
    assert "seed 5" in text
    assert "hypothesis" in text
    told_plainly = certificate.as_dict()
    assert (told_plainly["certified"], told_plainly["worlds"], told_plainly["counterexample"]) == (True, 50, None)
    assert told_plainly["verdict"] == "certified"


@attrs.frozen
class Misspelt(Talon):
    name = "misspelt"
    default_rule = "blok"


def test_options_that_do_not_go_together_are_varied_one_by_one():
    world = attrs.evolve(next(random_worlds(0)), options={"budget": 3, "depth": 2, "top_k": 2, "length": 4})
    assert world.varied(DynamicDepth()) == DynamicDepth(budget=3, top_k=2)  # which would test no layer of two
    assert world.varied(DynamicDepth(checked=(1,))) == DynamicDepth(budget=3, top_k=2, depth=2, checked=(1,))


@attrs.frozen
class Chooses(Talon):
    """Takes the best of all candidates where `top_k` is 0, and needs room for a few."""

    name = "chooses"
    top_k: int = 4
    budget: int = attrs.field(default=8, validator=attrs.validators.ge(8))
    seen: ClassVar[set[int]] = set()

    def width(self, tree):
        self.seen.add(self.top_k)
        return self.top_k or 3

    def grow(self, tree, candidates, choices):
        return Talon(budget=self.budget, top_k=self.top_k or 3).grow(tree, candidates, choices)


@pytest.mark.parametrize(("top_k", "varied"), [(4, ("top_k",)), (0, ())])
def test_what_no_world_has_set_stays_an_option_that_the_certificate_is_about(top_k, varied):
    Chooses.seen.clear()
    subject = certify(Chooses(top_k=top_k), worlds=20, vary={"budget": 2, "top_k": 1}).subject
    assert subject.varied == varied
    assert subject.policy["options"]["budget"] == 8
    assert Chooses.seen == ({0} if top_k == 0 else {1, 2, 3, 4})


def test_what_cannot_be_certified_is_refused_in_words():
    with pytest.raises(ValueError, match="worlds is 0; it must be at least 1"):
        certify("talon", worlds=0)
    with pytest.raises(LookupError, match="did you mean 'sequoia'"):
        certify("sequoa")
    with pytest.raises(ValueError, match=r"the rule is <class .*Match'>; .*Rule, as Match\(\) and not Match"):
        certify("talon", Match)
    with pytest.raises(LookupError, match=r"tree policy 'misspelt' .* has the default rule 'blok', and there is none"):
        certify(Misspelt())
    with pytest.raises(ValueError, match=r"rule 'rrs' .* is not exact for the hybrid trees"):
        certify(TalonSampled(), "rrs")


def test_the_trap_in_numbers():
    target = TableTarget(np.log(np.tile([0.2, 0.5, 0.3], (3, 1))))
    drafter = Given(TableDrafter([0.6, 0.25, 0.15]))
    request = Request(ids=np.array([0]), max_new_tokens=2, sampling=Sampling(do_sample=True))

    def first(rule):
        law = emitted_law(Decoder(target, rule, KeepsTheLikelier(budget=2), drafter), request)
        return [sum(prob for text, prob in law.items() if text[0] == token) for token in range(3)]

    assert first(RejectionWithoutReplacement()) == pytest.approx([0.302, 0.472, 0.226], abs=5e-4)
    assert first(load_registry().get("rule", "match").cls()) == pytest.approx([0.2, 0.5, 0.3])


def test_rounds_that_are_over_hold_no_laws():
    drafter = Given(TableDrafter([0.6, 0.25, 0.15]))
    request = Request(ids=np.array([0]), max_new_tokens=9, sampling=Sampling(do_sample=True), seed=1)
    decoder = Decoder(TableTarget(np.zeros((3, 3))), load_registry().get("rule", "rrsw").cls(), Remembers(), drafter)
    (result,) = decoder.run_all([request])
    records = [drawn for round_ in result.rounds for drawn in round_.tree.drawn.values()]
    assert records
    assert all(len(drawn.tokens) and not len(drawn.law) for drawn in records)


@attrs.frozen
class DrawsForty(TreePolicy):
    """More draws than anybody can enumerate."""

    name = "draws-forty"
    children = "iid"
    default_rule = "rrs"
    budget: int = 60

    def grow(self, tree, candidates, choices):
        return Growth([], frontier=[], drawn={0: candidates.draw(choices, 0, 40, replacement=True)})


@attrs.frozen
class DraftsNothing(TreePolicy):
    name = "drafts-nothing"
    budget: int = 4

    def grow(self, tree, candidates, choices):
        return Growth([])


def test_there_is_no_certificate_about_nothing(monkeypatch):
    monkeypatch.setattr(trial, "MOST_OUTCOMES", 100)  # there are far more, and all up to there are enumerated
    with pytest.raises(
        ValueError, match=r"\d+ of 10 worlds could be enumerated, and \d+ had too many outcomes; .*smaller"
    ):
        certify(DrawsForty(), worlds=10, vary={})
    with pytest.raises(ValueError, match=r"nothing that tree policy 'drafts-nothing' .* drafted could be accepted"):
        certify(DraftsNothing(), worlds=20)
