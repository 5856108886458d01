"""Slots of target and drafter: which sequence has one, from when to when, and who chooses its path."""

import gc

import attrs
import numpy as np
import pytest
import torch

from talon_core import AcceptanceRule, Accepted, PluginError, Request, TableTarget, TokenTree, Verified
from talon_core.certify.exact import Given
from talon_core.decoding.decoder import Decoder
from talon_core.engine.engine import Engine
from talon_core.sampling import Sampling
from talon_core.testing import TableDrafter
from talon_drafters import Ngram
from talon_strategies import Chain, Match

VOCAB = 6
COUNTING = np.roll(np.eye(VOCAB), 1, axis=1) * 9
"""After token t comes t + 1, and after the last comes 0; when sampled, almost surely."""
LAWS = np.random.default_rng(8).dirichlet(np.ones(VOCAB), size=31)


class Noting(TableTarget):
    """Writes down what is asked of it, and refuses what is asked of a slot that is not open."""

    can_walk = True

    def __init__(self, logits=COUNTING):
        super().__init__(logits)
        self.calls = []
        self.opened = set()

    def open(self, slot, room):
        assert slot not in self.opened
        self.calls.append(("open", slot, room))
        self.opened.add(slot)
        super().open(slot, room)

    def close(self, slot):
        self.opened.remove(slot)
        self.calls.append(("close", slot))
        super().close(slot)

    def read(self, parts):
        assert parts.keys() <= self.opened
        self.calls.append(("read", {slot: tokens.tolist() for slot, tokens in parts.items()}))
        return super().read(parts)

    def verify(self, trees, greedy):
        assert greedy.keys() <= trees.keys() <= self.opened
        self.calls.append(("verify", [*trees], dict(greedy)))
        return super().verify(trees, greedy)

    def commit(self, paths):
        assert paths.keys() <= self.opened
        self.calls.append(("commit", {slot: path.tolist() for slot, path in paths.items()}))
        super().commit(paths)


class Strict(TableDrafter):
    """The same of a drafter."""

    def __init__(self, laws=LAWS):
        super().__init__(laws)
        object.__setattr__(self, "calls", [])
        object.__setattr__(self, "opened", set())

    def open(self, slot, prompt, room):
        assert slot not in self.opened
        self.calls.append(("open", slot, prompt.tolist(), room))
        self.opened.add(slot)

    def close(self, slot):
        self.opened.remove(slot)
        self.calls.append(("close", slot))

    def read(self, parts):
        assert parts.keys() <= self.opened
        self.calls.append(("read", {slot: (part.start, part.count, part.features) for slot, part in parts.items()}))

    def propose(self, frontiers):
        slots = [one.slot for one in frontiers]
        assert set(slots) <= self.opened
        assert len(set(slots)) == len(slots)
        self.calls.append(("propose", slots))
        return super().propose(frontiers)

    def commit(self, committed):
        assert committed.keys() <= self.opened
        self.calls.append(("commit", {slot: (one.tokens.tolist(), one.features) for slot, one in committed.items()}))


def decoder_of(target, drafter, length=3):
    decoder = Decoder(target, Match(), Chain(length=length), Given(drafter))
    decoder.engine = Engine(target, Match(), Chain(length=length), drafter, keep=False, allocator=None)
    return decoder


def named(calls, name):
    return [call[1:] for call in calls if call[0] == name]


# From when to when


def test_each_sequence_has_a_slot_until_it_is_over():
    target, drafter = Noting(), Strict([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]])
    one, other = Request(np.array([2]), 2), Request(np.array([3, 4, 5]), 4)
    results = decoder_of(target, drafter, 1).run_all([one, other])
    assert [result.token_ids for result in results] == [[3, 4], [0, 1, 2, 3]]
    assert target.calls == [
        ("open", 0, 1 + 2 + 2),
        ("open", 1, 3 + 4 + 2),
        ("read", {1: [3, 4]}),
        ("verify", [0, 1], {0: frozenset(), 1: frozenset()}),
        ("commit", {0: [0, 1], 1: [0]}),
        ("close", 0),
        *[("verify", [1], {1: frozenset()}), ("commit", {1: [0]})] * 3,
        ("close", 1),
    ]
    assert drafter.calls == [
        ("open", 0, [2], 1 + 2),
        ("open", 1, [3, 4, 5], 3 + 4),
        ("read", {1: (0, 2, None)}),
        ("propose", [0, 1]),
        ("commit", {1: ([0], None)}),
        ("close", 0),
        ("propose", [1]),
        ("commit", {1: ([1], None)}),
        ("propose", [1]),
        ("commit", {1: ([2], None)}),
        ("close", 1),
    ]


def test_the_last_round_that_there_is_time_for_ends_with_the_slots_closed():
    target, drafter = Noting(), Strict()
    requests = [Request(np.array([slot]), 20, max_seconds=0.0) for slot in range(2)]
    results = decoder_of(target, drafter).run_all(requests)
    assert [result.finish_reason for result in results] == ["time", "time"]
    assert (target.opened, drafter.opened) == (set(), set())


def test_slots_that_somebody_has_left_are_closed_in_the_next_step():
    target, drafter = Noting(), Strict()
    decoder = decoder_of(target, drafter)
    left = decoder.batch([Request(np.array([slot]), 20) for slot in range(3)], 3)
    next(left)
    assert target.opened == drafter.opened == {0, 1, 2}
    del left
    assert decoder.run_all([Request(np.array([0]), 5)])[0].token_ids == [1, 2, 3, 4, 5]
    assert (target.opened, drafter.opened) == (set(), set())


def test_somebody_who_is_still_there_goes_on_beside_the_others():
    target, drafter = Noting(), Strict()
    decoder = decoder_of(target, drafter)
    first = decoder.run(Request(np.array([0]), 12))
    next(first)
    assert decoder.run_all([Request(np.array([3]), 5)])[0].token_ids == [4, 5, 0, 1, 2]
    assert target.opened == drafter.opened == {0}
    first.finish()
    assert first.token_ids == [1, 2, 3, 4, 5, 0] * 2


def test_decoders_on_one_target_have_slots_of_their_own():
    target, drafters = Noting(), (Strict(), Strict())
    one, other = (decoder_of(target, drafter) for drafter in drafters)
    request = Request(np.array([0]), 20)
    first, second = one.run(request), other.batch([request, attrs.evolve(request)], 2)
    next(first)
    next(second)
    assert (target.opened, drafters[0].opened, drafters[1].opened) == ({0, 1, 2}, {0}, {1, 2})
    first.finish()
    assert (target.opened, drafters[0].opened, drafters[1].opened) == ({1, 2}, set(), {1, 2})
    second.finish()
    assert target.opened == target.occupied == set()
    assert first.token_ids == second.sequences[0].token_ids == ([1, 2, 3, 4, 5, 0] * 4)[:20]


def test_a_decoder_that_nobody_has_gives_its_slots_back():
    target = Noting()
    decoder = decoder_of(target, Strict())
    next(decoder.run(Request(np.array([0]), 20)))
    assert target.occupied == {0}
    del decoder
    gc.collect()
    assert target.opened == target.occupied == set()


def test_a_drafter_that_keeps_texts_follows_another_decoder_on_the_same_target():
    target = TableTarget(COUNTING)
    one, other = (Decoder(target, Match(), Chain(length=2), Ngram()) for _ in range(2))
    next(one.run(Request(np.array([0]), 20)))
    assert other.run_all([Request(np.array([0]), 4)])[0].token_ids == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", [Noting, Strict])
def test_a_slot_that_could_not_be_opened_is_not_closed(kind, monkeypatch):
    target, drafter = Noting(), Strict()
    decoder = decoder_of(target, drafter)
    requests = [Request(np.array([slot]), 5) for slot in range(3)]
    opens = kind.open

    def fails(self, slot, *args):
        if slot == 1:
            raise MemoryError("no room")
        opens(self, slot, *args)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "open", fails)
        with pytest.raises((MemoryError, PluginError), match="no room"):
            decoder.run_all(requests)
    assert [result.token_ids[0] for result in decoder.run_all(requests)] == [1, 2, 3]
    assert (target.opened, drafter.opened) == (set(), set())


# Who chooses


@attrs.frozen
class Rejecting(AcceptanceRule):
    """Accepts nothing, so it does not follow the target's likeliest tokens either."""

    name = "rejecting"
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        return Accepted(np.array([0]), laws.draw(0, choices))


WANTED = {0: frozenset({3}), 2: frozenset()}


@pytest.mark.parametrize(
    ("rule", "walks", "expected"), [(Match(), True, WANTED), (Match(), False, {}), (Rejecting(), True, {})]
)
def test_a_target_is_told_who_wants_the_likeliest_tokens_and_where_their_texts_end(rule, walks, expected):
    kinds = [
        {"eos": frozenset({3})},
        {"sampling": Sampling(True)},
        {},
        {"sampling": Sampling(False, (lambda ids, scores: scores,))},
    ]
    target = Noting()
    target.can_walk = walks
    Decoder(target, rule).run_all([Request(np.array([0]), 1, **kind) for kind in kinds])
    assert named(target.calls, "verify") == [([0, 1, 2, 3], expected)]


class Walking(Noting):
    """Chooses and commits by itself the paths of the slots `own`, wherever the likeliest tokens are wanted."""

    def __init__(self, logits, own):
        super().__init__(logits)
        self.own = own

    def verify(self, trees, greedy):
        outputs = dict(super().verify(trees, greedy).outputs)
        accepted = {}
        for slot in self.own & greedy.keys():
            best = outputs.pop(slot).logits.argmax(-1).tolist()
            path = [0]
            while best[path[-1]] not in greedy[slot]:
                child = trees[slot].child(path[-1], best[path[-1]])
                if child is None:
                    break
                path.append(child)
            accepted[slot] = Accepted(np.array(path), best[path[-1]], torch.full((len(path), 1), float(slot)))
        TableTarget.commit(self, {slot: one.path for slot, one in accepted.items()})
        return Verified(outputs, accepted)


@pytest.mark.parametrize("own", [set(), {0}, {1}, {2}, {0, 2}, {0, 1, 2, 3}])
def test_a_target_may_choose_some_paths_while_the_rule_chooses_the_others(own):
    logits = COUNTING + np.random.default_rng(2).standard_normal((VOCAB, VOCAB))
    kinds = [{"eos": frozenset({4})}, {"sampling": Sampling(True), "seed": 3}, {}, {"eos": frozenset({4, 5})}]
    requests = [Request(np.array([slot]), 14, **kind) for slot, kind in enumerate(kinds)]
    target, knows = Walking(logits, own), TableDrafter(LAWS)
    results = decoder_of(target, knows).run_all(requests)
    for request, result in zip(requests, results, strict=True):
        (alone,) = decoder_of(TableTarget(logits), knows).run_all([request])
        assert (result.token_ids, result.finish_reason) == (alone.token_ids, alone.finish_reason)
        for one, other in zip(result.rounds, alone.rounds, strict=True):
            assert (one.tokens.tolist(), one.path.tolist()) == (other.tokens.tolist(), other.path.tolist())
    assert any(round_.accepted for result in results for round_ in result.rounds)
    by_host = {slot for (paths,) in named(target.calls, "commit") for slot in paths}
    assert by_host == {0, 1, 2, 3} - (own - {1})  # what is sampled is never the target's to choose


def test_a_drafter_gets_the_features_of_the_path_that_its_target_chose():
    drafter = Strict([[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    requests = [Request(np.array([1 + slot]), 6) for slot in range(2)]
    decoder_of(Walking(COUNTING, {0, 1}), drafter, 1).run_all(requests)
    heard = named(drafter.calls, "commit")
    assert heard
    for (committed,) in heard:
        for slot, (tokens, features) in committed.items():
            assert features.tolist() == [[slot]] * len(tokens)
    assert {len(tokens) for (committed,) in heard for tokens, _ in committed.values()} == {1, 2}


# A target given by a table


def laws_of(target, trees):
    return {slot: own.logits.tolist() for slot, own in target.verify(trees).outputs.items()}


def test_slots_of_a_table_are_any_and_join_and_leave_whenever_others_are_between_rounds():
    target = TableTarget(np.random.default_rng(0).standard_normal((VOCAB,) * 3))
    texts = {7: [1, 2, 3], 2: [4], 5: []}
    tree = TokenTree([3, 0, 1], [-1, 0, 1], np.zeros(3))

    def expected(slot):
        paths = [[3], [3, 0], [3, 0, 1]]
        return [target.after([*texts[slot], *path]).tolist() for path in paths]

    for slot in (7, 2):
        target.open(slot, 20)
    target.read({7: np.array([1, 2]), 2: np.array([], dtype=np.int64)})
    assert target.read({2: np.array([4])}) == {2: None}
    target.read({7: np.array([3])})  # in parts
    assert laws_of(target, {7: tree, 2: tree}) == {7: expected(7), 2: expected(2)}
    target.commit({7: np.array([0, 1]), 2: np.array([0])})
    texts[7], texts[2] = [1, 2, 3, 3, 0], [4, 3]
    target.open(5, 20)
    assert laws_of(target, {5: tree, 7: tree}) == {5: expected(5), 7: expected(7)}
    target.close(7)
    assert laws_of(target, {2: tree}) == {2: expected(2)}
    target.open(7, 20)
    texts[7] = []
    assert laws_of(target, {2: tree, 7: tree}) == {2: expected(2), 7: expected(7)}
