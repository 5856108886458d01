"""Timing a target and a drafter beside each other: both do what they would, and nothing is left of it."""

import os
import signal
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from talon_core import Candidates, Drafter, DrafterSpec, Proposed, TableTarget
from talon_core.decoding.loading import decoder_for_model, target_for_model
from talon_core.engine.ahead.place import usable_cores
from talon_core.plugins.parts import Parts
from talon_core.profiles.beside import BesidePlan, _Measuring, drafting_beside, measured_beside
from talon_drafters import Ngram
from talon_strategies import Match
from talon_tests.tiny_models import tiny_model
from talon_tests.whole_texts import WholeTexts

SMALL = BesidePlan(nodes=3, rows=2, width=3, context=9, repetitions=2)
VOCAB = 7


def target() -> TableTarget:
    return TableTarget(np.random.default_rng(0).normal(size=(VOCAB, VOCAB)))


class Told(WholeTexts):
    """Knows in which threads it was asked, and refuses what breaks the contract of drafters."""

    def __init__(self, max_depth: int | None = None) -> None:
        super().__init__(np.random.default_rng(1).dirichlet(np.ones(VOCAB), size=11), max_depth)
        self.threads: set[str] = set()
        self.rows: set[int] = set()
        self.opened = 0

    def open(self, slot: int, prompt: Any, room: int) -> None:
        self.opened += 1
        super().open(slot, prompt, room)

    def propose(self, frontiers: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        for one in frontiers:
            self.rows.add(len(one.nodes))
            if self.max_depth is not None:
                assert one.tree.depths[one.nodes].max() < self.max_depth
        return super().propose(frontiers)


@pytest.mark.parametrize("max_depth", [None, 2])
def test_the_drafter_works_in_one_thread_of_its_own_by_its_contract(max_depth: int | None) -> None:
    before, whole = threading.active_count(), torch.get_num_threads()
    drafter = Told(max_depth)
    found = measured_beside(target(), Match(), drafter, 1, "thread", SMALL)
    assert len(drafter.threads) == 1
    assert next(iter(drafter.threads)).startswith("talon-drafts")
    assert drafter.rows == {1, 2}
    assert drafter.opened >= SMALL.repetitions
    assert not drafter.texts  # it is closed
    assert threading.active_count() == before
    assert torch.get_num_threads() == whole
    assert (found.draft_on, found.threads, found.all_threads) == ("thread", 1, whole)
    assert min(found.pass_seconds, found.pass_seconds_beside, found.layer_seconds) > 0
    assert found.target >= 1
    assert found.drafter >= 1


def test_what_is_timed_first_is_timed_last_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a text that grows nor a machine that slows down is taken for what both cost each other."""
    seen: list[str] = []
    passes, drafting = _Measuring._passes, _Measuring._drafting_in

    def noted_passes(self: _Measuring, sequence: Any) -> Any:
        seen.append(f"passes with {torch.get_num_threads()}")
        return passes(self, sequence)

    @contextmanager
    def noted_drafting(self: _Measuring, thread: Any) -> Any:
        seen.append("drafts")
        with drafting(self, thread):
            yield
        seen.append("drafted")

    monkeypatch.setattr(_Measuring, "_passes", noted_passes)
    monkeypatch.setattr(_Measuring, "_drafting_in", noted_drafting)
    whole = torch.get_num_threads()
    measured_beside(target(), Match(), Told(), whole + 1, "thread", attrs.evolve(SMALL, repetitions=3))
    alone, beside = ["drafts", "drafted"], ["drafts", f"passes with {whole + 1}", "drafted"]
    forth = [f"passes with {whole}", f"passes with {whole + 1}", *alone, *beside]
    back = [*beside, *alone, f"passes with {whole + 1}", f"passes with {whole}"]
    assert seen == [*forth, *back, *forth]


def test_what_fails_in_the_drafter_comes_out_and_leaves_nothing() -> None:
    class Fails(Told):
        def propose(self, frontiers: Any) -> Any:
            raise RuntimeError("it cannot")

    before, drafter, verifies = threading.active_count(), Fails(), target()
    with pytest.raises(RuntimeError, match="it cannot"):
        measured_beside(verifies, Match(), drafter, 1, "thread", SMALL)
    assert not drafter.texts
    with pytest.raises(ValueError, match="slot 0 is not open"):
        verifies.close(0)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("drafter", "sentence"),
    [
        (Told(max_depth=0), "drafts nothing"),
        (Told(), "repetitions is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_timed_is_refused(drafter: Drafter, sentence: str) -> None:
    plan = BesidePlan(repetitions=0) if "repetitions" in sentence else SMALL
    with pytest.raises(ValueError, match=sentence):
        measured_beside(target(), Match(), drafter, 1, "thread", plan)


def test_a_drafter_that_runs_the_target_is_refused() -> None:
    decoder = decoder_for_model(tiny_model("llama"), None, Parts("draft-model:skip=2", "chain"))
    assert decoder.drafter is not None
    with pytest.raises(ValueError, match="runs layers of the target, which are busy"):
        measured_beside(decoder.target, decoder.rule, decoder.drafter, 1, "thread", SMALL)


def test_a_model_without_room_is_refused() -> None:
    decoder = decoder_for_model(tiny_model("llama"), None, Parts("ngram", "chain"))
    assert decoder.drafter is not None
    with pytest.raises(ValueError, match=r"a prompt of 640 tokens, and \d+ new ones .* take a model of a longer one"):
        measured_beside(decoder.target, decoder.rule, decoder.drafter, 1, "thread", BesidePlan(context=640))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The targets that the drafter `ngram` was opened for in this process."""
    targets: list[object] = []
    real = Ngram.open
    monkeypatch.setattr(Ngram, "open", lambda self, target: (targets.append(target), real(self, target))[1])
    return targets


def test_it_is_opened_where_it_drafts_and_a_process_takes_its_cores_from_the_target(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, opened: list[object]
) -> None:
    if usable_cores() < 2:
        pytest.skip("a process beside needs a core of its own, and there is one core")
    own, _ = target_for_model(tiny_model("llama", max_position_embeddings=512), None, Parts("ngram", "chain"))
    assert not opened
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with drafting_beside(Ngram(), own, "thread", None) as (drafter, threads):
        assert (len(opened), threads) == (1, 2)  # a thread takes none
    with drafting_beside(Ngram(), own, "cpu:1", None) as (drafter, threads):
        assert (len(opened), threads) == (1, 1)
        found = measured_beside(own, Match(), drafter, threads, "cpu:1", SMALL)
        assert found.draft_on == "cpu:1"
        number = drafter._worker.number  # type: ignore[attr-defined]  # which stands for the process
        assert Path(f"/proc/{number}").exists()
    assert not Path(f"/proc/{number}").exists()

    def lost() -> None:
        with drafting_beside(Ngram(), own, "cpu:1", None) as (drafter, threads):
            os.kill(drafter._worker.number, signal.SIGKILL)  # type: ignore[attr-defined]
            measured_beside(own, Match(), drafter, threads, "cpu:1", SMALL)

    with pytest.raises(ValueError, match=r"^drafter 'ngram' cannot be timed on cpu:1 any more: its process has ended"):
        lost()


def test_one_core_has_nothing_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("talon_core.profiles.beside.usable_cores", lambda: 1)
    with (
        pytest.raises(ValueError, match="one core, on which nothing works at the same time"),
        drafting_beside(Ngram(), target(), "thread", None),
    ):
        pass


@attrs.frozen
class Wants(DrafterSpec):
    """Options of a drafter that wants hidden states."""

    name = "wants"

    def features(self, num_layers: int) -> tuple[int, ...]:
        return (1,)

    def open(self, target: Any) -> Drafter:
        return Reads()


class Reads(Drafter):
    """Checks what it is told of the target's hidden states."""

    def __init__(self) -> None:
        self.read_of: list[int] = []
        self.told = 0

    def open(self, slot: int, prompt: Any, room: int) -> None:
        self.read_of = []

    def read(self, parts: Any) -> None:
        for part in parts.values():
            assert part.features.shape[0] == part.count
            self.read_of += range(part.start, part.end)

    def propose(self, frontiers: Any) -> Proposed:
        return Proposed([Candidates.unknown(one.nodes) for one in frontiers], 1)

    def commit(self, committed: Any) -> None:
        assert self.read_of == [*range(SMALL.context - 1)]  # all of the prompt but its last token
        for one in committed.values():
            assert (len(one.tokens), one.nodes.tolist(), len(one.features)) == (1, [0], 1)
        self.told += 1


def test_a_drafter_of_hidden_states_hears_those_that_the_target_has_given() -> None:
    decoder = decoder_for_model(tiny_model("llama", max_position_embeddings=512), None, Parts(Wants(), "chain"))
    assert isinstance(decoder.drafter, Reads)
    measured_beside(decoder.target, decoder.rule, decoder.drafter, 1, "thread", SMALL)
    assert decoder.drafter.told >= 4
