"""Preparing in a thread: whatever its timing is, the text stays, and nothing of it is left behind."""

import signal
import threading
import time
from random import Random

import attrs
import numpy as np
import pytest
import torch

from talon_core import Engine, Request, TableTarget
from talon_core.decoding.decoder import Decoder
from talon_core.engine.ahead.patience import Patience
from talon_core.engine.ahead.thread import ThreadWorker
from talon_core.sampling import temperature_sampling
from talon_strategies import Branch, Cached, Chain, Match, Pearl, Talon
from talon_tests.broken_off import WAYS, break_off, ctrl_c_after, left
from talon_tests.streams import Race, Stream, StreamDevice
from talon_tests.whole_texts import WholeTexts

VOCAB = 4
SCHEDULES = [Cached(budget=20), Cached(budget=3, allocation="geometric"), Branch(budget=3), Pearl()]


class Slow(TableTarget):
    """A target that takes as long as it likes, and leaves the processor to others meanwhile."""

    def __init__(self, seconds=lambda: 0.0):
        super().__init__(np.random.default_rng(0).normal(size=(VOCAB,) * 3) * 2)
        self.seconds = seconds

    def verify(self, *args):
        time.sleep(self.seconds())
        return super().verify(*args)


class Sleepy(WholeTexts):
    """A drafter that sleeps, and finds out if two ask it at a time."""

    def __init__(self, seconds=lambda: 0.0):
        super().__init__(np.random.default_rng(1).dirichlet(np.ones(VOCAB), size=11))
        self.seconds = seconds
        self.busy = threading.Lock()

    def propose(self, frontiers):
        assert self.busy.acquire(blocking=False), "it is asked by two at a time"
        try:
            time.sleep(self.seconds())
            return super().propose(frontiers)
        finally:
            self.busy.release()

    def commit(self, committed):
        assert self.busy.acquire(blocking=False), "it is told something while it is asked"
        try:
            super().commit(committed)
        finally:
            self.busy.release()


def request(length=20, temperature=0.0, seed=0, prompt=(1, 2, 3)):
    return Request(np.array(prompt), length, temperature_sampling(temperature), seed=seed)


def engine(schedule, target=None, drafter=None, policy=None, **how):
    policy = policy if policy is not None else Talon(budget=6, top_k=2)
    drafter, target = drafter if drafter is not None else Sleepy(), target if target is not None else Slow()
    return Engine(target, Match(), policy, drafter, schedule=schedule, allocator=None, **how)


def finished(engine, *requests):
    sequences = [engine.submit(one) for one in requests]
    while not all(one.finished for one in sequences):
        engine.step()
    assert all(one.error is None for one in sequences)
    return sequences


def at_random(seed, most=0.004):
    random = Random(seed)
    return lambda: random.choice([0.0, 0.0, random.random() * most])


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = {*threading.enumerate()}
    yield
    assert {*threading.enumerate()} <= before


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_the_targets_whatever_sleeps(schedule, temperature):
    requests = [request(20, temperature, seed, prompt) for seed, prompt in enumerate([(1, 2, 3), (0,), (3, 3)])]
    plain = [one.token_ids for one in finished(engine(None), *requests)]
    for seed in range(5):
        target, drafter = Slow(at_random(seed)), Sleepy(at_random(seed + 100))
        again = [Request(one.ids, one.max_new_tokens, one.sampling, seed=one.seed) for one in requests]
        assert [one.token_ids for one in finished(engine(schedule, target, drafter), *again)] == plain


class Watched:
    """Makes one thread worker, and knows whether it is preparing."""

    def __init__(self, patience=None):
        self.patience = patience
        self.worker = None

    def __call__(self, drafter):
        self.worker = ThreadWorker(drafter, patience=self.patience)
        return self.worker

    def all_prepared(self):
        """Waits until nothing more is prepared, however busy the machine is; the target then takes no time itself."""
        task = None if self.worker is None else self.worker._task
        assert task is None or task.done.wait(60)
        return 0.0


def test_drafting_goes_on_while_the_target_verifies():
    """A target that takes as long as all that is prepared: it is there at once."""
    watched = Watched()
    made = engine(Cached(budget=100), Slow(watched.all_prepared), Sleepy(), Chain(length=2), worker=watched)
    (sequence,) = finished(made, request(20))
    assert all(one.hit for one in sequence.rounds[1:-1])
    assert all(one.draft_passes == 0 for one in sequence.rounds[1:-1])
    for one in sequence.rounds[:-1]:
        (verify,) = [span for span in one.spans if span.part == "verify"]
        assert any(verify.start <= span.start < verify.end for span in one.spans if span.part == "prepare")


def test_it_waits_for_the_call_that_is_being_made_and_for_no_more():
    target, drafter = Slow(lambda: 0.0), Sleepy(lambda: 0.02)
    (sequence,) = finished(engine(Cached(budget=100), target, drafter, Chain(length=3)), request(10))
    waited = 0
    for one in sequence.rounds:
        calls = [span for span in one.spans if span.part == "prepare"]
        for wait in [span for span in one.spans if span.part == "wait"]:
            assert sum(span.end > wait.start for span in calls) <= 1
            waited += any(span.end > wait.start for span in calls)
    assert waited


def test_a_call_that_does_not_come_back_is_given_up(caplog):
    stuck, inside = threading.Event(), threading.Event()

    class Stuck(Sleepy):
        def propose(self, frontiers):
            if threading.current_thread() is not threading.main_thread() and not stuck.is_set():
                inside.set()
                stuck.wait()
            return super().propose(frontiers)

    def until_it_is_asked():
        assert inside.wait(60)
        return 0.0

    watched = Watched(Patience(first=0.05, least=0.05))
    made = engine(Cached(budget=100), Slow(until_it_is_asked), Stuck(), worker=watched)
    with made.session():
        (plain,) = finished(engine(None), request(20))
        (first,) = finished(made, request(20))
        assert first.token_ids == plain.token_ids
        assert all(len(one.tree) == 1 for one in first.rounds[1:])
        (second,) = finished(made, request(20, seed=2))  # while it is away
        assert second.token_ids == plain.token_ids
        assert all(len(one.tree) == 1 for one in second.rounds)
        said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert len(said) == 1
        assert "has not come back" in said[0]
        stuck.set()
        assert watched.worker._stuck.done.wait(60)
        watched.patience.first = watched.patience.least = 60.0  # a busy machine is slow, too
        made.parts.target.seconds = watched.all_prepared
        (third,) = finished(made, request(20, seed=3))
        assert any(one.hit for one in third.rounds)


def test_a_session_ends_where_a_call_does_not_that_nobody_has_waited_for(monkeypatch):
    """As where Ctrl-C has interrupted the wait."""
    began, stuck = threading.Event(), threading.Event()

    class Endless:
        def __init__(self, *_):
            pass

        def timed_step(self, spans):
            began.set()
            stuck.wait()
            return False

    monkeypatch.setattr("talon_core.engine.ahead.thread.Preparing", Endless)
    worker = ThreadWorker(Sleepy(), patience=Patience(first=0.05, least=0.05))
    worker.prepare(Cached(), ())
    assert began.wait(60)
    leaving = threading.Thread(target=worker.rest, daemon=True)
    leaving.start()
    leaving.join(60)
    assert not leaving.is_alive()
    assert worker.lost
    stuck.set()
    for thread in threading.enumerate():
        if thread.name == "talon-prepares":
            thread.join(60)


def test_while_a_call_is_away_the_drafter_is_told_nothing_of_any_text():
    """Two texts; what is prepared for the second one does not come back while the first one goes on."""
    sticks, back = threading.Event(), threading.Event()

    class Stuck(Sleepy):
        away = False

        def propose(self, frontiers):
            assert not self.away
            if sticks.is_set() and threading.current_thread() is not threading.main_thread():
                self.away = True
                back.wait(60)
                self.away = False
            return super().propose(frontiers)

        def commit(self, committed):
            assert not self.away, "it is told something while it is asked"
            super().commit(committed)

        def close(self, slot):
            assert not self.away, "it is told something while it is asked"
            super().close(slot)

    drafter = Stuck()
    watched = Watched(Patience(first=60.0, least=60.0))

    def until_it_is_away():
        while sticks.is_set() and not drafter.away and not watched.worker.lost:
            time.sleep(0.001)
        return 0.0

    made = engine(Cached(budget=100), Slow(until_it_is_away), drafter, worker=watched, keep=False)
    with made.session():
        first, second = made.submit(request(20)), made.submit(request(20, prompt=(1, 2)))
        made.step([first])
        sticks.set()
        watched.patience.first = watched.patience.least = 0.05
        made.step([second])
        assert watched.worker.lost
        for _ in range(3):
            made.step([first])
        assert len(first.rounds[-1].tree) == 1
        made.cancel(first)
        made.step()
        assert first.error is None
        assert second.error is None
        sticks.clear()
        back.set()
        assert watched.worker._stuck.done.wait(60)
        while not second.finished:
            made.step()
        (plain,) = finished(engine(None), request(20, prompt=(1, 2)))
        assert second.token_ids == plain.token_ids


def test_ctrl_c_in_the_target_leaves_nothing_running():
    class Interrupted(Slow):
        passes = 0

        def verify(self, *args):
            self.passes += 1
            if self.passes == 3:
                time.sleep(0.01)
                raise KeyboardInterrupt
            return super().verify(*args)

    drafter = Sleepy(lambda: 0.005)
    made = engine(Cached(budget=100), Interrupted(), drafter)
    sequence = made.submit(request())
    made.step()
    made.step()
    with pytest.raises(KeyboardInterrupt):
        made.step()
    assert sequence.cancelled
    assert not drafter.texts
    (plain,) = finished(engine(None), request(20))
    (again,) = finished(made, request(20))
    assert again.token_ids == plain.token_ids


class Hangs(Sleepy):
    """Does not come back from what it is asked beside the target, until it may."""

    def __init__(self):
        super().__init__()
        self.inside, self.back = threading.Event(), threading.Event()

    def propose(self, frontiers):
        if threading.current_thread() is not threading.main_thread():
            self.inside.set()
            self.back.wait(60)
        return super().propose(frontiers)


@pytest.mark.parametrize("when", ["in a pass", "while the session is left"])
def test_ctrl_c_does_not_wait_for_a_call_that_hangs_in_the_first_preparing(when):
    drafter = Hangs()

    class Interrupted(Slow):
        def verify(self, *args):
            assert drafter.inside.wait(60)
            if when == "in a pass" and not drafter.back.is_set():
                raise KeyboardInterrupt
            return super().verify(*args)

    (plain,) = finished(engine(None), request(20))
    (one,) = finished(engine(None), request(20, prompt=(1, 2)))
    ends = frozenset(one.token_ids[:1])  # in the first round: what is prepared is waited for when the session is left
    watched = Watched(Patience(first=40.0))
    made = engine(Cached(budget=100), Interrupted(), drafter, worker=watched)
    started = time.monotonic()
    sequence = made.submit(attrs.evolve(request(20, prompt=(1, 2)), eos=ends))
    with ctrl_c_after(0.5):
        made.step()
    assert time.monotonic() - started < 20.0
    assert sequence.finished
    assert watched.worker.lost
    drafter.back.set()
    assert watched.worker._stuck.done.wait(60)
    (again,) = finished(made, request(20))
    assert again.token_ids == plain.token_ids
    assert any(one.hit is not None for one in again.rounds)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_at_the_start_of_the_thread_leaves_a_decoder_that_goes_on(monkeypatch):
    class Interrupted(threading.Thread):
        def start(self):
            signal.raise_signal(signal.SIGINT)
            super().start()

    made = engine(Cached(budget=100), drafter=Sleepy())
    with monkeypatch.context() as patch:
        patch.setattr("talon_core.engine.ahead.thread.Thread", Interrupted)
        made.submit(request())
        with pytest.raises(KeyboardInterrupt):
            made.step()
    (plain,) = finished(engine(None), request(20))
    (again,) = finished(made, request(20))
    assert again.token_ids == plain.token_ids


def test_a_cancelled_sequence_leaves_nothing_running():
    drafter = Sleepy(lambda: 0.01)
    made = engine(Cached(budget=100), Slow(lambda: 0.005), drafter, keep=False)
    with made.session():
        sequence = made.submit(request())
        made.step()
        made.cancel(sequence)
        made.step()
        assert not drafter.texts


class Drowsy(WholeTexts):
    """A drafter that sleeps."""

    def __init__(self, seconds):
        super().__init__(np.random.default_rng(1).dirichlet(np.ones(VOCAB), size=11))
        self.seconds = seconds

    def propose(self, frontiers):
        time.sleep(self.seconds())
        return super().propose(frontiers)


def broken_off_at_random(times, seed):
    random, drafter = Random(seed), Drowsy(at_random(seed, 0.002))
    target = Slow(at_random(seed + 1, 0.002))
    made = Decoder(target, Match(), Chain(length=3), drafter, schedule=Cached(budget=20))
    (plain,) = finished(engine(None), request(20))
    made.run(request(20)).finish()
    before, ways = left(), set()
    for at in range(times):
        ways.add(break_off(made, request(20), random, within=0.04))
        assert left() == before, at
        whole = made.run(request(20))
        whole.finish()
        assert whole.token_ids == plain.token_ids, at
        assert any(one.hit for one in whole.rounds), at
    made.engine.forget()
    assert not drafter.texts
    return ways


def test_a_text_that_ends_at_any_moment_leaves_nothing_behind_and_the_next_one_is_right():
    broken_off_at_random(6, 0)


@pytest.mark.slow
@pytest.mark.matrix
def test_two_hundred_texts_that_end_at_any_moment_leave_nothing_behind():
    assert broken_off_at_random(200, 1) == {*WAYS}


def test_patience_grows_with_what_calls_of_a_kind_take():
    patience = Patience(times=3, least=1.0, first=9.0)
    assert patience.seconds("propose") == 9.0
    patience.saw("propose", [0.1])
    patience.saw("read", [])
    assert patience.seconds("propose") == 1.0
    assert patience.seconds("read") == 9.0
    patience.saw("propose", [2.0, 1.0])
    assert patience.seconds("propose") == 6.0


def test_patience_ends_a_moment_after_the_user_has_asked_for_the_end():
    patience, waits = Patience(hurried=0.01), []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            patience.hurry(True)  # as Ctrl-C does, within the wait
        time.sleep(0.02)
        return False

    assert not patience.has_come(wait, 60.0)
    assert patience.is_hurried
    assert len(waits) == 3
    patience.hurry(False)
    assert patience.has_come(lambda seconds: True, 0.0)
    assert not patience.has_come(lambda seconds: False, 0.0)


@pytest.fixture
def gpu(monkeypatch):
    device = StreamDevice()
    device.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    class Drafts:
        """Prepares in one pass, which nobody waits for."""

        faults, passes = (), 1

        def __init__(self, *_):
            pass

        def timed_step(self, spans):
            device.launch("draft", reads=("features",), writes=("drafted",))
            return False

        def prepared(self):
            return ()

    monkeypatch.setattr("talon_core.engine.ahead.thread.Preparing", Drafts)
    return device


def prepared_rounds(device):
    """Each verifies beside what is prepared, and reads that."""
    worker = ThreadWorker(Sleepy())
    try:
        for _ in range(2):
            device.launch("commit", writes=("features",))
            worker.prepare(Cached(), ())
            device.launch("verify", writes=("rows",))
            assert worker._task.done.wait(60)
            stopped = worker.stop()
            if stopped.failure is not None:
                raise stopped.failure
            device.launch("read", reads=("drafted",))
    finally:
        worker.rest()


def test_on_a_gpu_a_thread_drafts_behind_what_it_reads_and_before_what_reads_it(gpu):
    prepared_rounds(gpu)
    assert gpu.done.count("draft") == 2
    assert len(gpu.streams) == 2


@pytest.mark.parametrize("left_out", [0, 1])
def test_where_a_stream_does_not_wait_for_the_other_there_is_a_race(gpu, monkeypatch, left_out):
    waits, wait_stream = [], Stream.wait_stream

    def waiting(stream, other):
        waits.append(stream.number)
        if len(waits) - 1 != left_out:
            wait_stream(stream, other)

    monkeypatch.setattr(Stream, "wait_stream", waiting)
    with pytest.raises(Race, match=r"(features|drafted) is used on stream"):
        prepared_rounds(gpu)
    assert waits[:2] == [1, 0][: len(waits)]
