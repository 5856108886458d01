"""Preparing in a process beside: it may die or hang at any moment, and nothing of it is left behind."""

import gc
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from itertools import count, pairwise
from random import Random
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch

import talon_core
from talon_core import Engine, Frontier, Proposed, Request, TableTarget, TokenTree
from talon_core.candidates import Candidates
from talon_core.costs import Costs, MeasuredCosts
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.hosting import _Lent
from talon_core.engine.ahead import process
from talon_core.engine.ahead.drafter import AheadDrafter
from talon_core.engine.ahead.host import About
from talon_core.engine.ahead.patience import Patience
from talon_core.engine.ahead.place import usable_cores
from talon_core.engine.ahead.process import ProcessWorker, _Remote
from talon_core.engine.ahead.shelf import Shelf
from talon_core.errors import LostError, PluginError
from talon_core.policy import Growth
from talon_core.retrieval import IndexedVocabulary, Piece, write_index
from talon_core.sampling import temperature_sampling
from talon_drafters import Datastore, Lookahead
from talon_strategies import Block, Cached, Chain, Match, Pearl, SampledChain, Talon
from talon_tests.broken_off import WAYS, break_off, ctrl_c_after, left
from talon_tests.forked_python import Forked
from talon_tests.strict_texts import StrictNgram
from talon_tests.tiny_gguf import write_gguf
from talon_tests.tiny_models import of_words

VOCAB = 4
NGRAM = StrictNgram(min_match=1, least=0.0)


class AsksFromTexts(Lookahead):
    reads_texts = True


class Patient(TableTarget):
    """A target that takes as long as all that is prepared, however busy the machine is."""

    def __init__(self):
        super().__init__(np.random.default_rng(0).normal(size=(VOCAB,) * 3) * 2)
        self.wait = lambda: None

    def verify(self, *args):
        self.wait()
        return super().verify(*args)


def all_prepared(worker):
    """Waits until the process has answered, or is gone."""
    process = worker._process
    if process is not None and worker._stopping:
        assert process.connection.poll(60)


def request(length=30, temperature=0.0, seed=0):
    return Request(np.array([1, 2, 3, 1, 2]), length, temperature_sampling(temperature), seed=seed)


def two_cores():
    """Skip what needs a process with a core of its own, where there is none."""
    if usable_cores() < 2:
        pytest.skip("a process beside needs a core of its own, and there is one core")


def beginning(spec, policy=Chain(length=2), rule=Match(), budget=1):  # noqa: B008 - frozen
    """A decoder whose drafter is in a process on a core of its own."""
    two_cores()
    return Decoder(Patient(), rule, policy, spec, schedule=Cached(budget=budget), draft_on="cpu:1")


def decoder(spec=NGRAM):
    """One whose target waits until all is prepared."""
    made = beginning(spec, budget=12)
    made.target.wait = partial(all_prepared, worker(made))
    return made


def engine(decoder, policy, rule=Match(), schedule=Cached(budget=12), **more):  # noqa: B008 - frozen
    """Another one that uses the same process: to start one takes seconds."""
    patient(decoder)
    decoder.engine.forget()
    own = Patient()
    own.wait = decoder.target.wait
    how = {"schedule": schedule, "worker": lambda _: worker(decoder), "keep": False}
    return Engine(own, rule, policy, decoder.drafter, **how, **more)


def finished(engine, given):
    sequence = engine.submit(given)
    while not sequence.finished:
        engine.step()
    assert sequence.error is None
    return sequence


def generation(decoder, given):
    made = decoder.run(given)
    made.finish()
    return made


def worker(decoder):
    return decoder.engine.parts.drafter._worker


def starting_with(popen):
    """The module `subprocess`, where another class starts processes."""
    return SimpleNamespace(**{**vars(subprocess), "Popen": popen})


@pytest.fixture(scope="module", autouse=True)
def forks(fork_server):
    """Processes are forks of one that has imported everything, which takes seconds."""
    started, address = [], fork_server("all") if hasattr(os, "fork") else None

    def start(*given, **how):
        made = Forked(address, *given, **how)
        started.append(made.pid)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "subprocess", starting_with(start) if address is not None else subprocess)
        yield started


@pytest.fixture
def started_by_itself(monkeypatch):
    """A process as users have it."""
    monkeypatch.setattr(process, "subprocess", subprocess)


@pytest.fixture(scope="module")
def plain():
    made = Decoder(Patient(), Match(), None)
    return {temperature: generation(made, request(temperature=temperature)).token_ids for temperature in (0.0, 1.0)}


@pytest.fixture(scope="module")
def beside():
    """A decoder that several tests share: to start a process takes seconds."""
    return decoder()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_the_same_and_rounds_begin_with_what_was_prepared(beside, plain, temperature):
    made = generation(beside, request(temperature=temperature))
    assert made.token_ids == plain[temperature]
    assert any(one.hit for one in made.rounds)
    assert any(one.prepare_seconds > 0 for one in made.rounds)


def test_its_spans_are_told_by_the_engines_clock(beside):
    clock = count(10**12)  # far behind the clock of any machine
    own = engine(beside, Chain(length=2), now=lambda: float(next(clock)))
    spans = [span for round_ in finished(own, request()).rounds for span in round_.spans]
    assert {"prepare", "wait"} <= {span.part for span in spans}
    end = next(clock)
    assert all(10**12 <= span.start <= span.end < end for span in spans)
    prepared = [span.work for span in spans if span.part == "prepare"]
    assert {"commit", "layer"} <= {*prepared} <= {"commit", "layer", "look"}
    assert {span.layer for span in spans if span.part == "prepare" and span.work == "layer"} >= {0, 1}


def test_policies_that_draw_get_laws_from_there(beside):
    made = engine(beside, SampledChain(length=2), Block(), Pearl())
    rounds = finished(made, request(temperature=1.0)).rounds
    assert any(one.tree.drawn for one in rounds if one.hit)


def patient(decoder):
    """Wait until a process is there again."""
    for _ in range(1200):
        if not worker(decoder).lost:
            return
        time.sleep(0.1)
    raise AssertionError("no process has come back")


def test_a_process_that_is_killed_costs_speed_alone_and_another_one_takes_its_place(beside, plain, caplog):
    patient(beside)
    drafter = beside.engine.parts.drafter
    drafter._said.clear()
    made, running = beside.run(request()), worker(beside).number
    next(made)
    next(made)
    os.kill(running, signal.SIGKILL)
    made.finish()
    assert made.token_ids == plain[0.0]
    assert len(made.rounds[-2].tree) == 1
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == 1
    assert "its process has ended" in said[0]
    assert generation(beside, request()).token_ids == plain[0.0]
    patient(beside)
    again = generation(beside, request())
    assert again.token_ids == plain[0.0]
    assert any(one.hit for one in again.rounds)
    assert worker(beside).number not in (None, running)


def test_a_process_that_hangs_is_given_up(beside, plain):
    patient(beside)
    own, kept = worker(beside), worker(beside)._patience
    made, running = beside.run(request()), own.number
    next(made)
    wait, beside.target.wait = beside.target.wait, lambda: None
    own._patience = Patience(first=0.05, least=0.05)
    try:
        os.kill(running, signal.SIGSTOP)
        made.finish()
    finally:
        own._patience, beside.target.wait = kept, wait
    assert made.token_ids == plain[0.0]
    assert not alive(running)


def kill(decoder):
    """End its process, and wait until it has ended."""
    running = worker(decoder)._process.popen
    running.kill()
    running.wait()


def test_texts_that_are_kept_are_read_again_where_another_process_drafts(beside, plain):
    """The drafter there refuses to go on from a text that it was never told of."""
    patient(beside)
    assert generation(beside, request()).token_ids == plain[0.0]
    kill(beside)
    assert worker(beside).lost  # which is found out without any call of the drafter's
    patient(beside)
    for _ in range(2):
        again = generation(beside, request())
        assert again.token_ids == plain[0.0]
        assert any(one.hit for one in again.rounds)


def test_one_answer_has_one_law_whatever_becomes_of_the_process():
    class Gone:
        calls = 0
        trying = nullcontext

        def ask(self, *given):
            self.calls += 1
            if self.calls > 1:
                raise LostError("its process has ended")
            return np.array([0.5, 0.5, 0.0, 0.0])

    offered = Candidates.unknown(np.array([0, 1]))
    gone = Gone()
    law = _Remote(gone, About(None, False, False, True, {}), NGRAM, VOCAB)._law(0, offered, {})
    assert law(0).tolist() == law(0).tolist() == [0.5, 0.5, 0.0, 0.0]
    with pytest.raises(ValueError, match="there is no law"):
        law(1)


def test_the_first_call_of_each_kind_has_time_to_compile(beside):
    patient(beside)
    generation(beside, request())
    assert {"open", ("tree", "commit"), "prepare"} <= {*worker(beside)._patience.longest}


class Counted:
    """A connection that counts messages."""

    def __init__(self, connection):
        self.connection, self.sent, self.received = connection, 0, 0

    def send_bytes(self, data):
        self.sent += 1
        self.connection.send_bytes(data)

    def recv_bytes(self):
        self.received += 1
        return self.connection.recv_bytes()

    def __getattr__(self, name):
        return getattr(self.connection, name)


def messages(decoder, policy, sequences=1):
    """Of each round of all sequences but the first and the last: whether it was a hit in the first of them, its tree
    there, and the messages there and back."""
    own = engine(decoder, policy, schedule=Cached(budget=6))
    requests = [request(60, 1.0, seed) for seed in range(sequences)]
    process = worker(decoder)._process
    counted = process.connection = Counted(process.connection)
    told = []
    try:
        running = [own.submit(one) for one in requests]
        while not all(one.finished for one in running):
            own.step()
            if not any(one.finished for one in running[1:]):
                told.append((running[0].rounds[-1], counted.sent, counted.received))
    finally:
        process.connection = counted.connection
    steps = [(one, sent - before[1], received - before[2]) for before, (one, sent, received) in pairwise(told[:-1])]
    return [(one.hit, one.tree, messages) for one, *messages in steps]


def test_a_round_takes_one_message_each_way_and_another_one_where_a_tree_has_to_be_drafted(beside):
    steps = messages(beside, Chain(length=4))
    hits, misses = ([(tree, messages) for hit, tree, messages in steps if hit is which] for which in (True, False))
    assert min(len(hits), len(misses)) > 3
    assert all(messages == [1, 1] for _, messages in hits)
    assert all(messages == [2, 2] for _, messages in misses)
    assert max(len(tree) for tree, _ in misses) == 5


@attrs.frozen
class Pricing(Chain):
    """Holds what passes take, and could ask it at each layer."""

    name = "pricing"
    costs: Costs = attrs.field(factory=MeasuredCosts)

    def begin(self, sequence):
        return attrs.evolve(self, costs=sequence.costs)


@pytest.mark.parametrize(("policy", "sequences"), [(Pricing(length=4), 1), (Chain(length=4), 2)])
def test_trees_are_drafted_layer_by_layer_where_somebody_may_ask_what_layers_take(beside, policy, sequences):
    misses = [(len(tree), sent) for hit, tree, (sent, _) in messages(beside, policy, sequences) if hit is False]
    assert misses
    assert all(sent >= nodes for nodes, sent in misses)  # one for each node of a chain but the last, and one to prepare


@attrs.frozen
class Remembers(SampledChain):
    """Remembers what it was asked, and draws chains that are the longer the more that was."""

    name = "remembers"
    kept: list = attrs.field(init=False, eq=False, factory=list)

    def width(self, tree):
        self.kept.append(len(tree))
        return super().width(tree) if len(tree) <= 1 + len(self.kept) % self.length else 0


def shape(round_):
    """What came about in a round, whoever has drafted and how long it took."""
    tree = round_.tree
    drawn = {node: (one.tokens.tolist(), one.replacement) for node, one in tree.drawn.items()}
    nodes = tree.tokens.tolist(), tree.parents.tolist(), tree.path_logp.tolist()
    return nodes, drawn, round_.path.tolist(), round_.tokens.tolist(), round_.hit, round_.draft_passes


POLICIES = [
    (Chain(length=3), Match()),
    (Talon(budget=9, top_k=3, mu=0.01), Match()),
    (SampledChain(length=3), Block()),
    (Remembers(length=4), Block()),
]


@pytest.mark.parametrize(("policy", "rule"), POLICIES)
def test_trees_that_are_drafted_whole_are_those_that_are_drafted_layer_by_layer(beside, monkeypatch, policy, rule):
    """Whatever is drawn: each draw hangs on the numbers that were drawn in all trees before."""
    schedule, seeds = Cached(budget=2), range(4)
    found, expected = [], []
    for rounds in (found, expected):
        for seed in seeds:
            rounds += finished(engine(beside, policy, rule, schedule), request(temperature=1.0, seed=seed)).rounds
        monkeypatch.setattr(worker(beside)._remote, "_alike", False)
    assert len([one for one in found if one.hit is False]) > 8
    assert [shape(one) for one in found] == [shape(one) for one in expected]


@attrs.frozen
class Fails(SampledChain):
    """Fails at the second layer of each tree."""

    name = "fails"

    def grow(self, tree, candidates, choices):
        if len(tree) == 2:
            raise OSError("no disk is left")
        return super().grow(tree, candidates, choices)


def test_a_policy_that_fails_ends_its_sequence_alone_with_its_own_error(beside):
    own, running = engine(beside, Fails(length=3), Block()), worker(beside).number
    sequence = own.submit(request(temperature=1.0))
    while not sequence.finished:
        own.step()
    assert isinstance(sequence.error, PluginError)
    assert "raised OSError in grow: no disk is left" in str(sequence.error)
    assert isinstance(sequence.error.__cause__, OSError)
    assert sequence.error.__cause__.__traceback__ is not None
    assert worker(beside).number == running


@attrs.frozen
class Elsewhere(Chain):
    """Decides otherwise in another process: how long its chains are, and if that is the same, what they hold."""

    name = "elsewhere"
    here: int = 3
    there: int = 3
    home: int = attrs.field(factory=os.getpid)

    @property
    def away(self):
        return os.getpid() != self.home

    def width(self, tree):
        return 2 if len(tree) <= (self.there if self.away else self.here) else 0

    def grow(self, tree, candidates, choices):
        other = self.away and self.here == self.there and candidates.tokens[0, -1] >= 0
        return Growth(np.array([candidates.width - 1 if other else 0]))


@pytest.mark.parametrize(("here", "there"), [(3, 3), (3, 4), (4, 3)])
def test_a_policy_that_decides_otherwise_elsewhere_costs_a_tree_and_no_process(beside, plain, caplog, here, there):
    """The drafter refuses to hear of nodes that are not those of its tree, or to go on with another tree."""
    patient(beside)
    running, remote = worker(beside).number, worker(beside)._remote
    try:
        sequence = finished(engine(beside, Elsewhere(length=4, here=here, there=there)), request())
    finally:
        alike, remote._alike = remote._alike, True
    assert sequence.token_ids == plain[0.0]
    assert worker(beside).number == running
    assert alike == (here > there)  # the drafter is asked for layers that were not drafted there, as always
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == 1 - alike
    assert all("has drafted another tree in the drafter's process than here" in one for one in said)
    assert max(len(one.tree) for one in sequence.rounds if not one.hit) == 1 + here


@attrs.frozen
class FailsHere(Chain):
    """Fails at the third layer of trees of short prompts, and in another process at none."""

    name = "fails-here"
    home: int = attrs.field(factory=os.getpid)
    short: bool = False

    def begin(self, sequence):
        return attrs.evolve(self, short=sequence.prompt_length < 5)

    def grow(self, tree, candidates, choices):
        if self.short and len(tree) == 3 and os.getpid() == self.home:
            raise OSError("no disk is left")
        return super().grow(tree, candidates, choices)


def test_what_was_drafted_for_a_tree_that_failed_is_no_other_trees(beside, plain, caplog):
    own, remote = engine(beside, FailsHere(length=4)), worker(beside)._remote
    going, failing = own.submit(request()), own.submit(attrs.evolve(request(), ids=np.array([1, 2, 3, 1])))
    for _ in range(4):
        own.step(only=[going])
    own.step(only=[failing])
    assert "no disk is left" in str(failing.error)
    while not going.finished:
        own.step()
    assert going.token_ids == plain[0.0]
    assert remote._alike
    assert not caplog.records


class DiesWhileATreeGrows(StrictNgram):
    """Its process is gone at the second layer of a tree."""

    def open(self, target):
        made = super().open(target)
        propose = made.propose

        def proposed(frontiers):
            if len(frontiers[0].tree) == 2:
                os._exit(1)
            return propose(frontiers)

        made.propose = proposed
        return made


def test_a_process_that_dies_while_a_tree_grows_costs_speed_alone(plain, caplog):
    made = beginning(DiesWhileATreeGrows(min_match=1, least=0.0), Chain(length=3))
    result = generation(made, request())
    assert result.token_ids == plain[0.0]
    assert all(len(one.tree) == 1 for one in result.rounds)
    (warning,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "its process has ended" in warning
    worker(made).close()


class FailsToHear(StrictNgram):
    """Cannot be told what was accepted more often than so."""

    def open(self, target):
        made = super().open(target)
        commit, left = made.commit, iter(range(4))

        def committed(told):
            if next(left, None) is None:
                raise MemoryError("no memory is left")
            commit(told)

        made.commit = committed
        return made


def test_a_drafter_that_fails_at_what_was_accepted_costs_speed_alone(plain, caplog):
    made = decoder(FailsToHear(min_match=1, least=0.0))
    result = generation(made, request())
    assert result.token_ids == plain[0.0]
    assert len(result.rounds[-2].tree) == 1
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == 1
    assert "has failed at what was accepted, MemoryError: no memory is left" in said[0]
    worker(made).close()


def raising(answer):
    raise MemoryError("no memory is left")


def another_token(proposed):
    (one,) = proposed.candidates
    wrong = Candidates(one.frontier, np.full_like(one.tokens, 99), one.logp, one.path_logp)
    return attrs.evolve(proposed, candidates=[wrong])


def no_proposal(proposed):
    return 5


def countless(proposed):
    return attrs.evolve(proposed, draft_passes=-1)


def too_many(taken):
    return 10**6


def lawless(proposed):
    return attrs.evolve(proposed, candidates=[attrs.evolve(one, law=raising) for one in proposed.candidates])


def half_a_law(row):
    return np.full(VOCAB, 0.5 / VOCAB)


def with_half_a_law(proposed):
    return attrs.evolve(proposed, candidates=[attrs.evolve(one, law=half_a_law) for one in proposed.candidates])


@attrs.frozen
class GoesWrong(StrictNgram):
    """Something goes wrong in a method; in `propose` where a second tree begins, which nobody asks for beforehand."""

    name = "goes-wrong"
    method: str = "propose"
    how: object = None

    def open(self, target):
        made = super().open(target)
        method, left = getattr(made, self.method), iter(range(1))

        def wrong(*given):
            answer = method(*given)
            if self.method == "propose" and (len(given[0][0].tree) > 1 or next(left, None) == 0):
                return answer
            return self.how(answer)

        setattr(made, self.method, wrong)
        return made


WRONG = [
    ("propose", raising, "failed at propose, MemoryError: no memory is left"),
    ("propose", another_token, "proposed token 99; the target's vocabulary has ids 0 to 3"),
    ("propose", no_proposal, "failed at propose, AttributeError: 'int' object has no attribute"),
    ("propose", countless, "says that it took"),
    ("open", raising, "failed at open, MemoryError: no memory is left"),
    ("resume", too_many, "returned 1000000 from resume"),
    ("read", raising, "failed at read, MemoryError: no memory is left"),
    ("catch_up", raising, "failed at catch_up, MemoryError: no memory is left"),
]
"""Methods, what they do in the place of their work, and what is said of it."""


@pytest.mark.parametrize(("method", "how", "said"), WRONG)
def test_what_goes_wrong_where_a_process_is_asked_costs_speed_alone(plain, caplog, method, how, said):
    made = beginning(GoesWrong(min_match=1, least=0.0, method=method, how=how))
    running = worker(made).number
    made.engine.forget()
    for _ in range(2):
        result = generation(made, request())
        assert result.token_ids == plain[0.0]
    assert len(result.rounds[-2].tree) == 1
    assert not alive(running)
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "drafter 'goes-wrong'" in warnings[0]
    assert said in warnings[0]
    patient(made)
    assert worker(made).number != running
    worker(made).close()


class DraftsWhenItHasRead(StrictNgram):
    """Knows nothing until it has caught up three times, for which nobody asks."""

    def open(self, target):
        made = super().open(target)
        propose, left = made.propose, [True, True, True]

        def proposed(frontiers):
            if left:
                return Proposed([Candidates.unknown(one.nodes) for one in frontiers])
            return propose(frontiers)

        made.propose, made.catch_up = proposed, lambda: bool(left) and left.pop()
        return made


def test_what_a_drafter_has_to_read_first_it_reads_while_nobody_asks(plain):
    made = beginning(DraftsWhenItHasRead(min_match=1, least=0.0))
    result = generation(made, request())
    assert result.token_ids == plain[0.0]
    assert any(len(one.tree) > 1 for one in result.rounds)
    worker(made).close()


@pytest.mark.parametrize(
    ("how", "said"),
    [(lawless, "failed at law, MemoryError: no memory is left"), (with_half_a_law, "gave a law that")],
)
def test_a_law_that_cannot_be_had_from_a_process_costs_speed_alone(caplog, how, said):
    made = beginning(GoesWrong(min_match=1, least=0.0, how=how), SampledChain(length=2), Block())
    assert len(generation(made, request(temperature=1.0)).token_ids) == 30
    (warning,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert said in warning
    worker(made).close()


PARROT = """
import os, pickle, sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[-3]))
for answer in pickle.loads(connection.recv_bytes()):
    os.write(connection.fileno(), answer)
    connection.recv_bytes()
"""


def message(data):
    return struct.pack("!i", len(data)) + data


def parrot(*answers, listens=True):
    """A worker whose process says these bytes, one after the other, whatever it is told."""
    opened = message(pickle.dumps(("done", About(None, False, False, listens, {}))))
    return ProcessWorker([sys.executable, "-c", PARROT], [opened, *answers], NGRAM, VOCAB)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"\xff" * 40, "what cannot be read"),
        (message(b"no pickle"), "what cannot be read"),
        (message(pickle.dumps(5)), "what cannot be read"),
        (message(pickle.dumps(("what", 5))), "what cannot be read"),
        (message(pickle.dumps(("done", 5))), "has failed at"),
        (struct.pack("!i", 1000) + b"half a message", "stands still in the middle of a message"),
    ],
)
def test_bytes_that_are_no_answer_lose_the_process(monkeypatch, answer, said):
    monkeypatch.setattr(process, "STALLED", 0.05)
    asked, prepares = parrot(answer), parrot(answer)
    with pytest.raises(LostError, match=said):
        asked.drafter.propose([Frontier(0, TokenTree.root(1), np.array([0]), 2)])
    prepares.prepare(Cached(), [])
    stopped = prepares.stop()
    assert isinstance(stopped.failure, LostError)
    assert said in str(stopped.failure)
    for one in (asked, prepares):
        assert one.number is None
        assert one.losses == 1


@pytest.mark.parametrize(("listens", "told"), [(False, 4), (True, 0)])
def test_what_the_drafter_was_never_told_of_is_read_again_only_where_it_listens(listens, told):
    own = parrot(message(pickle.dumps(("done", None))), listens=listens)
    drafter = AheadDrafter(Cached(), own, NGRAM, VOCAB)
    assert drafter.resume(0, np.arange(5), room=9, source=1, length=4) == told
    own.close()


def test_a_process_that_reads_no_message_is_given_up(monkeypatch):
    monkeypatch.setattr(process, "STALLED", 0.05)
    own = parrot(b"")
    os.kill(own.number, signal.SIGSTOP)
    monkeypatch.setattr(process, "ENDING", 0.05)
    with pytest.raises(LostError, match="stands still in the middle of a message"):
        own.drafter.open(0, np.arange(10**6), 1)


def test_a_process_that_cannot_be_started_leaves_nothing(started_by_itself):
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        ProcessWorker(["/no/such/program"], None, NGRAM, VOCAB)
    with pytest.raises((LostError, OSError)):
        ProcessWorker([sys.executable, "-c", "pass"], None, NGRAM, VOCAB)
    assert len(os.listdir("/proc/self/fd")) <= files
    assert not [one for one in children() if zombie(one)]


def zombie(number):
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return False


def alive(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def killed_at_random(beside, plain, times, seed, within=0.25):
    """Generations whose process is killed, each within so many seconds; how often it was lost in the middle of one."""
    random, before = Random(seed), worker(beside).losses
    for at in range(times):
        patient(beside)
        running = worker(beside).number
        timer = threading.Timer(random.random() * within, os.kill, (running, signal.SIGKILL))
        temperature = random.choice([0.0, 1.0])
        timer.start()
        try:
            assert generation(beside, request(temperature=temperature)).token_ids == plain[temperature], at
        finally:
            timer.cancel()
            timer.join()
    return worker(beside).losses - before


@pytest.mark.slow
def test_killed_at_any_moment_the_text_stays(beside, plain):
    assert killed_at_random(beside, plain, 3, 0, within=0.03) > 0  # a generation takes as long at least


@pytest.mark.slow
@pytest.mark.matrix
def test_killed_two_hundred_times_the_text_stays(beside, plain):
    files = len(os.listdir("/proc/self/fd"))
    killed_at_random(beside, plain, 200, 1)
    assert len(os.listdir("/proc/self/fd")) <= files + 8
    assert len(children()) <= 2


def broken_off_at_random(beside, plain, forks, times, seed):
    patient(beside)
    random, ways = Random(seed), set()
    before = left()
    for at in range(times):
        ways.add(break_off(beside, request(), random, within=0.1))
        patient(beside)
        assert left() == before, at
        assert not [one for one in forks if one != worker(beside).number and alive(one)], at
        again = generation(beside, request())
        assert again.token_ids == plain[0.0], at
        assert any(one.hit for one in again.rounds), at
    return ways


def test_a_text_that_ends_at_any_moment_leaves_nothing_behind_and_the_next_one_is_right(beside, plain, forks):
    broken_off_at_random(beside, plain, forks, 6, 0)


@pytest.mark.slow
@pytest.mark.matrix
def test_two_hundred_texts_that_end_at_any_moment_leave_nothing_behind(beside, plain, forks):
    assert broken_off_at_random(beside, plain, forks, 200, 1) == {*WAYS}


def made_at_random(forks, times, seed, within=0.2):
    random, known = Random(seed), len(forks)
    gc.collect()
    before = left()
    for at in range(times):
        made = None
        with ctrl_c_after(random.random() * within):
            made = decoder()
        if made is not None:
            worker(made).close()
            del made
        gc.collect()
        assert left() == before, at
        assert not [one for one in forks[known:] if alive(one)], at


def test_ctrl_c_while_a_process_is_started_leaves_nothing_behind(forks):
    made_at_random(forks, 3, 0)


@pytest.mark.slow
@pytest.mark.matrix
def test_ctrl_c_two_hundred_times_while_a_process_is_started_leaves_nothing_behind(forks):
    made_at_random(forks, 200, 1)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_between_the_start_of_a_process_and_the_knowledge_of_it_leaves_nothing(monkeypatch):
    """The moment in which nobody but the one who has started it could end it."""
    begun = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *given, **how):
            super().__init__(*given, **how)
            begun.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(process, "subprocess", starting_with(Interrupted))
    before = left()
    with pytest.raises(KeyboardInterrupt):
        ProcessWorker([sys.executable, "-c", "import time; time.sleep(60)"], None, NGRAM, VOCAB)
    (one,) = begun
    assert one.returncode is not None
    assert left() == before


def children():
    """Processes that this one has started and that have not ended."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    return found.split()


def test_nothing_is_left_of_a_decoder_that_is_gone(started_by_itself):
    files = len(os.listdir("/proc/self/fd"))
    made = decoder()
    generation(made, request())
    running = worker(made).number
    assert alive(running)
    del made
    gc.collect()
    assert not alive(running)
    assert len(os.listdir("/proc/self/fd")) <= files


def test_a_stream_that_is_closed_and_ctrl_c_leave_a_decoder_that_goes_on(beside, plain):
    patient(beside)
    made = beside.run(request())
    next(made)
    made.close()
    verify = beside.target.verify

    def interrupted(*args):
        raise KeyboardInterrupt

    beside.target.verify = interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            generation(beside, request())
    finally:
        beside.target.verify = verify
    again = generation(beside, request())
    assert again.token_ids == plain[0.0]
    assert any(one.hit for one in again.rounds)


@pytest.fixture
def hanging(beside, plain):
    """The decoder's process stands still from when it is to prepare, and has more time to answer than tests have.

    Behind the test it is gone, and another one drafts.
    """
    patient(beside)
    own, kept, prepare, wait = worker(beside), worker(beside)._patience, worker(beside).prepare, beside.target.wait
    running = own.number

    def standing_still(*given):
        os.kill(running, signal.SIGSTOP)
        prepare(*given)

    own._patience, own.prepare, beside.target.wait = Patience(first=40.0), standing_still, lambda: None
    started = time.monotonic()
    yield running
    own._patience, own.prepare, beside.target.wait = kept, prepare, wait
    assert time.monotonic() - started < 20.0
    assert not alive(running)
    patient(beside)
    again = generation(beside, request())
    assert again.token_ids == plain[0.0]
    assert any(one.hit for one in again.rounds)


def test_ctrl_c_does_not_wait_for_a_process_that_hangs_in_its_first_preparing(beside, hanging, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(beside.target, "verify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generation(beside, request())
    assert not alive(hanging)


def test_ctrl_c_while_a_session_is_left_ends_a_process_that_hangs(beside, hanging):
    """The text is over with its first round: what was prepared meanwhile is waited for at the end."""
    with ctrl_c_after(0.5):
        generation(beside, request(1))
    assert not alive(hanging)


LEFT_ALONE = """
import sys, time
sys.path[:0] = {path!r}
import test_process as t
made = t.decoder()
t.generation(made, t.request())
print(t.worker(made).number, flush=True)
time.sleep(60)
"""


def test_a_process_ends_with_the_one_that_decodes(forked_python):
    two_cores()
    code = LEFT_ALONE.format(path=[os.path.dirname(__file__), *sys.path])
    with subprocess.Popen([forked_python, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        assert alive(number)
        parent.kill()
    for _ in range(100):
        if not alive(number):
            break
        time.sleep(0.1)
    assert not alive(number)


@attrs.frozen
class Unsendable(Chain):
    """Remembers something that can be copied, and not be sent to another process."""

    name = "unsendable"
    kept: list = attrs.field(init=False, eq=False, factory=lambda: [lambda: None])


@attrs.frozen
class Unreadable(Chain):
    """Can be sent, and not be read where it comes."""

    name = "unreadable"

    def __reduce__(self):
        return getattr, (os, "nothing_of_this_name")


@pytest.mark.parametrize("policy", [Unsendable(length=2), Unreadable(length=2)])
def test_a_policy_that_cannot_be_sent_costs_the_preparation_and_no_process(beside, plain, caplog, policy):
    patient(beside)
    running = worker(beside).number
    for schedule in (Cached(budget=12), Pearl()):
        caplog.clear()
        sequence = finished(engine(beside, policy, schedule=schedule), request())
        assert sequence.token_ids == plain[0.0]
        said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert len(said) == 1
        assert "what may come next is not prepared" in said[0]
        assert any(len(one.tree) > 1 for one in sequence.rounds)
    assert worker(beside).number == running


def test_what_cannot_be_hosted_is_refused_in_a_sentence():
    asking = Lookahead(window=2, ngram=3, guesses=2)
    with pytest.raises(ValueError, match="reads more than texts"):
        Decoder(Patient(), Match(), Chain(), asking, schedule=Cached(), draft_on="cpu:1")
    with pytest.raises(ValueError, match="was given opened"):
        Decoder(Patient(), Match(), Chain(), NGRAM.open(Patient()), schedule=Cached(), draft_on="cpu:1")


@attrs.frozen
class Undecided(Cached):
    name = "undecided"
    drafts_on_miss = None


def test_a_decoder_that_cannot_be_made_leaves_no_process(monkeypatch):
    class Beside:
        drafter, closed = NGRAM.open(Patient()), False

        def close(self):
            self.closed = True

    beside = Beside()
    monkeypatch.setattr("talon_core.decoding.decoder.process_worker", lambda *_: beside)
    with pytest.raises(PluginError, match="has a drafts_on_miss of None"):
        Decoder(Patient(), Match(), Chain(), NGRAM, schedule=Undecided(), draft_on="cpu:1")
    assert beside.closed


def test_a_drafter_that_asks_the_target_is_refused_where_it_is_opened():
    two_cores()
    with pytest.raises(ValueError, match="cannot be opened in another process: it asks the target"):
        Decoder(Patient(), Match(), Chain(), AsksFromTexts(), schedule=Cached(), draft_on="cpu:1")


@pytest.mark.parametrize(("mine", "fits"), [("one", True), ("another", False)])
def test_a_datastore_of_another_tokenizer_is_refused_there_too(tmp_path, mine, fits):
    two_cores()
    write_index(tmp_path / "index", [Piece(np.array([0, 1, 2]))], IndexedVocabulary("parrot", VOCAB, "one"))

    class Knowing(Patient):
        tokenizer_sha256 = mine

    parts = Knowing(), Match(), Chain(), Datastore(str(tmp_path / "index"))
    with nullcontext() if fits else pytest.raises(ValueError, match="'parrot', and the target has another one"):
        Decoder(*parts, schedule=Cached(), draft_on="cpu:1")


def test_the_shelf_gives_back_what_was_put_there():
    here = Shelf()
    there = Shelf(os.dup(here.number))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for shape in ((3, 5), (0, 7), (1, 700_001)):
            rows = torch.randn(shape).to(dtype)
            assert torch.equal(there.take(here.place(rows)), rows)
    assert (here.ended, there.ended) == (0, 0)
    here.ended = 7
    assert there.ended == 7
    here.clear()
    rows = torch.randn(2, 2)
    assert torch.equal(there.take(here.place(rows)), rows)
    here.close()
    there.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model and a tokenizer of words, as files."""
    where = tmp_path_factory.mktemp("tiny")
    for part in of_words(vocab_size=11):
        part.save_pretrained(where)
    return str(where)


def test_a_model_drafts_in_a_process_and_is_opened_again_where_that_is_gone(folder, capfd):
    """The target's own model drafts: it says what the target says."""
    two_cores()
    plain = talon_core.load(folder)
    parts = {"drafter": f"draft-model:model={folder}", "policy": "chain:length=2"}
    made = talon_core.load(folder, **parts, schedule="cached:budget=33,beyond=true", draft_on="cpu:1")
    capfd.readouterr()
    made.target.verify = waiting(made.target.verify, worker(made))
    for prompt in ("t5 t6 t7", "t5 t6 t7"):
        expected = plain.generate(prompt, max_new_tokens=12).token_ids
        result = made.generate(prompt, max_new_tokens=12)
        assert result.token_ids == expected
        assert any(one.hit for one in result.rounds)
    kill(made)
    patient(made)
    result = made.generate("t5 t6 t7", max_new_tokens=12)
    assert result.token_ids == expected
    assert any(one.hit for one in result.rounds)
    worker(made).close()
    assert "Loading weights" not in capfd.readouterr().err  # of the one that was opened again


def test_a_file_that_was_named_is_read_in_the_process_too(tmp_path):
    two_cores()
    for name in ("one.gguf", "other.gguf"):
        write_gguf(tmp_path / name, "Q8_0", layers=2)
    given = {"gguf_file": "one.gguf"}
    parts = {"drafter": "draft-model:skip=1", "policy": "chain:length=2", "schedule": "cached:budget=12"}
    plain = talon_core.load(tmp_path, policy=None, **given)
    made = talon_core.load(tmp_path, **parts, **given, draft_on="cpu:1")
    patient(made)
    results = [one.generate([5, 6, 7], max_new_tokens=12) for one in (plain, made)]
    assert results[0].token_ids == results[1].token_ids
    assert any(len(one.tree) > 1 for one in results[1].rounds)
    worker(made).close()


def waiting(verify, worker):
    def waited(*args):
        all_prepared(worker)
        return verify(*args)

    return waited


def test_lent_cores_are_counted_whichever_process_ends_first():
    lent, threads = _Lent(), torch.get_num_threads()
    try:
        torch.set_num_threads(8)
        lent.lend(1)
        lent.lend(2)
        assert torch.get_num_threads() == 5
        lent.give_back(1)
        assert torch.get_num_threads() == 6
        lent.give_back(2)
        assert torch.get_num_threads() == 8
    finally:
        torch.set_num_threads(threads)


def test_a_core_is_left_for_the_target():
    cores = usable_cores()
    with pytest.raises(ValueError, match=rf"draft_on is cpu:{cores}, and this process may use {cores} core"):
        Decoder(Patient(), Match(), Chain(), NGRAM, schedule=Cached(), draft_on=f"cpu:{cores}")
