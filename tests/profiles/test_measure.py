"""Measuring a tiny model: every size that was asked for is there, timed by the engine's own passes."""

from time import sleep
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import attrs
import pytest

from talon_core.engine.engine import Engine
from talon_core.hf.target import HFTarget
from talon_core.profiles.measure import CHAINED, CHAINS, PAUSES, Measuring, ProfilePlan
from talon_core.profiles.profile import Profile
from talon_core.profiles.shapes import Shape
from talon_core.request import Request
from talon_core.rounds import Round, Span
from talon_core.tree import TokenTree
from talon_core.tree_arrays import ints
from talon_drafters.draft_model.drafter import ModelDrafter
from talon_tests.tiny_models import tiny_model

SMALL = ProfilePlan(nodes=(1, 3, 20), contexts=(8, 40), batches=(1, 2), rows=(1, 3), widths=(2,), repetitions=3)
LONG = {"max_position_embeddings": 512}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", **LONG)


def measured(model: Any, drafter: str | None, wanted: ProfilePlan = SMALL) -> Profile:
    return Measuring(wanted, model, None, drafter, "tiny").run("tiny")


@pytest.mark.parametrize("drafter", ["draft-model:skip=2", "hybrid:of=ngram+draft-model[skip=2]", "ngram", None])
def test_every_size_that_is_asked_for_is_measured(model: Any, drafter: str | None) -> None:
    found = measured(model, drafter)
    nodes, contexts, batches = zip(*found.verify_table.points, strict=True)
    assert ({*nodes}, {*batches}) == ({1, 3, 20}, {1, 2})
    assert len({*contexts}) == 2
    assert all(8 <= context < 40 + SMALL.tokens for context in contexts)
    assert len(found.verify_table.points) == 12
    rows = {1, 2, 3, 6}  # two texts that share a pass have twice as many
    assert {*found.draft_table.points} == ({(many, 2) for many in rows} if drafter is not None else set())
    assert {*found.accept_table.points} == {(1,), (3,), (20,)}
    assert {*found.read_table.points} == {(8,), (40,)}
    reads = drafter is not None and "draft-model" in drafter  # all of the prompt but its last token
    assert {*found.catch_up_table.points} == ({(7,), (39,)} if reads else set())
    assert (1,) in found.commit_table.points
    assert {*found.rest_table.points} == {(pause,) for pause in PAUSES}
    told = {tokens for (tokens,) in found.tell_table.points}
    assert all({*range(1 + pause, 6 + pause)} & told for pause in (0, *PAUSES)) is (drafter is not None)
    assert (found.origin, found.drafter, found.model["name"]) == ("measured", drafter, "tiny")
    assert all(seconds > 0 for kind in ("verify", "draft", "commit") for seconds in found.tables[kind].points.values())


def test_texts_are_drawn_at_the_temperature_that_is_asked_for(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text of it, also those whose rounds without a draft are run ahead, so that drawing is timed."""
    submit, sampled = Engine.submit, list[tuple[bool, float]]()

    def listening(engine: Engine, request: Request) -> Any:
        sampled.append((request.sampling.do_sample, request.sampling.temperature))
        return submit(engine, request)

    monkeypatch.setattr(Engine, "submit", listening)
    greedy = measured(model, "ngram")
    assert {each for each, _ in sampled} == {False}
    sampled.clear()
    found = measured(model, "ngram", attrs.evolve(SMALL, temperature=0.7))
    assert {*sampled} == {(True, 0.7)}
    assert (greedy.temperature, found.temperature) == (0.0, 0.7)
    assert {kind for kind, table in found.tables.items() if table.points} == {
        kind for kind, table in greedy.tables.items() if table.points
    }


def test_what_is_measured_is_what_the_passes_take(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that waits for 150 ms is found to take that, and a layer of the drafter is not."""
    verify = HFTarget.verify

    def slow(*given: Any, **more: Any) -> Any:
        sleep(0.15)
        return verify(*given, **more)

    monkeypatch.setattr(HFTarget, "verify", slow)
    wanted = ProfilePlan((1, 20), (30,), (1,), (3,), (2,), repetitions=1)
    measuring = Measuring(wanted, model, None, "ngram", "tiny")
    measuring._decoder.target.runs_on = False  # or all of the passes that are run together would wait once
    found = measuring.run("tiny")
    assert 0.15 <= (found.verify(1, 40) or 0.0) <= (found.verify(20, 40) or 0.0) < 0.3
    assert (found.draft(3, 2) or 0.0) < 0.15
    assert (found.commit(1) or 0.0) < 0.15
    assert 0.0 < (found.rest(12) or 0.0) < 0.15


def test_what_the_drafter_takes_to_read_a_prompt_is_neither_the_targets_reading_nor_a_layer(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ModelDrafter._read

    def slow(*given: Any) -> Any:
        sleep(0.15)
        return read(*given)

    monkeypatch.setattr(ModelDrafter, "_read", slow)
    found = measured(model, "draft-model:skip=2", ProfilePlan((1, 4), (30,), (1,), (3,), (2,), repetitions=1))
    assert 0.15 <= (found.catch_up(29) or 0.0) < 0.3
    assert (found.read(30) or 0.0) < 0.15
    assert (found.draft(3, 2) or 0.0) < 0.15


def test_a_context_that_the_model_has_no_room_for_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match=r"a context of 500 tokens, and \d+ new ones .* the model's context of 512"):
        measured(model, "ngram", ProfilePlan(contexts=(500,), repetitions=1))


def test_progress_is_told(model: Any) -> None:
    said: list[tuple[int, int]] = []
    Measuring(SMALL, model, None, "ngram", "tiny").run("tiny", lambda done, all_: said.append((done, all_)))
    assert said == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_what_fails_while_it_is_measured_is_told(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("the machine is on fire")

    monkeypatch.setattr(HFTarget, "commit", fails)
    with pytest.raises(RuntimeError, match="the machine is on fire"):
        measured(model, "ngram")


def test_of_a_chain_that_is_run_ahead_its_own_pass_is_left_out_and_not_one_that_was_not(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that is run ahead takes less, so that with another one's time a layer would cost next to nothing."""
    verify, layer, besides = 0.5, 0.02, 0.001  # seconds
    measuring = Measuring(SMALL, model, None, "draft-model:skip=2", "tiny")
    drafter = SimpleNamespace(was_ahead=False)
    round_ = Round(TokenTree.root(1), ints([0]), ints([1]), spans=(Span("verify", 0.0, verify),))

    def step(engine: Any, sequences: list[Any], shape: Shape) -> tuple[float, list[Round]]:
        drafter.was_ahead = shape.chains > 0
        drafted = shape.nodes - 1  # all rounds of these chains were run in the time of the first
        return (CHAINED * (verify + layer * drafted + besides) if shape.chains == CHAINED else 0.0), [round_]

    monkeypatch.setattr(measuring, "_step", step)
    engine = Mock(parts=SimpleNamespace(chains_on=True))
    measuring._run_ahead(engine, drafter, context=8)
    noted = measuring._noted.table("chain").points
    assert noted == {(drafted,): pytest.approx(layer * drafted + besides) for drafted in CHAINS}
