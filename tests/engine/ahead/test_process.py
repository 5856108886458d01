"""Preparing in a process beside: it may die or hang at any moment, and nothing of it is left behind."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from random import Random

import attrs
import numpy as np
import pytest

from talon_core import Request, TableTarget
from talon_core.decoding.decoder import Decoder
from talon_core.engine.ahead.shelf import Shelf
from talon_core.sampling import temperature_sampling
from talon_drafters import Lookahead, Ngram
from talon_strategies import Block, Cached, Chain, Match, Pearl, SampledChain

VOCAB = 4
NGRAM = Ngram(min_match=1, least=0.0)


class AsksFromTexts(Lookahead):
    reads_texts = True


class Slow(TableTarget):
    """A target that leaves the processor to others for a while."""

    def __init__(self, seconds=0.0):
        super().__init__(np.random.default_rng(0).normal(size=(VOCAB,) * 3) * 2)
        self.seconds = seconds

    def verify(self, *args):
        time.sleep(self.seconds)
        return super().verify(*args)


def request(length=30, temperature=0.0, seed=0):
    return Request(np.array([1, 2, 3, 1, 2]), length, temperature_sampling(temperature), seed=seed)


def decoder(schedule=Cached(budget=12), policy=Chain(length=2), rule=Match(), seconds=0.0):  # noqa: B008 - frozen
    return Decoder(Slow(seconds), rule, policy, NGRAM, schedule=schedule, draft_on="cpu:1")


def generation(decoder, given):
    made = decoder.run(given)
    made.finish()
    return made


def worker(decoder):
    return decoder.engine.parts.drafter._worker


@pytest.fixture(scope="module")
def plain():
    made = Decoder(Slow(), Match(), None)
    return {temperature: generation(made, request(temperature=temperature)).token_ids for temperature in (0.0, 1.0)}


@pytest.fixture(scope="module")
def beside():
    """A decoder that several tests share: to start a process takes seconds."""
    return decoder(seconds=0.03)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_the_same_and_rounds_begin_with_what_was_prepared(beside, plain, temperature):
    made = generation(beside, request(temperature=temperature))
    assert made.token_ids == plain[temperature]
    told = [one.hit for one in made.rounds]
    assert told.count(True) > 1  # the look-up knows little of what is drawn, and the machine may be busy
    assert any(one.prepare_seconds > 0 for one in made.rounds)


def test_policies_that_draw_get_laws_from_there(beside):
    made = decoder(policy=SampledChain(length=2), rule=Block(), schedule=Pearl(), seconds=0.05)
    rounds = generation(made, request(temperature=1.0)).rounds
    assert any(one.tree.drawn for one in rounds)
    worker(made).close()


def patient(decoder):
    """Wait until a process is there again."""
    for _ in range(200):
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
    worker(beside)._patience.least = worker(beside)._patience.longest = 0.05
    made, running = beside.run(request()), worker(beside).number
    next(made)
    os.kill(running, signal.SIGSTOP)
    made.finish()
    assert made.token_ids == plain[0.0]
    assert not os.path.exists(f"/proc/{running}") or not alive(running)
    worker(beside)._patience.least = 5.0


def alive(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def killed_at_random(beside, plain, times, seed):
    random = Random(seed)
    for at in range(times):
        patient(beside)
        running = worker(beside).number
        timer = threading.Timer(random.random() * 0.25, os.kill, (running, signal.SIGKILL))
        temperature = random.choice([0.0, 1.0])
        timer.start()
        try:
            assert generation(beside, request(temperature=temperature)).token_ids == plain[temperature], at
        finally:
            timer.cancel()
            timer.join()


@pytest.mark.slow
def test_killed_at_any_moment_the_text_stays(beside, plain):
    killed_at_random(beside, plain, 4, 0)


@pytest.mark.slow
@pytest.mark.matrix
def test_killed_two_hundred_times_the_text_stays(beside, plain):
    files = len(os.listdir("/proc/self/fd"))
    killed_at_random(beside, plain, 200, 1)
    assert len(os.listdir("/proc/self/fd")) <= files + 8
    assert len(children()) <= 2


def children():
    """Processes that this one has started and that have not ended."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    return found.split()


def test_nothing_is_left_of_a_decoder_that_is_gone():
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


LEFT_ALONE = """
import sys, time
sys.path[:0] = {path!r}
import test_process as t
made = t.decoder()
t.generation(made, t.request())
print(t.worker(made).number, flush=True)
time.sleep(60)
"""


def test_a_process_ends_with_the_one_that_decodes():
    code = LEFT_ALONE.format(path=[os.path.dirname(__file__), *sys.path])
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
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
    """Remembers something that cannot be sent to another process."""

    name = "unsendable"
    kept: list = attrs.field(init=False, eq=False, factory=lambda: [lambda: None])


def test_a_policy_that_cannot_be_sent_costs_the_preparation(plain, caplog):
    made = decoder(policy=Unsendable(length=2))
    assert generation(made, request()).token_ids == plain[0.0]
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == 1
    assert "what may come next is not prepared" in said[0]
    worker(made).close()


def test_what_cannot_be_hosted_is_refused_in_a_sentence():
    asking = Lookahead(window=2, ngram=3, guesses=2)
    with pytest.raises(ValueError, match="reads more than texts"):
        Decoder(Slow(), Match(), Chain(), asking, schedule=Cached(), draft_on="cpu:1")
    with pytest.raises(ValueError, match="cannot be opened in another process: it asks the target"):
        Decoder(Slow(), Match(), Chain(), AsksFromTexts(), schedule=Cached(), draft_on="cpu:1")
    with pytest.raises(ValueError, match="was given opened"):
        Decoder(Slow(), Match(), Chain(), NGRAM.open(Slow()), schedule=Cached(), draft_on="cpu:1")


def test_the_shelf_gives_back_what_was_put_there():
    import torch

    here = Shelf()
    there = Shelf(os.dup(here.number))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for shape in ((3, 5), (0, 7), (1, 700_001)):
            rows = torch.randn(shape).to(dtype)
            assert torch.equal(there.take(here.place(rows)), rows)
    here.clear()
    rows = torch.randn(2, 2)
    assert torch.equal(there.take(here.place(rows)), rows)
    here.close()
    there.close()
