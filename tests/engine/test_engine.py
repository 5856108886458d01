"""The engine's slots: who waits, who is refused, what is kept, and what fails alone."""

import gc
import re
import sys
import threading
import weakref
from collections import deque
from typing import ClassVar

import attrs
import numpy as np
import pytest

from talon_core import AcceptanceRule, Engine, Growth, PluginError, Request, TableTarget, TokenTree, TreePolicy
from talon_core.choices import SeededChoices
from talon_core.costs import MeasuredCosts
from talon_core.engine.drafting import TOGETHER
from talon_core.engine.generation import Batch, Generation
from talon_core.engine.sequence import Sequence
from talon_core.engine.slots import FEWEST_SLOTS, Seat, Slots
from talon_core.errors import BusyError
from talon_core.inquiry import Inquirer, Inquiry
from talon_core.sampling import Sampling
from talon_core.sessions import RepeatableSession
from talon_core.testing import TableDrafter
from talon_strategies import Cached, Chain, Eagle2, Match, Talon

VOCAB = 4
TABLE = np.random.default_rng(0).normal(size=(VOCAB,) * 3) * 2
LAWS = np.random.default_rng(1).dirichlet(np.ones(VOCAB), size=5)


class Noted(TableTarget):
    """Notes what it is asked to read, and which slots are verified together."""

    def __init__(self):
        super().__init__(TABLE)
        self.reads, self.verified = [], []

    def read(self, parts):
        self.reads.append({slot: len(tokens) for slot, tokens in parts.items()})
        return super().read(parts)

    def verify(self, trees, greedy=()):
        self.verified.append(sorted(trees))
        return super().verify(trees, greedy)


def engine(policy=Talon(budget=4, top_k=2), target=None, drafter=None, rule=Match(), **how):  # noqa: B008 - frozen
    return Engine(target or TableTarget(TABLE), rule, policy, drafter or TableDrafter(LAWS), **how)


def request(length=6, prompt=(0, 1, 2), **how):
    return Request(np.array(prompt), length, **how)


def run(engine, *sequences):
    for _ in range(500):
        if all(one.finished for one in sequences):
            return [one.token_ids for one in sequences]
        engine.step()
    raise AssertionError("nobody comes to an end")


def alone(one, **how):
    own = engine(**how)
    return run(own, own.submit(attrs.evolve(one)))[0]


def test_a_step_gives_every_running_sequence_a_round_and_the_next_takes_a_free_slot():
    target = Noted()
    own = engine(None, target, slots=2)
    lengths = [2, 5, 3]
    sequences = [own.submit(request(length)) for length in lengths]
    rounds = [own.step() for _ in range(5)]
    assert [len(of) for of in rounds] == [2, 2, 2, 2, 2]
    assert [one.finished for one in sequences] == [True, True, True]
    assert [len(one.token_ids) for one in sequences] == lengths
    assert target.verified == [[0, 1]] * 5  # the third took the slot of the first in the step after
    assert own.step() == {}


@attrs.frozen
class Pausing(Chain):
    """Asks for a draft in one round of so many."""

    name = "pausing"
    every: int = 1
    seen: list = attrs.field(factory=list, eq=False)

    def width(self, tree):
        return super().width(tree) if len(self.seen) % self.every == 0 else 0

    def observe(self, round_):
        self.seen.append(len(round_.tree) > 1)


@pytest.mark.parametrize(("every", "measured"), [(1, 24), (3, 8), (12, 1)])
def test_what_the_drafter_takes_behind_a_pause_is_not_measured_as_a_layer(monkeypatch, every, measured):
    layers = []
    monkeypatch.setattr(MeasuredCosts, "drafted", lambda _, *layer: layers.append(layer))
    policy = Pausing(length=1, every=every)
    own = engine(policy, drafter=TableDrafter([[0.0, 0.0, 1.0]]), target=TableTarget(np.eye(3)[[1, 0, 0]] * 50))
    sequence = own.submit(request(50))
    for _ in range(24):
        own.step([sequence])
    assert sum(policy.seen) == 24 // every
    assert len(layers) == measured


def test_only_those_that_are_named_take_part():
    own = engine()
    first, second = own.submit(request()), own.submit(request())
    own.step([second])
    assert (first.has_begun, len(second.rounds)) == (False, 1)
    own.step()
    assert (len(first.rounds), len(second.rounds)) == (1, 2)


def test_prompts_are_read_in_parts_while_others_go_on():
    target = Noted()
    own = engine(None, target, prompt_tokens=3)
    long = request(3, prompt=[1, 2, 3] * 4)
    runs = own.submit(request(6))
    own.step()
    assert target.reads == [{0: 2}]
    joins = own.submit(long)
    while not joins.rounds:
        before = len(runs.rounds)
        own.step()
        assert len(runs.rounds) == before + 1 or runs.finished
    assert target.reads[1:] == [{1: 3}, {1: 3}, {1: 3}, {1: 2}]
    assert run(own, runs, joins) == [alone(runs.request, policy=None), alone(long, policy=None)]


def test_a_prompt_that_nobody_waits_for_is_read_at_once():
    target = Noted()
    own = engine(None, target, prompt_tokens=3)
    own.submit(request(3, prompt=[1, 2, 3] * 4))
    own.step()
    assert target.reads == [{0: 11}]


@pytest.mark.parametrize("policy", [None, Talon(budget=4, top_k=2)])
def test_the_next_turn_of_a_conversation_is_read_from_where_the_last_one_ended(policy):
    target = Noted()
    own = engine(policy, target)
    first = own.submit(request(5))
    run(own, first)
    text = [*first.request.ids.tolist(), *first.token_ids, 3, 1]
    second = own.submit(request(5, prompt=text))
    target.reads.clear()
    assert run(own, second) == [alone(second.request, policy=policy)]
    assert target.reads == [{0: 2}]  # of ten tokens: the last answer's last, and the new one before the root


@pytest.mark.parametrize("policy", [None, Talon(budget=4, top_k=2)])
def test_conversations_in_turn_that_begin_alike_keep_their_texts(policy):
    target = Noted()
    own = engine(policy, target)
    template = [2, 1, 0, 3]
    texts = [[*template, number, 1, 2] for number in range(3)]
    for turn in range(3):
        for number, text in enumerate(texts):
            target.reads.clear()
            one = own.submit(request(5, prompt=text))
            assert run(own, one) == [alone(one.request, policy=policy)]
            first = 6 if number == 0 else 2  # of the template nothing is read again
            assert [sum(read.values()) for read in target.reads] == [first if turn == 0 else 2]
            text += [*one.token_ids, 3, 1]
    assert target._prefixes.keys() == {0, 1, 2}


def test_prompts_without_a_common_beginning_take_no_slots_without_end():
    own = engine(None, target=TableTarget(np.zeros((40, 40))))
    for token in range(40):
        run(own, own.submit(request(2, prompt=[token, token])))
    assert len(own.parts.target.occupied) == FEWEST_SLOTS
    together = [own.submit(request(2, prompt=[token, token])) for token in range(9)]
    run(own, *together)
    for token in range(9, 40):
        run(own, own.submit(request(2, prompt=[token, token])))
    assert len(own.parts.target.occupied) == 9  # so many ran at a time


def test_a_text_that_runs_is_shared_and_stays_as_it_is():
    target = Noted()
    own = engine(None, target)
    first = own.submit(request(6, prompt=[2, 1, 0, 3, 1]))
    own.step()
    target.reads.clear()
    second = own.submit(request(6, prompt=[2, 1, 0, 3, 2, 2]))
    assert run(own, first, second) == [alone(first.request, policy=None), alone(second.request, policy=None)]
    assert target.reads == [{1: 1}]


def test_without_keep_everything_is_read_again():
    target = Noted()
    own = engine(None, target, keep=False)
    run(own, own.submit(request(3)))
    run(own, own.submit(request(3)))
    assert target.reads == [{0: 2}, {0: 2}]


def test_what_does_not_fit_waits_and_what_never_fits_is_refused():
    own = engine(None, rows=20)
    first, second = own.submit(request(6)), own.submit(request(6))  # 10 rows each, two slots of 10
    third = own.submit(request(6))
    own.step()
    assert [one.has_begun for one in (first, second, third)] == [True, True, False]
    run(own, first, second, third)
    with pytest.raises(ValueError, match="3 tokens, 40 new ones are asked for, and a tree may have 1 node: 24 rows"):
        own.submit(request(40))


class Rows(TableTarget):
    """Knows the most rows that there were: those of the texts, and of the trees behind them."""

    def __init__(self):
        super().__init__(TABLE)
        self.most = 0

    def verify(self, trees, greedy=()):
        texts = {slot: len(text) for slot, text in self._prefixes.items()}
        self.most = max(self.most, self.rows({slot: rows + len(trees.get(slot, ())) for slot, rows in texts.items()}))
        return super().verify(trees, greedy)


def test_what_a_tree_may_take_is_reserved_where_rows_are_bounded():
    wide = Talon(budget=1000, top_k=4, mu=1e-9)
    with pytest.raises(ValueError, match="and a tree may have 1000 nodes: 711 rows of keys and values more than there"):
        engine(wide, rows=300).submit(request(8))
    target = Rows()
    own = engine(wide, target, rows=2 * 1011)
    run(own, *[own.submit(request(8)) for _ in range(3)])
    assert 2 * 800 < target.most <= 2 * 1011
    assert engine(wide).submit(request(8))  # without a bound its cache grows where such a tree comes


def test_without_a_bound_rows_are_those_that_memory_would_hold():
    class Small(TableTarget):
        most_rows = 20

    target = Small(TABLE)
    own = engine(None, target)
    first, second, third = (own.submit(request(6)) for _ in range(3))  # 10 rows each, as slots of one length
    own.step()
    assert [one.has_begun for one in (first, second, third)] == [True, True, False]
    assert run(own, first, second, third) == [alone(one.request) for one in (first, second, third)]
    sentence = "1 node: 24 rows of keys and values more than the memory here would hold at best; ask for fewer"
    with pytest.raises(ValueError, match=sentence):
        own.submit(request(40))
    assert engine(None, target, rows=44).submit(request(40))  # whoever says more is believed


def test_texts_are_kept_as_without_a_bound_where_memory_would_hold_more():
    slots = Slots(memory=1000)
    for token in range(8):
        seat, _ = slots.take(np.array([token, 9]), 10, {})
        slots.keep(seat.slot, np.array([token, 9]))
    assert len(slots.kept) == FEWEST_SLOTS


class Keeps(TableDrafter):
    """Has a cache of its own, which takes a third of the target's."""

    def rows(self, rooms):
        return -(-sum(rooms.values()) // 3)


@pytest.mark.parametrize("schedule", [None, Cached()])
def test_what_the_drafter_keeps_is_counted_beside_the_targets_rows(schedule):
    how = {"policy": Talon(budget=4, top_k=2), "drafter": Keeps(LAWS), "schedule": schedule}
    sentence = "4 nodes: 1 rows of keys and values more than there are, with the 5 that the drafter's cache counts for;"
    with pytest.raises(ValueError, match=sentence):
        engine(**how, rows=17).submit(request(6))  # 13 of the target's, 5 of the drafter's
    own = engine(**how, rows=35)  # two would be 26 and 9
    first, second = own.submit(request(6)), own.submit(request(6))
    own.step()
    assert [one.has_begun for one in (first, second)] == [True, True]
    own = engine(**how, rows=34)
    first, second = own.submit(request(6)), own.submit(request(6))
    own.step()
    assert [one.has_begun for one in (first, second)] == [True, False]
    assert run(own, first, second) == [alone(one.request) for one in (first, second)]


@pytest.mark.parametrize("given", [-1, 1.5, None])
def test_a_drafter_that_counts_no_rows_is_named(given):
    class Odd(TableDrafter):
        def rows(self, rooms):
            return given

    with pytest.raises(PluginError, match=r"Odd.* from rows; it must be a whole number of at least 0"):
        engine(drafter=Odd(LAWS), rows=40).submit(request(6))
    assert engine(drafter=Odd(LAWS)).submit(request(6))  # nobody asks without a bound


def test_what_is_drafted_in_the_targets_own_cache_is_reserved():
    class OverTheTarget(TableDrafter):
        drafts_in_cache = True

    policy = Eagle2(budget=5, depth=2, top_k=3)
    assert policy.draft_budget == 12
    for drafter, room in ((TableDrafter(LAWS), 9 + 5), (OverTheTarget(LAWS), 9 + 12)):
        assert engine(policy, drafter=drafter, rows=room).submit(request(6))
        with pytest.raises(ValueError, match="1 rows of keys and values more"):
            engine(policy, drafter=drafter, rows=room - 1).submit(request(6))


def test_a_budget_that_grows_while_a_text_is_decoded_ends_the_text():
    @attrs.frozen
    class Grows(Talon):
        name = "grows"
        rounds: list[int] = attrs.field(factory=list, init=False, eq=False)

        @property
        def draft_budget(self):
            return 4 + len(self.rounds)

        def observe(self, round_):
            self.rounds.append(len(round_.tree))

    own = engine(Grows(budget=4, top_k=2))
    sequence = own.submit(request(8))
    run(own, sequence)
    assert len(sequence.rounds) == 1
    assert "a draft_budget of 5; when its sequence began they were 4 and 4" in str(sequence.error)


@pytest.mark.parametrize("which", ["budget", "draft_budget"])
def test_what_begin_returns_takes_no_more_than_was_reserved(which):
    @attrs.frozen
    class Grows(Talon):
        drafted: int = 5

        @property
        def draft_budget(self):
            return self.drafted

        def begin(self, sequence):
            return attrs.evolve(self, **{which.replace("draft_budget", "drafted"): 6})

    own = engine(Grows(budget=4))
    broken = own.submit(request())
    run(own, broken)
    assert re.search(rf"returned a policy with a {which} of 6 nodes from begin; its own is [45]", str(broken.error))


def test_a_long_text_waits_until_short_ones_have_left_enough():
    own = engine(None, rows=24, keep=False)
    short = [own.submit(request(2)) for _ in range(3)]  # 6 rows each
    long = own.submit(request(16))  # 20 rows: alone
    own.step()
    assert [one.has_begun for one in (*short, long)] == [True, True, True, False]
    run(own, *short, long)
    assert long.token_ids == alone(long.request, policy=None)


@attrs.frozen
class NoThreesDrafted(TreePolicy):
    """Fails where a tree's root is token 3."""

    name = "no-threes-drafted"
    budget: int = 3

    def grow(self, tree, candidates, choices):
        if tree.tokens[0] == 3:
            raise RuntimeError("no threes")
        return Growth(candidates.best(1))


@attrs.frozen
class NoThrees(AcceptanceRule):
    """As sample-and-match, and fails where a tree's root is token 3."""

    name = "no-threes"
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        if tree.tokens[0] == 3:
            raise RuntimeError("no threes")
        return Match().walk(tree, laws, choices)


class FailsForOne(TableDrafter):
    """Offers nonsense after token 3."""

    def offer(self, tree, frontier, width):
        found = super().offer(tree, frontier, width)
        return attrs.evolve(found, frontier=found.frontier + 1) if tree.tokens[0] == 3 else found


class Asks(TableDrafter, Inquirer):
    """Adds nodes to each tree."""

    most_added = 2

    def inquire(self, slot, tree, deepest):
        tokens, parents = np.arange(self.most_added), np.zeros(self.most_added, dtype=np.int64)
        return Inquiry(tokens, parents, len(tree) + tokens)


FIVE = np.random.default_rng(2).normal(size=(5,) * 3)
"""Texts of 0, 1 and 2 stay among them; after 4 comes 3, again and again."""
FIVE[:, :3, 3:], FIVE[:, 3:, 3] = -np.inf, 99.0
LAWS_OF_FIVE = np.random.default_rng(3).dirichlet(np.ones(5), size=7)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"policy": NoThreesDrafted()}, r"tree policy 'no-threes-drafted' .* raised RuntimeError in grow: no threes"),
        ({"rule": NoThrees()}, r"rule 'no-threes' .* raised RuntimeError in walk: no threes"),
        (
            {"drafter": FailsForOne(LAWS_OF_FIVE)},
            r"FailsForOne.* returned candidates for other nodes than the frontier",
        ),
    ],
)
def test_what_fails_in_the_middle_ends_its_own_sequence_and_the_others_come_out_right(parts, complaint):
    """The failing one has a round that goes well, and its neighbours have many more when it is gone."""
    own = engine(**{"target": TableTarget(FIVE), "drafter": TableDrafter(LAWS_OF_FIVE), "allocator": None, **parts})
    sampled = {"sampling": Sampling(do_sample=True), "seed": 4}
    fine = [own.submit(request(30, prompt=[0, 1])), own.submit(request(24, prompt=[2], **sampled))]
    broken = own.submit(request(30, prompt=[1, 4]))
    while not broken.finished:
        own.step()
    assert isinstance(broken.error, PluginError)
    assert re.search(complaint, str(broken.error))
    assert len(broken.rounds) == 1
    assert {*broken.token_ids} == {3}
    assert [len(one.rounds) for one in fine] == [2, 2]  # that of the step in which it failed is not lost
    assert not any(one.finished for one in fine)
    after = own.submit(request(8, prompt=[2, 2]))  # the slot is free again
    run(own, *fine, after)
    for one in (*fine, after):
        assert one.error is None
        assert len(one.rounds) > 4
        assert one.token_ids == alone(one.request, target=TableTarget(FIVE), policy=None)


@pytest.mark.parametrize("inquired", [0, 2])
def test_a_round_tells_of_all_that_shared_its_pass_though_a_neighbour_failed_after_it(monkeypatch, inquired):
    told = []
    monkeypatch.setattr(MeasuredCosts, "went", lambda _, *given: told.append(given))
    drafter = Asks(LAWS_OF_FIVE) if inquired else TableDrafter(LAWS_OF_FIVE)
    own = engine(Chain(length=2), TableTarget(FIVE), drafter, NoThrees(), allocator=None)
    fine, broken = own.submit(request(9, prompt=[0, 1])), own.submit(request(9, prompt=[1, 3]))
    (round_,) = own.step().values()
    assert broken.finished
    assert (round_.sequences, round_.nodes, round_.inquired) == (2, 2 * (3 + inquired), inquired)
    assert not told  # what a pass of two takes beside its parts is no round's of one
    (round_,) = own.step().values()
    assert (round_.sequences, round_.nodes) == (1, 3 + inquired)
    assert len(told) == 1
    assert [len(one) for one in (fine.rounds, broken.rounds)] == [2, 0]


class FailsInTheMiddle(TableDrafter):
    """Fails in its third commit."""

    def commit(self, committed):
        COMMITS.append(committed)
        if len(COMMITS) == 3:
            raise RuntimeError("in the middle")


COMMITS = []


def test_a_drafter_that_fails_ends_those_that_it_was_told_of():
    COMMITS.clear()
    own = engine(Chain(length=1), drafter=FailsInTheMiddle(LAWS))
    sequences = [own.submit(request(20)), own.submit(request(20))]
    run(own, *sequences)
    assert all("in the middle" in str(one.error) for one in sequences)
    later = own.submit(request(5))
    assert run(own, later) == [alone(later.request)]


def test_ctrl_c_in_a_step_ends_what_runs_and_the_engine_goes_on():
    class Interrupted(TableTarget):
        def verify(self, trees, greedy=()):
            if self.presses:
                self.presses -= 1
                raise KeyboardInterrupt
            return super().verify(trees, greedy)

    target = Interrupted(TABLE)
    target.presses = 1
    own = engine(target=target)
    stopped = own.submit(request())
    with pytest.raises(KeyboardInterrupt):
        own.step()
    assert stopped.finished
    assert stopped.finish_reason is None
    later = own.submit(request())
    assert run(own, later) == [alone(later.request)]


class Pressed(TableTarget):
    """Ctrl-C comes in so many passes, and whenever so many slots are closed; no slot is opened that is open."""

    def __init__(self, passes, closings):
        super().__init__(TABLE)
        self.passes, self.closings = passes, closings
        self.held = set()

    def open(self, slot, room):
        assert slot not in self.held
        super().open(slot, room)
        self.held.add(slot)

    def close(self, slot):
        if self.closings:
            self.closings -= 1
            raise KeyboardInterrupt
        super().close(slot)
        self.held.remove(slot)

    def verify(self, trees, greedy=()):
        if self.passes:
            self.passes -= 1
            raise KeyboardInterrupt
        return super().verify(trees, greedy)


@pytest.mark.parametrize("closings", [0, 1, 2, 3])
def test_ctrl_c_while_slots_are_closed_leaves_no_sequence_and_no_slot_is_taken_before_it_is_closed(closings):
    target = Pressed(1, closings)
    own, other = engine(target=target), engine(target=target)
    stopped = [own.submit(request()) for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        own.step()
    assert [one.finished for one in stopped] == [True] * 3
    assert (len(target.held) == 0) == (closings == 0)
    beside = other.submit(request())
    other.step()  # in a slot that nobody has
    later = [own.submit(request()) for _ in range(3)]
    while target.closings:
        with pytest.raises(KeyboardInterrupt):
            own.step()
    assert run(own, *later) == [alone(later[0].request)] * 3
    assert run(other, beside) == [alone(beside.request)]
    assert [len(one.token_ids) for one in stopped] == [0] * 3
    for one in (own, other):
        one.forget()
    assert not target.held


def test_ctrl_c_while_texts_are_given_up_leaves_no_open_slot_to_be_opened_again():
    target = Pressed(0, 0)
    own = engine(target=target)
    run(own, own.submit(request()))
    target.closings = 1
    with pytest.raises(KeyboardInterrupt):
        own.forget()
    later = own.submit(request(prompt=(3, 3)))
    assert run(own, later) == [alone(later.request)]


def test_bad_input_is_refused_in_words():
    own = engine()
    with pytest.raises(ValueError, match="slots is 0; it must be a whole number and at least 1"):
        engine(slots=0)
    with pytest.raises(ValueError, match="prompt_tokens is 'many'; it must be a whole number and at least 1"):
        engine(prompt_tokens="many")
    with pytest.raises(ValueError, match="keep is 1; it must be True or False"):
        engine(keep=1)
    twice = request()
    sequence = own.submit(twice)
    with pytest.raises(ValueError, match="this request was submitted already, and is not over"):
        own.submit(twice)
    with pytest.raises(ValueError, match="this sequence is none of this engine's"):
        own.cancel(engine().submit(request()))
    run(own, sequence)
    with pytest.raises(ValueError, match=r"this sequence is over \(length\); only one that is not can be cancelled"):
        own.cancel(sequence)
    again = own.submit(twice)  # it is over
    assert run(own, again) == [alone(twice)]
    with pytest.raises(ValueError, match="the prompt is empty"):
        own.submit(request(prompt=()))
    with pytest.raises(ValueError, match=r"sampling is 0\.5; it must be an object of class Sampling"):
        own.submit(request(sampling=0.5))
    with pytest.raises(ValueError, match="choices is 7; it must be an object of class Choices"):
        own.submit(request(), 7)
    for method in (own.cancel, own.enter):
        with pytest.raises(ValueError, match="the sequence is None; it must be an object of class Sequence"):
            method(None)
    with pytest.raises(ValueError, match="the allocator is 'even'; it must be an object of class Allocator"):
        own.allocator = "even"


@pytest.fixture
def switching():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class AskedWhetherCancelled(Sequence):
    """Lets another thread do something at the moment at which the engine asks whether it was cancelled."""

    @property
    def cancelled(self):
        if self.meanwhile is not None:
            thread, self.meanwhile = threading.Thread(target=self.meanwhile), None
            self.threads.append(thread)
            thread.start()
            thread.join(0.2)  # it may have to wait
        return False

    @cancelled.setter
    def cancelled(self, cancelled):
        pass


def test_what_another_thread_hands_in_while_the_engine_looks_at_who_waits_is_not_lost():
    own = engine(slots=1)
    running = own.submit(request())
    own.step()
    waiting = [own.submit(request()) for _ in range(2)]
    later, threads = [], []
    for one in waiting:
        one.__class__, one.threads = AskedWhetherCancelled, threads
        one.meanwhile = lambda: later.append(own.submit(request()))
    while not all(one.finished for one in (running, *waiting, *later)):
        own.step()
    for thread in threads:
        thread.join(60)
    assert len(later) == 2
    assert run(own, *later) == [alone(running.request)] * 2


@pytest.mark.usefixtures("switching")
def test_what_several_threads_hand_in_beside_steps_is_neither_lost_nor_in_their_way():
    own = engine(slots=1)
    sequences = [own.prepared(request()) for _ in range(600)]
    failed = []

    def hand_in(some):
        try:
            for one in some:
                own.enter(one)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=hand_in, args=(sequences[part::3],)) for part in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        own.step()
    assert not failed
    last = [sequences[-1]]
    for one in sequences[:-1]:
        if not one.finished:
            own.cancel(one)  # which would say that it is none of this engine's
    assert run(own, *last) == [alone(last[0].request)]


@pytest.mark.usefixtures("switching")
def test_threads_that_ask_for_a_pass_at_the_same_moment_lose_nothing():
    own = engine()
    texts, failed, busy = {}, [], []

    def decode(thread):
        try:
            for number in range(20):
                one = Generation(own, request(6, prompt=(0, 1, thread)), made=None)
                while not one.finished:
                    try:
                        next(one, None)
                    except BusyError:
                        busy.append(thread)
                texts[thread, number] = one.token_ids
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=decode, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert busy
    expected = [alone(request(6, prompt=(0, 1, thread))) for thread in range(3)]
    assert texts == {(thread, number): expected[thread] for thread in range(3) for number in range(20)}


class Entered(RepeatableSession):
    """Notes whether it is entered anew, and lets something happen then."""

    def __init__(self, noted, meanwhile, how="anew"):
        self.noted, self.meanwhile, self.how = noted, meanwhile, how

    def __enter__(self):
        self.noted.append(self.how)
        self.meanwhile()

    def __exit__(self, *_):
        pass

    def again(self):
        return Entered(self.noted, self.meanwhile, "again")


def test_what_another_thread_hands_in_while_a_session_is_entered_begins_in_the_next_one_which_looks_at_the_model():
    class Watched(TableTarget):
        noted: ClassVar[list] = []

        def session(self):
            return Entered(self.noted, hand_in)

    def hand_in():
        if target.noted == ["anew", "again"]:
            thread = threading.Thread(target=lambda: later.append(own.submit(request(prompt=(2, 2)))))
            thread.start()
            thread.join(60)

    target, later = Watched(TABLE), []
    own = engine(None, target)
    own.submit(request(9))
    own.step()
    own.step()
    assert not later[0].has_begun
    own.step()
    assert later[0].has_begun
    own.step()
    assert target.noted == ["anew", "again", "anew", "again"]


def test_a_sequence_that_is_over_keeps_its_text_and_no_policy_nor_buffer():
    @attrs.frozen
    class Begun(Talon):
        def begin(self, sequence):
            return attrs.evolve(self)

    own = engine(Begun(budget=3))
    ways = [own.submit(request(length)) for length in (6, 12, 12, 40)]
    own.step()
    held = [weakref.ref(part) for one in ways for part in (one.policy, one.acceptor, one._committed, one._warping)]
    assert all(part() is not None for part in held)
    own.cancel(ways[1])
    run(own, ways[0], ways[2])
    own.parts.target.verify = None  # which ends the last one
    own.step()
    assert [one.finished for one in ways] == [True] * 4
    assert ways[3].error is not None
    ways[3].error = None  # its traceback knows who was asked
    gc.collect()
    assert [part() for part in held] == [None] * len(held)
    result = ways[0].result(None, True)
    assert (result.token_ids, result.finish_reason) == (alone(ways[0].request), "length")


def test_what_is_cancelled_while_it_waits_never_begins():
    own = engine(slots=1)
    first, second = own.submit(request()), own.submit(request())
    own.step()
    own.cancel(second)
    run(own, first)
    assert own.step() == {}
    assert (second.finished, second.has_begun) == (True, False)


def test_what_is_cancelled_at_the_moment_in_which_it_is_let_in_is_found():
    own = engine(slots=1)
    sequence = own.submit(request())

    class Between(deque):
        def remove(self, one):
            super().remove(one)
            own.cancel(one)  # as another thread may, just then

    own._waiting = Between(own._waiting)
    own._drop_cancelled = lambda: None  # which would make another deque of it
    own.step()
    assert sequence.cancelled


def test_a_request_whose_sequence_was_ended_early_may_be_submitted_again_at_once():
    own = engine()
    for steps in (0, 1):
        again = own.submit(request())
        for _ in range(steps):
            own.step()
        own.cancel(again)
        later = own.submit(again.request)
        assert run(own, later) == [alone(later.request)]


def test_a_batch_that_cannot_go_on_leaves_nothing_in_the_engine():
    own, twice = engine(target=Noted()), request()
    batch = Batch(own, [twice, twice], 2, made=lambda one: one.result(None, False))
    with pytest.raises(ValueError, match="this request was submitted already, and is not over"):
        next(batch)
    assert [one.finished for one in batch.sequences] == [True, True]
    own.parts.target.verified.clear()
    later = own.submit(twice)
    assert run(own, later) == [alone(twice)]
    assert len(later.rounds) == len(own.parts.target.verified)  # nobody else had a round


def test_batches_that_are_stepped_in_turn_count_their_own_passes():
    own = engine(None)
    batches = [Batch(own, [request(length) for length in of], 2, made=None) for of in ([5, 3], [7])]
    rounds = [[], []]
    while not all(batch.finished for batch in batches):
        for batch, found in zip(batches, rounds, strict=True):
            if not batch.finished:
                found.append(next(batch))
    assert [batch.target_passes for batch in batches] == [len(found) for found in rounds] == [5, 7]


@attrs.frozen
class Noting(Talon):
    """Notes what it is told, of the text in itself and of the machine where all can see it."""

    told: object = None
    serving: list = attrs.field(eq=False, factory=list)
    rounds: list = attrs.field(init=False, eq=False, factory=list)

    def begin(self, sequence):
        sequence.machine.setdefault("begun", []).append(sequence)
        self.serving.append(attrs.evolve(self, told=sequence))
        return self.serving[-1]

    def observe(self, round_):
        self.rounds.append(round_)
        self.told.machine["rounds"] = self.told.machine.get("rounds", 0) + 1


def test_each_sequence_has_a_policy_of_its_own_and_the_machine_is_for_all():
    policy = Noting(budget=3)
    own = engine(policy)
    sampled = Sampling(do_sample=True, temperature=0.7)
    first, second = own.submit(request(3)), own.submit(request(5, prompt=[1], sampling=sampled, seed=1))
    run(own, first, second)
    third = own.submit(request(2))
    run(own, third)
    assert policy.rounds == []
    told = [one.told for one in policy.serving]
    assert [(one.prompt_length, one.max_new_tokens, one.temperature, one.greedy) for one in told] == [
        (3, 3, 0.0, True),
        (1, 5, 0.7, False),
        (3, 2, 0.0, True),
    ]
    assert [len(one.rounds) for one in policy.serving] == [len(one.rounds) for one in (first, second, third)]
    machine = told[0].machine
    assert (machine["begun"], machine["rounds"]) == (told, sum(len(one.rounds) for one in (first, second, third)))
    assert told[0].costs.verify(nodes=3, context=3) is not None
    own.forget()
    assert machine == {}


def test_what_begin_returns_must_be_a_policy():
    @attrs.frozen
    class ReturnsNothing(Talon):
        def begin(self, sequence):
            pass

    own = engine(ReturnsNothing(budget=3))
    broken = own.submit(request())
    run(own, broken)
    assert re.search(r"returned None from begin; it must return the policy that serves", str(broken.error))


def test_sampled_texts_do_not_depend_on_their_neighbours():
    sampling = Sampling(do_sample=True)
    own = engine()
    sequences = [own.submit(request(8, sampling=sampling, seed=seed)) for seed in range(4)]
    run(own, *sequences)
    for seed, one in enumerate(sequences):
        other = engine()
        expected = other.submit(request(8, sampling=sampling), SeededChoices(seed))
        assert run(other, expected) == [one.token_ids]


def test_slots_share_the_longest_beginning():
    slots = Slots(most=3)
    text = np.array([1, 2, 3, 4, 5])
    assert slots.take(text, 10, {}) == (Seat(0, 0, 0), [])
    assert slots.take(text[:4], 10, {0: text[:2]}) == (Seat(1, 0, 2), [])
    slots.keep(1, text[:3])
    assert slots.take(np.array([1, 2, 3, 9]), 10, {0: text[:2]}) == (Seat(1, 1, 3), [])
    assert slots.take(np.array([7]), 10, {0: text, 1: text}) == (Seat(2, 2, 0), [])
    assert slots.take(np.array([7]), 10, {0: text, 1: text, 2: text}) is None


def kept(**how):
    """Slots of which the first three hold texts that begin with 1, 2; that of 1 is the oldest."""
    slots = Slots(**how)
    texts = {0: [3, 4, 5], 1: [1, 2, 6], 2: [1, 2, 7, 8]}
    for slot, text in texts.items():
        slots.take(np.array(text), 10, {one: np.array(texts[one]) for one in range(slot)})
    for slot in (1, 2, 0):
        slots.keep(slot, np.array(texts[slot]))
    return slots


@pytest.mark.parametrize(
    ("prompt", "how", "seat", "given_up"),
    [
        ([1, 2, 6, 9], {}, Seat(1, 1, 3), []),  # it goes on
        ([1, 2, 6], {}, Seat(3, 1, 2), []),  # another end: the text stays, and is copied from
        ([1, 2, 7, 6], {}, Seat(3, 2, 3), []),
        ([1, 2, 7, 6], {"most": 3}, Seat(1, 2, 3), [1]),  # the oldest, as no slot is empty
        ([1, 2, 6], {"most": 3}, Seat(2, 1, 2), [2]),  # but not the one that is copied from
        ([1, 2, 6, 9], {"most": 3}, Seat(1, 1, 3), []),
        ([1, 2, 7, 6], {"most_rows": 39}, Seat(1, 2, 3), [1]),
        ([9, 9], {"most_rows": 39}, Seat(1, 1, 0), [1]),
        ([9, 9], {}, Seat(3, 3, 0), []),
    ],
)
def test_a_text_is_gone_on_with_where_the_prompt_contains_it_and_otherwise_copied(prompt, how, seat, given_up):
    assert kept(**how).take(np.array(prompt), 10, {}) == (seat, given_up)


def test_the_text_that_a_prompt_begins_with_is_cut_where_no_other_slot_can_be_had():
    slots = Slots(most=1)
    slots.take(np.array([1, 2, 3]), 10, {})
    slots.keep(0, np.array([1, 2, 3]))
    assert slots.take(np.array([1, 2, 4]), 10, {}) == (Seat(0, 0, 2), [])


def test_the_slot_of_a_text_that_a_longer_one_contains_as_well_is_taken():
    slots = Slots()
    for slot, text in enumerate([[1, 2], [1, 2, 3, 4]]):
        slots.take(np.array([9]), 10, {one: np.array([8]) for one in range(slot)})
        slots.keep(slot, np.array(text))
    assert slots.take(np.array([1, 2, 3, 5]), 10, {}) == (Seat(0, 1, 3), [0])


def test_a_kept_text_is_given_up_where_there_is_no_room_beside_it():
    slots = Slots(most_rows=20)
    text = np.array([1, 2, 3])
    slots.take(text, 10, {})
    slots.take(text, 10, {0: text})
    slots.keep(1, text)
    assert slots.take(np.array([5, 5]), 20, {}) is None  # slot 0 is taken, and two slots of 20 are too many
    slots.keep(0, text)
    assert slots.take(np.array([5, 5]), 20, {}) == (Seat(0, 0, 0), [1, 0])


def test_a_long_sequence_costs_those_beside_it_nothing_where_the_target_counts_so():
    def let_in(**options):
        slots = Slots(most_rows=1000, **options)
        assert slots.missing(1001) == 1
        assert slots.missing(1000) is None
        return [slots.take(np.array([7]), room, {}) is not None for room in (900, *[10] * 12)].count(True)

    assert let_in() == 1  # every slot has as many rows as the longest
    assert let_in(rows_of=lambda rooms: sum(rooms.values())) == 11


def test_what_was_handed_in_before_or_does_not_fit_is_refused():
    own, small = engine(None), engine(None, rows=20)
    done = own.submit(Request(np.array([0]), 3))
    while not done.finished:
        own.step()
    for other in (own, small):
        with pytest.raises(ValueError, match="this sequence was handed in before; prepare another one"):
            other.enter(done)
    assert len(done.token_ids) == 3
    waiting = own.submit(Request(np.array([0]), 3))
    with pytest.raises(ValueError, match="this sequence was handed in before; prepare another one"):
        engine(None).enter(waiting)
    with pytest.raises(ValueError, match="rows of keys and values more than there are"):
        small.enter(own.prepared(Request(np.zeros(60, dtype=np.int64), 3)))
    assert small.submit(Request(np.array([0]), 2)) is not None
    small.step()


@pytest.mark.parametrize("given", ["hi", None, {"ids": [1]}])
def test_what_is_no_request_is_refused(given):
    with pytest.raises(ValueError, match=r"^the request is .*; it must be an object of class Request$"):
        engine(None).submit(given)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (("model", Match()), "the target is 'model'; it must be an object of class Target"),
        ((TableTarget, Match()), "the target is .*; .* of class Target, as TableTarget.. and not TableTarget"),
        ((TableTarget(TABLE), Match), "the rule is .* of class AcceptanceRule, as Match.. and not Match"),
        ((TableTarget(TABLE), None), "the rule is None"),
        ((TableTarget(TABLE), Match(), "talon"), "the policy is 'talon'; .* of class TreePolicy"),
        ((TableTarget(TABLE), Match(), Talon(), TableDrafter), "the drafter is .* of class Drafter"),
    ],
)
def test_parts_that_are_none_are_refused(parts, sentence):
    with pytest.raises(ValueError, match=sentence):
        Engine(*parts)


@pytest.mark.parametrize(
    ("policy", "drafter", "sentence"),
    [
        (None, TableDrafter(LAWS), "no tree policy, so that nothing is drafted; name a policy, or leave the schedule"),
        (Talon(), None, "no drafter, so that nothing is drafted; name a drafter, or leave the schedule out"),
    ],
)
def test_a_schedule_where_nothing_is_drafted_is_refused(policy, drafter, sentence):
    with pytest.raises(ValueError, match=f"^the schedule is Cached.*, and there is {sentence}"):
        Engine(TableTarget(TABLE), Match(), policy, drafter, schedule=Cached())


@pytest.mark.parametrize(
    ("part", "sentence"),
    [("now", r"tells seconds, as time\.perf_counter"), ("worker", "makes a Worker for a drafter")],
)
def test_a_clock_and_a_maker_of_workers_must_be_functions(part, sentence):
    with pytest.raises(ValueError, match=f"^{part} is 3; it must be a function that {sentence}"):
        Engine(TableTarget(TABLE), Match(), **{part: 3})


@pytest.mark.parametrize("only", [[None], 3, "ab", [request()]])
def test_a_step_is_for_sequences(only):
    own = engine()
    sequence = own.submit(request())
    with pytest.raises(ValueError, match=r"^only is .*; it must be a collection of sequences that submit has returned"):
        own.step(only)
    assert run(own, sequence) == [alone(sequence.request)]


@pytest.mark.parametrize("call", ["resume", "read", "verify", "commit", "close"])
def test_a_slot_of_a_table_that_is_not_open_is_refused(call):
    target = TableTarget(np.zeros((3, 3)))
    target.open(1, 8)
    tokens = np.array([0])
    calls = {
        "resume": lambda: target.resume(0, 8, 9, 1),
        "read": lambda: target.read({9: tokens}),
        "verify": lambda: target.verify({9: TokenTree.root(0)}),
        "commit": lambda: target.commit({9: tokens}),
        "close": lambda: target.close(9),
    }
    if call == "commit":
        target.verify({1: TokenTree.root(0)})
        target._trees = {9: TokenTree.root(0)}
    with pytest.raises(ValueError, match="slot 9 is not open; open are: 1"):
        calls[call]()


@attrs.frozen
class SaysIfItLearns(Talon):
    """Notes each time it is asked whether it learns, and for how many trees it chooses."""

    name = "says-if-it-learns"
    says: object = True
    asked: list = attrs.field(factory=list, eq=False)
    trees: list = attrs.field(factory=list, eq=False)

    def learns_nothing(self):
        self.asked.append(self.says)
        if self.says is None:
            raise KeyError("oh")
        return self.says

    def grow_forest(self, forest, candidates):
        self.trees.append(forest.size)
        return super().grow_forest(forest, candidates)


@pytest.mark.parametrize("learns", [False, True])
def test_whether_trees_can_grow_together_is_asked_once_of_each_sequence(learns):
    policy = SaysIfItLearns(budget=4, top_k=2, says=not learns)
    own = engine(policy)
    sequences = [own.submit(request()) for _ in range(TOGETHER + 1)]
    own.step()
    assert len(policy.asked) == TOGETHER + 1
    assert policy.trees == [] if learns else {*policy.trees} == {TOGETHER + 1}
    assert {*map(tuple, run(own, *sequences))} == {tuple(alone(request(), policy=Talon(budget=4, top_k=2)))}
    assert len(policy.asked) == TOGETHER + 1


def test_a_policy_that_fails_to_say_whether_it_learns_ends_its_sequence():
    own = engine(SaysIfItLearns(budget=4, says=None))
    sequence = own.submit(request())
    assert own.step() == {}
    with pytest.raises(
        PluginError, match=r"tree policy 'says-if-it-learns' .* raised KeyError in learns_nothing: 'oh'"
    ):
        raise sequence.error
