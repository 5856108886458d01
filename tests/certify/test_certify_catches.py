"""What is known to be wrong is caught: rules and policies that look right, run, and change the law of the output."""

import attrs
import numpy as np
import pytest

from talon_core import AcceptanceRule, Accepted, Growth, TokenTree, TreePolicy
from talon_core.certify.trial import TOLERANCE, CertificationError
from talon_core.drawn import Drawn, without
from talon_core.rule import descend
from talon_core.testing import certify
from talon_strategies import Chain, SampledChain, Sequoia, StaticTree, Talon, TalonSampled
from talon_strategies.drawing import NOTHING
from talon_strategies.rules.descent import leftover, ratio
from talon_tests.wrong import BonusOffByOne, KeepsTheLikelier, NoLeftover


def children(tree, node):
    return np.flatnonzero(tree.parents == node).tolist()


@attrs.frozen
class DrafterProbabilityAsQ(AcceptanceRule):
    """Tests a child that was not drawn as if it had been: with the drafter's probability as q."""

    name = "drafter-probability-as-q"
    exact_for = frozenset({"deterministic"})

    def walk(self, tree, laws, choices):
        def draw(node):
            p = laws.at(node)
            for child in children(tree, node):
                token, q = int(tree.tokens[child]), float(np.exp(tree.path_logp[child] - tree.path_logp[node]))
                if choices.coin(ratio(p[token], q)):
                    return token
                p = leftover(p, np.where(np.arange(len(p)) == token, q, 0.0))
            return choices.pick(p)

        return descend(tree, laws, draw)


@attrs.frozen
class ArgmaxAcceptance(AcceptanceRule):
    """Accepts a child that holds the target's most likely token, whatever the temperature."""

    name = "argmax-acceptance"
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        def draw(node):
            best = int(laws.at(node).argmax())
            return best if tree.child(node, best) is not None else laws.draw(node, choices)

        return descend(tree, laws, draw)


@attrs.frozen
class AcceptsTheDrafter(AcceptanceRule):
    """Accepts each child with the drafter's probability of its token."""

    name = "accepts-the-drafter"
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        def draw(node):
            for child in children(tree, node):
                if choices.coin(min(1.0, float(np.exp(tree.path_logp[child] - tree.path_logp[node])))):
                    return int(tree.tokens[child])
            return laws.draw(node, choices)

        return descend(tree, laws, draw)


@attrs.frozen
class LeftoverNotRenormalised(AcceptanceRule):
    """Tests the second child with what is left of the target's law, which does not sum to 1."""

    name = "leftover-not-renormalised"
    exact_for = frozenset({"without-replacement"})

    def walk(self, tree, laws, choices):
        def draw(node):
            drawn = tree.drawn.get(node)
            if drawn is None:
                return laws.draw(node, choices)
            r, q = laws.at(node), drawn.law
            for c in drawn.tokens.tolist():
                if choices.coin(ratio(r[c], q[c])):
                    return c
                r, q = np.maximum(r - q, 0.0), without(q, c)
            return choices.pick(r / r.sum()) if r.any() else laws.draw(node, choices)

        return descend(tree, laws, draw)


@attrs.frozen
class RowsDrawOnTheirOwn(AcceptanceRule):
    """As REST's release: each row of the path table draws a token at each of its nodes, and the longest match wins."""

    name = "rows-draw-on-their-own"
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        path = []
        for leaf in sorted({*range(len(tree))} - {*tree.parents.tolist()}):
            row = tree.path(leaf).tolist()
            matched = 1
            while matched < len(row) and laws.draw(row[matched - 1], choices) == tree.tokens[row[matched]]:
                if laws.ends(int(tree.tokens[row[matched]])):
                    return Accepted(np.array(row[:matched]), int(tree.tokens[row[matched]]))
                matched += 1
            path = row[:matched] if matched > len(path) else path
        return Accepted(np.array(path), laws.draw(path[-1], choices))


@attrs.frozen
class BranchByTheTarget(AcceptanceRule):
    """As SpecBranch's release: tests the branch that the target likes best, and rejects for the argmax of the rest."""

    name = "branch-by-the-target"
    exact_for = frozenset({"deterministic"})

    def walk(self, tree, laws, choices):
        def draw(node):
            p, q = laws.at(node), np.zeros_like(laws.at(node))
            for child in children(tree, node):
                q[tree.tokens[child]] = np.exp(tree.path_logp[child] - tree.path_logp[node])
            if not q.any():
                return laws.draw(node, choices)
            branch = int(np.where(q > 0, p, -1.0).argmax())
            return branch if choices.coin(ratio(p[branch], q[branch])) else int((p - q).argmax())

        return descend(tree, laws, draw)


@attrs.frozen
class PrunesByItsOwnProbability(TreePolicy):
    """The trap again: draws one child, and leaves it out where the drafter gives it little."""

    name = "prunes-by-its-own-probability"
    children = "sampled-chain"
    default_rule = "block"
    budget: int = 3

    def grow(self, tree, candidates, choices):
        drawn = candidates.draw(choices, 0)
        likely = drawn.law[drawn.tokens[0]] >= 0.4
        return Growth(NOTHING, drawn={0: drawn} if likely else {})


@attrs.frozen
class FinishesWithTheLikely(TreePolicy):
    """And again: drops drawn children with their sub-trees in the end, by what came out."""

    name = "finishes-with-the-likely"
    children = "without-replacement"
    default_rule = "traversal"
    budget: int = 4

    def grow(self, tree, candidates, choices):
        return Growth(NOTHING, drawn={0: candidates.draw(choices, 0)})

    def finish(self, tree):
        kept = [0]
        for node in range(1, len(tree)):
            drawn = tree.drawn[int(tree.parents[node])]
            if tree.parents[node] == kept[-1] and drawn.law[tree.tokens[node]] >= 0.4:
                kept.append(node)
        return tree.keep(kept)


@attrs.frozen
class DrawsFromAnother(TreePolicy):
    """Draws from one law and says another."""

    name = "draws-from-another"
    children = "sampled-chain"
    default_rule = "hybrid"
    budget: int = 3

    def grow(self, tree, candidates, choices):
        law = candidates.law(0)
        token = candidates.draw(choices, 0, law=law**2 / (law**2).sum()).tokens
        return Growth(NOTHING, drawn={0: Drawn(token, law)})


@attrs.frozen
class OwnDice(TreePolicy):
    """Tosses coins of its own, which nobody can enumerate."""

    name = "own-dice"
    budget: int = 4
    dice: np.random.Generator = attrs.field(init=False, eq=False, factory=np.random.default_rng)

    def grow(self, tree, candidates, choices):
        best = candidates.best(self.budget - len(tree))
        if self.dice.random() < 0.5:
            return Growth(best)
        return Growth(best[[choices.pick(np.full(len(best), 1 / len(best)))]])


@attrs.frozen
class Overspends(TreePolicy):
    """Breaks its contract in deep trees."""

    name = "overspends"
    budget: int = 3

    def width(self, tree):
        return 9

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1 if len(tree) == 1 else 9))


@attrs.frozen
class RaisesNowAndThen(TreePolicy):
    """Fails at random, and not when it is run again."""

    name = "raises-now-and-then"
    budget: int = 4

    def grow(self, tree, candidates, choices):
        OUTBURSTS.append(1)
        if len(OUTBURSTS) == 50:
            raise RuntimeError("by chance")
        return Growth(candidates.best(1))


OUTBURSTS = []

WRONG = [
    *((Talon(), rule) for rule in (DrafterProbabilityAsQ(), ArgmaxAcceptance(), AcceptsTheDrafter(), BonusOffByOne())),
    *((policy, rule) for policy in (Talon(), StaticTree()) for rule in (RowsDrawOnTheirOwn(), BranchByTheTarget())),
    *((Chain(), ArgmaxAcceptance()), (Chain(), BonusOffByOne()), (StaticTree(), DrafterProbabilityAsQ())),
    *((SampledChain(), NoLeftover()), (TalonSampled(), NoLeftover()), (SampledChain(), BonusOffByOne())),
    (Sequoia(), LeftoverNotRenormalised()),
    *((KeepsTheLikelier(), rule) for rule in ("rrsw", "traversal")),
    *((PrunesByItsOwnProbability(), rule) for rule in ("block", "rrs", "rrsw", "hybrid", "traversal")),
    *((FinishesWithTheLikely(), rule) for rule in ("rrsw", "traversal")),
    *((DrawsFromAnother(), rule) for rule in ("hybrid", "block")),
    (Talon(), "typical"),
]


def spelled(part):
    return part if isinstance(part, str) else part.name


@pytest.fixture(scope="module")
def refused():
    """Certificates that were refused, by policy and rule; each is looked for once."""
    known = {}

    def refuse(policy, rule):
        if (policy, rule) not in known:
            with pytest.raises(CertificationError) as caught:
                certify(policy, rule, worlds=500)
            known[policy, rule] = caught.value.certificate
        return known[policy, rule]

    return refuse


@pytest.mark.parametrize(("policy", "rule"), WRONG, ids=[f"{spelled(p)}-{spelled(r)}" for p, r in WRONG])
def test_what_is_known_to_be_wrong_is_refused_with_a_world_one_can_follow(refused, policy, rule):
    found = refused(policy, rule).counterexample
    assert found.error > 1e-6
    assert (found.world.vocab_size, found.world.processors) in ((2, ()), (3, ()))
    assert found.world.temperature == 1
    assert len(found.world.drafter) == 1
    # the two laws at the step where they part, and the round in which it happens
    assert sum(found.expected) == pytest.approx(1)
    assert max(abs(np.subtract(found.expected, found.emitted))) > TOLERANCE
    assert sum(outcome.prob for outcome in found.outcomes) == pytest.approx(1)
    assert found.start == found.text[: len(found.start)]
    assert refused(policy, rule).verdict == "refuted"


@pytest.mark.parametrize("policy", [KeepsTheLikelier(), PrunesByItsOwnProbability(), FinishesWithTheLikely()])
def test_under_sample_and_match_the_trap_is_none(policy):
    assert certify(policy, "match", worlds=100).certified


def test_a_counterexample_is_told_in_a_few_lines(refused):
    text = str(refused(KeepsTheLikelier(), "rrsw"))
    assert text.startswith("REFUTED: policy keeps-the-likelier with rule rrsw, drafter: random tables")
    assert "tokens 0 to 1, prompt [0], at most 2 new tokens, temperature 1" in text
    assert "the laws part after the prompt" in text
    assert "1*" in text
    assert len(text.splitlines()) < 40


@pytest.mark.parametrize(
    ("rule", "tokens", "p", "q", "emitted"),
    [
        (RowsDrawOnTheirOwn(), [0, 1], [0.5, 0.3, 0.2], [0.5, 0.5], [0.675, 0.255, 0.07]),
        (BranchByTheTarget(), [0, 1], [0.2, 0.5, 0.3], [0.6, 0.25], [0, 1, 0]),
    ],
)
def test_what_the_releases_emit_in_numbers(talon_walks, rule, tokens, p, q, emitted):
    tree = TokenTree([0, *tokens], [-1, 0, 0], [0.0, *np.log(q)])
    law = np.zeros(3)
    for prob, accepted in talon_walks(rule, tree, [p]):
        law[tree.tokens[accepted.path[1]] if len(accepted.path) > 1 else accepted.token] += prob
    assert law == pytest.approx(emitted)


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        (OwnDice(), "must come from Choices alone"),
        (RaisesNowAndThen(), "does not do the same when it is given the same"),
        (Overspends(), "tree policy 'overspends' .* grew its tree to 4 nodes, .* its draft_budget is 3"),
    ],
)
def test_a_policy_that_breaks_its_contract_is_refused_in_the_decoders_words(policy, complaint):
    with pytest.raises(CertificationError, match=complaint) as caught:
        certify(policy, worlds=200)
    assert not caught.value.certificate.certified
    assert caught.value.certificate.verdict == "broken"
    assert str(caught.value).startswith(f"BROKEN: policy {policy.name}")
