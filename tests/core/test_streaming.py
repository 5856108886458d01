"""A stream may be left, closed or cancelled at any time, by anybody; the model is free as soon as nothing runs."""

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import attrs
import numpy as np
import pytest
import torch

import talon_core
from talon_core import Chunk, Engine, Request, Result, TableTarget
from talon_core.decoding.decoder import Decoder
from talon_core.errors import BusyError
from talon_core.request import FINISH_REASONS, Criterion
from talon_core.runtime.modules import Modules
from talon_core.runtime.repeating import RECORDED_AFTER
from talon_core.sessions import RepeatableSession
from talon_core.target import NOT_GREEDY
from talon_kernels.acceleration import Acceleration
from talon_kernels.native import unavailable
from talon_strategies.rules.match import Match
from talon_tests.tiny_models import tiny_model

PROMPT = torch.tensor([[5, 9, 33, 9, 33, 41, 5, 9]])
PARTS: dict[str, Any] = {"drafter": "ngram", "policy": "talon:budget=6,top_k=2"}
GREEDY: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(PROMPT)}


@pytest.fixture
def model() -> Any:
    return tiny_model("llama")


def plain(model: Any, tokens: int, prompt: torch.Tensor = PROMPT) -> list[int]:
    out = model.generate(prompt, max_new_tokens=tokens, **{**GREEDY, "attention_mask": torch.ones_like(prompt)})
    return [int(token) for token in out[0, prompt.shape[1] :]]


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def assert_as_it_was(model: Any, before: str) -> None:
    assert model.config._attn_implementation == before
    assert all("forward" not in module.__dict__ and not module._forward_hooks for module in model.modules())


def test_a_stream_is_an_iterator_and_closes_itself_at_the_end_of_a_block(model: Any) -> None:
    decoder = talon_core.load(model, **PARTS)
    with decoder.stream(PROMPT, max_new_tokens=20) as stream:
        assert isinstance(stream, Iterator)
        first = next(stream)
        assert isinstance(first, Chunk)
    assert list(stream) == []
    assert stream.result().finish_reason == "interrupted"
    assert stream.result().token_ids == plain(model, 20)[: len(first.round.tokens)]


@pytest.mark.parametrize("drafter", ["ngram", "draft-model:skip=1"])
@pytest.mark.usefixtures("without_collector")
def test_a_model_is_free_as_soon_as_a_stream_is_left(model: Any, drafter: str) -> None:
    before, expected = model.config._attn_implementation, plain(model, 12)
    decoder = talon_core.load(model, policy="talon:budget=6,top_k=2", drafter=drafter)
    stream = decoder.stream(PROMPT, max_new_tokens=20)
    for _ in stream:
        break
    assert_as_it_was(model, before)
    assert plain(model, 12) == expected
    assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == expected


@pytest.mark.usefixtures("without_collector")
def test_a_model_is_free_where_the_consumer_raises_and_its_error_is_kept(model: Any) -> None:
    before, expected = model.config._attn_implementation, plain(model, 12)
    decoder = talon_core.load(model, **PARTS)

    def consume() -> None:
        for _ in decoder.stream(PROMPT, max_new_tokens=20):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as kept:
        consume()
    assert_as_it_was(model, before)
    assert plain(model, 12) == expected
    assert kept.tb is not None  # whose frames hold the stream


@pytest.mark.usefixtures("without_collector")
def test_nothing_keeps_a_stream_that_was_left_or_has_failed(model: Any) -> None:
    decoder = talon_core.load(model, **PARTS)
    left = decoder.stream(PROMPT, max_new_tokens=20)
    next(left)
    failed = decoder.stream(PROMPT, max_new_tokens=20, stopping_criteria=[lambda ids, _: 1 / 0])
    with pytest.raises(ZeroDivisionError):
        next(failed)
    kept = [weakref.ref(stream.generation._batch) for stream in (left, failed)]
    kept.append(weakref.ref(failed.generation.sequence))  # the other one has its slot until the next step
    del left, failed
    assert [ref() for ref in kept] == [None, None, None]


@pytest.mark.parametrize("drafter", ["ngram", "draft-model:skip=1"])
def test_plain_decoding_and_other_decoders_between_two_chunks_change_nothing(model: Any, drafter: str) -> None:
    other_prompt = torch.tensor([[7, 8, 7, 8, 7]])
    expected, others = plain(model, 24), plain(model, 24, other_prompt)
    one, other = (talon_core.load(model, policy="talon:budget=6,top_k=2", drafter=drafter) for _ in range(2))
    first, second = one.stream(PROMPT, max_new_tokens=24), other.stream(other_prompt, max_new_tokens=24)
    model.train()  # which the passes of a session are not in
    for _ in zip(first, second, strict=False):
        model.eval()
        assert plain(model, 5) == expected[:5]
        model.set_attn_implementation("eager")
    list(first)
    list(second)
    assert first.result().token_ids == expected
    assert second.result().token_ids == others
    assert model.config._attn_implementation == "eager"


def test_weights_that_change_between_two_rounds_are_the_ones_that_are_used(model: Any) -> None:
    decoder = talon_core.load(model, **PARTS)
    stream = decoder.stream(PROMPT, max_new_tokens=12)
    next(stream)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    tokens = [int(token) for chunk in stream for token in chunk.round.tokens]
    assert set(tokens) == {0}  # of equal logits the first


@pytest.mark.parametrize("drafter", ["ngram", "draft-model:skip=1"])
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 3}], ids=["greedy", "sampled"])
def test_streams_of_one_decoder_stand_at_different_places_and_each_comes_out_right(
    model: Any, drafter: str, options: dict[str, Any]
) -> None:
    def made() -> Decoder:
        return talon_core.load(model, policy="talon:budget=6,top_k=2", drafter=drafter)

    prompts = [PROMPT[0].tolist(), [7, 8, 7, 8, 7], [*PROMPT[0].tolist(), 9]]
    expected = [made().generate(prompt, max_new_tokens=16, **options).token_ids for prompt in prompts]
    decoder = made()
    first, second = (decoder.stream(prompt, max_new_tokens=16, **options) for prompt in prompts[:2])
    for _ in range(3):
        next(first)
    next(second)
    left = decoder.stream(prompts[0], max_new_tokens=16, **options)
    next(left)
    third = decoder.stream(prompts[2], max_new_tokens=16, **options)  # begins as the first does, which is not over
    assert decoder.generate(prompts[1], max_new_tokens=16, **options).token_ids == expected[1]
    for stream in (third, second, first):
        for _ in stream:
            break
    del left
    for stream in (second, first, third):
        list(stream)
    assert [stream.result().token_ids for stream in (first, second, third)] == expected
    assert {stream.result().finish_reason for stream in (first, second, third)} == {"length"}


def test_a_stream_that_nobody_has_any_more_gives_its_slot_back(model: Any) -> None:
    decoder = talon_core.load(model, **PARTS)
    for _ in range(5):
        for _ in decoder.stream(PROMPT, max_new_tokens=20):
            break
    assert len(decoder.engine._running) == 1  # the last one, until the next step
    stream = decoder.stream([1, 2, 3], max_new_tokens=8)
    list(stream)
    assert not decoder.engine._running


def test_a_decode_that_runs_refuses_a_second_one(model: Any) -> None:
    one, other = (talon_core.load(model, **PARTS) for _ in range(2))
    refused: list[BaseException] = []

    def meanwhile(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for attempt in (
            lambda: one.generate(PROMPT, max_new_tokens=5),
            lambda: other.generate(PROMPT, max_new_tokens=5),
            lambda: talon_core.load(model, policy="none"),
        ):
            with pytest.raises(BusyError, match="this model is already being decoded"):
                attempt()
        return scores

    def thread() -> None:
        try:
            one.generate(PROMPT, max_new_tokens=3, logits_processor=[meanwhile])
        except BaseException as error:
            refused.append(error)

    running = threading.Thread(target=thread)
    running.start()
    running.join()
    assert not refused
    assert one.generate(PROMPT, max_new_tokens=3).token_ids == plain(model, 3)


# On a table, where rounds can be held


class Slow(TableTarget):
    """Counts up; each pass waits until it may go on, so that a test can do something in the middle of a round."""

    def __init__(self, vocab: int = 50) -> None:
        super().__init__(np.roll(np.eye(vocab), 1, axis=1) * 9)
        self.inside, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.sessions = 0

    @contextmanager
    def session(self) -> Iterator[None]:
        self.sessions += 1
        yield

    def verify(self, trees: Any, greedy: Any = NOT_GREEDY) -> Any:
        self.inside.release()
        assert self.go_on.acquire(timeout=20)
        return super().verify(trees, greedy)


@attrs.frozen
class Numbers:
    """What is needed of a frontend: a token's text is its number, and the last one is certain only at the end."""

    def request(self, prompt: Any, options: Any) -> Request:
        return Request(ids=np.array(prompt), **{"max_new_tokens": 9, **options})

    def text(self, token_ids: Any) -> str:
        return "".join(f"{token}." for token in token_ids)

    def text_stream(self) -> Any:
        return self

    def push(self, token_ids: Any) -> str:
        return self.text(token_ids)

    def end(self) -> str:
        return ""


def counting(target: TableTarget) -> Decoder:
    return Decoder(target, Match(), frontend=Numbers())  # type: ignore[arg-type]  # as much of one as is used


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.append(work()))
    thread.start()
    return thread, came


def test_a_stream_is_closed_from_another_thread_and_the_round_that_runs_is_the_last() -> None:
    target = Slow()
    stream = counting(target).stream([0])
    thread, came = in_thread(lambda: [chunk.text for chunk in stream])
    target.go_on.release()
    for _ in range(2):
        assert target.inside.acquire(timeout=20)
    for busy in (stream, stream.generation):
        with pytest.raises(BusyError, match="this model is already being decoded, by another thread"):
            next(busy)
    stream.close()  # returns, though a round runs
    assert list(stream) == []
    target.go_on.release()
    thread.join(timeout=20)
    assert came == [["1.", "2."]]
    result = stream.result()
    assert (result.token_ids, result.text, result.finish_reason) == ([1, 2], "1.2.", "interrupted")


@pytest.mark.parametrize("prompts", [1, 3])
def test_generate_is_cancelled_from_another_thread(prompts: int) -> None:
    target, cancel = Slow(), threading.Event()
    prompt: Any = [0] if prompts == 1 else [[0]] * prompts
    options: dict[str, Any] = {"batch_size": 2} if prompts > 1 else {}
    thread, came = in_thread(lambda: counting(target).generate(prompt, cancel=cancel, **options))
    assert target.inside.acquire(timeout=20)
    cancel.set()
    target.go_on.release()
    thread.join(timeout=20)
    results: list[Result] = came[0] if prompts > 1 else came
    expected = [([1], "interrupted")] * min(prompts, 2) + [([], "interrupted")] * (prompts - 2)
    assert [(result.token_ids, result.finish_reason) for result in results] == expected


def test_what_is_no_event_is_refused_in_words() -> None:
    for call in (counting(Slow()).generate, counting(Slow()).stream):
        with pytest.raises(ValueError, match=r"cancel is 5; it must be a threading.Event"):
            call([0], cancel=5)  # type: ignore[operator]


def test_a_run_without_a_consumer_is_one_session_and_a_stream_has_one_for_each_round() -> None:
    target = Slow()
    for _ in range(40):
        target.go_on.release()
    decoder = counting(target)
    decoder.generate([0])
    decoder.generate([[0], [3]])
    assert target.sessions == 2
    list(decoder.stream([0]))
    assert target.sessions == 2 + 9


class SetUp(RepeatableSession):
    """Says which way it was entered."""

    def __init__(self, entered: list[str]) -> None:
        self.entered = entered

    def __enter__(self) -> None:
        self.entered.append("anew")

    def __exit__(self, *_: object) -> None:
        pass

    def again(self) -> AbstractContextManager[object]:
        self.entered.append("again")
        return nullcontext()


def test_a_session_is_set_up_anew_where_something_begins_and_entered_again_where_all_go_on() -> None:
    class Target(TableTarget):
        def session(self) -> SetUp:
            return SetUp(entered)

    entered: list[str] = []
    decoder = counting(Target(np.roll(np.eye(9), 1, axis=1) * 9))
    first, second = decoder.stream([0]), decoder.stream([3])
    for stream in (first, first, second, first, second):
        next(stream)
    decoder.generate([0])
    next(first)
    assert entered == ["anew", "again", "anew", "again", "again", "anew", "again"]


def test_who_waits_for_a_slot_lets_no_session_be_set_up_anew_in_each_step() -> None:
    class Target(TableTarget):
        def session(self) -> SetUp:
            return SetUp(entered)

    entered: list[str] = []
    engine = Engine(Target(np.roll(np.eye(9), 1, axis=1) * 9), Match(), slots=1)
    sequences = [engine.submit(Request(np.array([start]), 3)) for start in (0, 4)]
    while not sequences[1].finished:
        engine.step()
    assert entered == ["anew", *["again"] * 5]


class Late(TableTarget):
    """Each pass takes a second of its own clock."""

    def __init__(self) -> None:
        super().__init__(np.roll(np.eye(9), 1, axis=1) * 9)
        self.now = 0.0

    def verify(self, trees: Any, greedy: Any = NOT_GREEDY) -> Any:
        self.now += 1.0
        return super().verify(trees, greedy)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, ([1], "time")), (2.5, ([1, 2, 3], "time")), (7.0, ([1, 2, 3, 4, 5, 6], "length")), (None, (6, "length"))],
)
def test_the_round_in_which_the_time_is_over_is_the_last(seconds: float | None, expected: Any) -> None:
    target = Late()
    decoder = counting(target)
    decoder.engine = Engine(target, decoder.rule, now=lambda: target.now)
    results = [decoder.generate([0], max_seconds=seconds, max_new_tokens=6)]
    results += decoder.generate([[0], [0], [0]], batch_size=2, max_seconds=seconds, max_new_tokens=6)
    tokens, reason = expected
    for result in results:  # each sequence has its own time
        assert result.finish_reason == reason
        assert result.token_ids == tokens if seconds is not None else len(result.token_ids) == tokens


def test_max_time_is_that_time(model: Any) -> None:
    decoder = talon_core.load(model, **PARTS)
    request = decoder.frontend.request(PROMPT, {"max_time": 2.5})
    assert (request.max_seconds, request.criteria) == (2.5, ())
    assert decoder.generate(PROMPT, max_time=0, max_new_tokens=50).finish_reason == "time"
    assert [one.finish_reason for one in decoder.generate([PROMPT[0], PROMPT[0]], max_time=0)] == ["time", "time"]
    for wrong in ("x", -1, float("nan")):
        with pytest.raises(ValueError, match=r"max_time is .*; it must be a number of seconds, at least 0"):
            decoder.generate(PROMPT, max_time=wrong)


def test_every_reason_is_documented() -> None:
    assert set(FINISH_REASONS) == {"eos", "length", "stop", "time", "interrupted"}
    said = Result.__doc__
    assert said is not None
    assert all(f'"{reason}"' in said for reason in FINISH_REASONS)


# What goes wrong in a round


def raising(error: type[BaseException]) -> Criterion:
    def criterion(ids: torch.Tensor) -> bool:
        if ids.shape[1] > 2:
            raise error
        return False

    return criterion


def test_a_criterion_that_raises_stop_iteration_does_not_look_like_the_end() -> None:
    decoder = counting(TableTarget(np.eye(9)))
    stream = decoder.stream([0], criteria=(raising(StopIteration),))
    with pytest.raises(RuntimeError, match="StopIteration was raised in a round") as caught:
        list(stream)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert list(stream) == []
    with pytest.raises(RuntimeError, match="StopIteration was raised in a round"):
        decoder.generate([0], criteria=(raising(StopIteration),))


class Swallowing(TableTarget):
    """Its session hides what goes wrong inside."""

    @contextmanager
    def session(self) -> Iterator[None]:
        with suppress(ZeroDivisionError):
            yield


def test_a_session_that_swallows_an_error_does_not_hide_it() -> None:
    decoder = counting(Swallowing(np.eye(9)))
    for run in (lambda options: decoder.generate([0], **options), lambda options: list(decoder.stream([0], **options))):
        with pytest.raises(ZeroDivisionError):
            run({"criteria": (raising(ZeroDivisionError),)})


class Holding(Numbers):
    """Token 2 is half a character."""

    def push(self, token_ids: Any) -> str:
        return "" if token_ids[-1] == 2 else self.text(token_ids)

    def end(self) -> str:
        return "?"


def holding() -> Decoder:
    return Decoder(TableTarget(np.roll(np.eye(9), 1, axis=1) * 9), Match(), frontend=Holding())  # type: ignore[arg-type]


def test_half_a_character_at_the_place_where_a_stream_was_closed_is_in_neither_text() -> None:
    decoder = holding()
    stream = decoder.stream([0])
    texts = [next(stream).text, next(stream).text]
    stream.close()
    assert "".join(map(str, texts)) == stream.result().text == "1."


def test_half_a_character_is_in_neither_text_where_a_stream_is_closed_while_a_round_runs() -> None:
    decoder = holding()

    def close(ids: torch.Tensor) -> bool:
        if len(ids[0]) == 3:
            stream.close()
        return False

    stream = decoder.stream([0], criteria=(close,))
    assert "".join(str(chunk.text) for chunk in stream) == stream.result().text == "1."


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same-thread", "another-thread"])
def test_who_begins_while_another_enters_the_model_is_refused(
    monkeypatch: pytest.MonkeyPatch, model: Any, elsewhere: bool
) -> None:
    """Between looking whose turn it is and taking the model nobody may come in."""
    decoder = talon_core.load(model, **PARTS)
    stream = decoder.stream(PROMPT, max_new_tokens=12)
    next(stream)
    runner, entered = decoder.target.runner, type(decoder.target.runner).session  # type: ignore[attr-defined]

    def intrude() -> None:
        with pytest.raises(BusyError, match="this model is already being decoded"):
            decoder.generate([7, 8, 9], max_new_tokens=4)

    def meanwhile(self: Any) -> Any:
        monkeypatch.undo()
        if elsewhere:
            thread, came = in_thread(intrude)
            thread.join(timeout=20)
            assert came == [None]
        else:
            intrude()
        return entered(self)

    monkeypatch.setattr(type(runner), "session", meanwhile)
    decoder.engine._sessions._known.clear()  # so that sessions are asked for anew
    list(stream)
    assert stream.result().token_ids == plain(model, 12)


def test_a_result_taken_midway_stays_as_it_was(model: Any) -> None:
    stream = talon_core.load(model, **PARTS).stream(PROMPT, max_new_tokens=12)
    next(stream)
    midway = stream.result()
    before = (list(midway.token_ids), len(midway.rounds))
    list(stream)
    assert (midway.token_ids, len(midway.rounds)) == before


@pytest.mark.parametrize("parts", [{"policy": None}, PARTS, {**PARTS, "drafter": "draft-model:skip=1"}], ids=str)
def test_rounds_whose_passes_are_recorded_look_at_no_mode_of_any_module(
    monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any]
) -> None:
    if (why := unavailable()) is not None:
        pytest.skip(f"passes are recorded by the native kernels, and {why}")
    model = tiny_model("llama", hidden_size=128)  # whose heads the kernels take
    decoder, looked = talon_core.load(model, **parts), []
    mode = Modules.mode
    monkeypatch.setattr(Modules, "mode", lambda self: looked.append(self) or mode(self))
    stream, each = decoder.stream(PROMPT, max_new_tokens=40), []
    for _ in stream:
        each.append(len(looked))
        looked.clear()
    assert each[0] > 0  # the prompt is read by the network itself
    assert each.count(0) > len(each) // 3  # and so are the first passes of each kind
    model.train()
    again = decoder.stream(PROMPT, max_new_tokens=40)
    for _ in again:
        assert all(module.training for module in model.modules())
    assert again.result().token_ids == stream.result().token_ids == plain(model.eval(), 40)


def test_an_accelerator_that_fails_where_a_pass_would_be_written_down_is_no_fault_of_the_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if (why := unavailable()) is not None:
        pytest.skip(f"passes are recorded by the native kernels, and {why}")
    model = tiny_model("llama", hidden_size=128)
    decoder = talon_core.load(model, policy=None)
    stream = decoder.stream(PROMPT, max_new_tokens=20)
    for _ in range(RECORDED_AFTER):
        next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(Acceleration, "again", lambda self: ExitStack().enter_context(failing()))
        with pytest.raises(ValueError, match="broken"):
            next(stream)
    assert_as_it_was(model, "sdpa")
    target: Any = decoder.target
    executor = target.runner.executor
    again = decoder.stream(PROMPT, max_new_tokens=20)
    assert [token for chunk in again for token in chunk.round.tokens.tolist()] == plain(model, 20)
    assert (executor.recorded, executor.failure) == (1, None)


@contextmanager
def failing() -> Iterator[None]:
    raise ValueError("broken")
    yield


@pytest.mark.usefixtures("without_collector")
def test_the_model_of_a_drafter_is_given_up_with_it() -> None:
    decoder = talon_core.load(tiny_model("llama", hidden_size=128), **{**PARTS, "drafter": "draft-model:skip=1"})
    decoder.generate(PROMPT, max_new_tokens=12)
    drafter: Any = decoder.drafter
    kept = [weakref.ref(part) for part in (drafter._runner, drafter._runner.model, drafter.executor.cache)]
    del decoder, drafter
    assert [one() for one in kept] == [None, None, None]
