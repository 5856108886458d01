"""Schedules keep the law whatever the timing is, and protocols that do not are found out by the same means."""

from functools import partial
from itertools import islice
from zlib import crc32

import attrs
import numpy as np
import pytest

from talon_core import AcceptanceRule, Accepted, Request, TableTarget, TokenTree
from talon_core.certify import trial
from talon_core.certify.adversary import Adversary
from talon_core.certify.exact import Given, ancestral_law, distance, emitted_law, generations
from talon_core.certify.trial import TOLERANCE, CertificationError
from talon_core.certify.worlds import random_worlds
from talon_core.decoding.decoder import Decoder
from talon_core.engine.ahead.drafter import AheadDrafter
from talon_core.engine.ahead.text import Text
from talon_core.engine.ahead.worker import InLine
from talon_core.engine.sequence import Sequence
from talon_core.plugins.specs import spelled
from talon_core.rule import descend
from talon_core.sampling import temperature_sampling
from talon_core.testing import TableDrafter, certify
from talon_core.testing.odd_policies import CoinTosser
from talon_drafters import Ngram
from talon_strategies import (
    Bandit,
    Block,
    Branch,
    Cached,
    Chain,
    GammaTune,
    Match,
    Pearl,
    SampledChain,
    SpecInfer,
    Talon,
    TalonSampled,
)

SCHEDULES = [Cached(budget=4), Cached(budget=3, allocation="geometric"), Branch(budget=3), Pearl()]
SCHEDULES += [Cached(budget=2, instant=Ngram(least=0.0))]
POLICIES = [
    Talon(budget=4, top_k=2),
    Chain(length=2),
    SampledChain(length=2),
    TalonSampled(budget=4),
    SpecInfer(widths=(1, 2)),
    CoinTosser(budget=3),
    GammaTune(),
    Bandit(of="chain[length=2]+talon[budget=3]"),
]
"""Fixed and drawn children, chains and trees, with a memory and without."""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=spelled)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: one.name)
def test_the_law_does_not_move_whatever_is_delayed_reordered_or_dropped(policy, schedule, monkeypatch):
    monkeypatch.setattr(trial, "MOST_OUTCOMES", 100)  # most of the work was in worlds that were left out in the end
    worlds = 30 if schedule == Pearl() else 12  # it verifies fewer trees
    certificate = certify(policy, schedule=schedule, worlds=worlds, seed=1)
    assert certificate.certified
    assert certificate.largest_error < TOLERANCE
    assert certificate.schedule.startswith(schedule.name)
    assert certificate.unkept is not None


def decoder_of(world, rule, policy, schedule, worker=None):
    drafter = Given(world.make_drafter())
    worker = worker if worker is not None else partial(Adversary, seed=crc32(repr(world).encode()))
    return Decoder(world.make_target(), rule, world.varied(policy), drafter, schedule=schedule, worker=worker)


def some_worlds(count, draws, seed=3):
    """Worlds that are drawn from, whose texts are long enough for a hit."""
    worlds = random_worlds(seed, draws=draws)
    good = (one for one in worlds if one.temperature > 0 and one.max_new_tokens > 2 and not one.processors)
    return islice(good, count)


@pytest.mark.parametrize("policy", [Talon(budget=4, top_k=2), SampledChain(length=2)], ids=lambda one: one.name)
def test_the_adversary_leaves_enough_to_be_used(policy):
    """Otherwise the certificates above would be about nothing."""
    told = []
    for world in some_worlds(25, draws=True):
        decoder = decoder_of(world, Match() if policy.name == "talon" else Block(), policy, Cached(budget=9))
        for _, generation in generations(decoder, world.request):
            told += [one.hit for one in generation.rounds]
    assert told.count(True) > 20
    assert told.count(False) > 20


def errors(rule, policy, schedule, worker=None):
    """In each of thirty worlds, worked out when it is asked for."""
    for world in some_worlds(30, draws=True):
        decoder = decoder_of(world, rule, policy, schedule, worker)
        yield distance(emitted_law(decoder, world.request), ancestral_law(decoder.target, world.request))


def is_found_out(*parts):
    return any(error > 0.01 for error in errors(*parts))


def error_of_long_texts():
    """In a world of texts of five tokens, where a whole chain is often accepted long before the end."""
    target, drafter = TableTarget(np.log([[0.7, 0.3], [0.2, 0.8]])), TableDrafter([[0.6, 0.4]])
    request = Request(np.array([0]), 5, temperature_sampling(1.0))
    decoder = Decoder(target, Match(), Chain(length=1), Given(drafter), schedule=Pearl(), worker=InLine)
    return distance(emitted_law(decoder, request), ancestral_law(target, request))


def children(tree: TokenTree, node: int) -> list[int]:
    return np.flatnonzero(tree.parents == node).tolist()


@attrs.frozen
class BranchByTarget(AcceptanceRule):
    """SpecBranch's release: of several branches the one that the target likes best is kept, and then tested by p/q."""

    name = "branch-by-target"
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        def draw(node):
            branches = children(tree, node)
            if not branches:
                return laws.draw(node, choices)
            p = laws.at(node)
            token = max((int(tree.tokens[child]) for child in branches), key=lambda one: p[one])
            q = float(np.exp(tree.path_logp[tree.child(node, token)] - tree.path_logp[node]))
            if choices.coin(min(1.0, float(p[token]) / max(q, 1e-12))):
                return token
            left = np.where(np.arange(len(p)) == token, 0.0, p)
            return choices.pick(left / left.sum()) if left.any() else token

        return descend(tree, laws, draw)


@attrs.frozen
class RowsOnTheirOwn(AcceptanceRule):
    """REST's release: each row of the table of paths draws its own tokens, and the row that got furthest is kept."""

    name = "rows-on-their-own"
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        leaves = [node for node in range(len(tree)) if node not in tree.parents]
        best = None
        for leaf in leaves:
            row = tree.path(leaf)
            accepted = [0]
            token = laws.draw(0, choices)
            for node in row[1:].tolist():
                if token != int(tree.tokens[node]) or laws.ends(token):
                    break
                accepted.append(node)
                token = laws.draw(node, choices)
            if best is None or len(accepted) > len(best.path):
                best = Accepted(np.array(accepted), token)
        return best


@pytest.mark.parametrize("rule", [BranchByTarget(), RowsOnTheirOwn()], ids=lambda one: one.name)
def test_rules_of_released_code_are_refused(rule, monkeypatch):
    monkeypatch.setattr(trial, "worlds_by_size", lambda **_: [])  # the first world that shows it is simple enough
    monkeypatch.setattr(trial, "MOST_OUTCOMES", 100)
    with pytest.raises(CertificationError, match="REFUTED"):
        certify(Talon(budget=3, top_k=2), rule, schedule=Cached(budget=4), worlds=100)


def test_what_is_right_is_not_refused_by_the_same_means():
    assert max(errors(Match(), Chain(length=2), Cached(budget=9), InLine)) < TOLERANCE
    assert error_of_long_texts() < TOLERANCE


def test_a_cached_row_accepted_by_argmax_on_a_miss_is_refused(monkeypatch):
    """SSD's release: after a miss, what is there is taken as long as it holds the target's most likely tokens."""
    missed = []
    hit = AheadDrafter.hit

    def noted(self, slot):
        missed[:] = [hit(self, slot) is False]
        return hit(self, slot)

    @attrs.frozen
    class ArgmaxOnMiss(AcceptanceRule):
        name = "argmax-on-miss"
        exact_for = frozenset({"any"})

        def walk(self, tree, laws, choices):
            def draw(node):
                best = int(laws.at(node).argmax())
                if missed == [True] and tree.child(node, best) is not None:
                    return best
                return laws.draw(node, choices)

            return descend(tree, laws, draw)

    original = AheadDrafter.propose

    def proposed(self, frontiers):
        noted(self, frontiers[0].slot)
        return original(self, frontiers)

    monkeypatch.setattr(AheadDrafter, "propose", proposed)
    assert is_found_out(ArgmaxOnMiss(), Chain(length=2), Cached(budget=1), InLine)


def test_a_bonus_token_and_a_provisional_continuation_together_are_refused(monkeypatch):
    """PEARL done wrong: after a whole path was accepted, its own token is emitted, and then what was tested for the
    place that this token has taken."""
    accept, cut = Sequence.accept, Sequence.cut
    after = {}

    def accepted(self, rule, tree, outputs):
        chosen = accept(self, rule, tree, outputs)
        after[self] = None
        if len(chosen.path) == int(tree.depths.max()) + 1 > 1 and chosen.token not in self.request.eos:
            provisional = self.laws(tree, outputs).draw(int(chosen.path[-1]), self.choices)
            after[self] = provisional
        return chosen

    def with_provisional(self, tree, chosen):
        tokens, reason = cut(self, tree, chosen)
        if reason is None and after.get(self) is not None:
            tokens = np.append(tokens, after[self])
            if after[self] in self.request.eos:
                reason = "eos"
            elif len(self.token_ids) + len(tokens) >= self.limit:
                reason = "length"
        return tokens, reason

    monkeypatch.setattr(Sequence, "accept", accepted)
    monkeypatch.setattr(Sequence, "cut", with_provisional)
    assert error_of_long_texts() > 0.01


def test_an_outcome_that_is_repaired_to_fit_what_was_prepared_is_refused(monkeypatch):
    """A continuation of another outcome is used: its token takes the place of the target's."""
    accept = Sequence.accept
    drafters = []
    verifying = AheadDrafter.verifying

    def noted(self, trees):
        drafters[:] = [self]
        return verifying(self, trees)

    def repaired(self, rule, tree, outputs):
        chosen = accept(self, rule, tree, outputs)
        if drafters:
            drafters[0]._stop()
            (prepared,) = [*drafters[0]._prepared.values()] or [None]
            node = int(chosen.path[-1])
            here = [token for at, token in (prepared.below if prepared else {}) if at == node]
            if here and chosen.token not in here:
                return Accepted(chosen.path, here[0])
        return chosen

    monkeypatch.setattr(AheadDrafter, "verifying", noted)
    monkeypatch.setattr(Sequence, "accept", repaired)
    assert is_found_out(Match(), Chain(length=2), Cached(budget=2), InLine)


def test_drafts_drawn_beforehand_that_are_dropped_when_they_are_late_are_refused():
    """What a stale draft would do: a draw is kept if it was there in time, and it was there sooner where it is short.

    Draws beforehand are looked at before they are used; a chain that is drawn until its first token is likely enough is
    one whose draw was kept for what came out.
    """

    @attrs.frozen
    class InTime(SampledChain):
        name = "in-time"

        def grow(self, tree, candidates, choices):
            first = super().grow(tree, candidates, choices)
            drawn = first.drawn.get(0)
            if drawn is not None and int(drawn.tokens[0]) % 2:  # this one takes longer, and comes late
                return super().grow(tree, candidates, choices)
            return first

    assert is_found_out(Block(), InTime(length=2), Cached(budget=4))


def test_what_was_prepared_for_another_text_is_dropped_whoever_brings_it(monkeypatch):
    """The adversary brings what is late; were it used, the round would begin with a hit that nobody prepared."""
    commit, kept = Text.commit, []

    def watched(self, committed, prepared):
        stale = prepared is not None and prepared.base != self.base
        commit(self, committed, prepared)
        if stale:
            kept.append((self.continuation, self.hit))

    monkeypatch.setattr(Text, "commit", watched)
    for world in some_worlds(25, draws=False):
        emitted_law(decoder_of(world, Match(), Chain(length=2), Cached(budget=9)), world.request)
    assert len(kept) > 20
    assert {*kept} == {(None, None)}
