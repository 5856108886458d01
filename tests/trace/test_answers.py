"""What a drafter of texts says along a text is asked for once, and is what it says to any policy."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Drafter, Proposed
from talon_core.errors import PluginError
from talon_core.plugins.registry import load_registry
from talon_core.policy import Growth
from talon_core.target import Target
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace import answers as module
from talon_core.trace import code, trying
from talon_core.trace.answers import ASKED, Answers
from talon_core.trace.folder import Trace, read_trace
from talon_core.trace.methods import parse_method
from talon_core.trace.own_time import with_own_time
from talon_core.trace.replay import Method, Replay
from talon_core.trace.run import replayed, tried_on
from talon_core.trace.trying import Done, Trying
from talon_core.tree import TokenTree
from talon_drafters import HybridSpec, Ngram
from talon_strategies import Chain, Match
from talon_tests.prices import PricesByLength

POLICIES = (
    *("none", "chain:length=4", "talon:budget=16", "talon", "eagle2:budget=12", "opt-tree", "svip", "static", "ddtree"),
    *("adaedl", "bandit", "caddtree", "talon-cost", "taps:of=talon"),
    *("taps:of=gammatune", "bandit:of=chain[length=2]+talon-cost"),  # which are asked tree by tree
)
DRAFTERS = ("ngram", "pld", "lookahead:window=0", "hybrid:of=ngram+pld")

registry = cache(load_registry)


@pytest.fixture(autouse=True)
def kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "answers"


@pytest.fixture(params=["shipped", "repeating"])
def trace(request: pytest.FixtureRequest, small: Any, recorded: Callable[..., Trace]) -> Trace:
    """Texts of a real model, and of a tiny one that soon repeats itself, in which trees become deep."""
    return read_trace(SHIPPED) if request.param == "shipped" else recorded(small, "ngram", max_new_tokens=32)


def method_of(spec: str, trace: Trace) -> Method:
    return parse_method(spec, trace, registry())


def asking_anew(replay: Replay, method: Method) -> list[Done]:
    return [Done.of(replay.text(method, text)) for text in replay.trace]


def refuse(*_: Any) -> Any:
    raise AssertionError("it is asked")


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_policies_have_the_rounds_that_they_have_where_it_is_asked_again(
    trace: Trace, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*trace]
    Trying(Replay(trace), texts).done(method_of(f"{drafter}/chain", trace))
    monkeypatch.setattr(module, "whole_rows_of", refuse)  # all is known by now
    monkeypatch.setattr(trying, "FEWEST", 2)
    alone = []
    for costs in (None, PricesByLength()):
        replay = Replay(trace, costs, timed=False)
        for policy in POLICIES:
            method = method_of(f"{drafter}/{policy}", trace)
            expected = asking_anew(replay, method)
            with monkeypatch.context() as patch:
                patch.setattr(Replay, "text", lambda *told, text=Replay.text: alone.append(1) or text(*told))
                assert Trying(replay, texts).done(method) == expected, policy
    assert len(alone) < len(texts) * len(POLICIES)  # a half of what there is, with and without costs


@pytest.mark.parametrize("few", [{"depth": 2}, {"candidates": 1}])
def test_it_is_asked_again_where_that_does_not_answer_all(
    trace: Trace, few: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = attrs.evolve(ASKED, **few)
    monkeypatch.setattr(module, "ASKED", fewer)
    monkeypatch.setattr(trying, "ASKED", fewer)
    asked: list[int] = []
    text = Replay.text
    for policy in POLICIES:
        method, replay = method_of(f"ngram/{policy}", trace), Replay(trace)
        expected = asking_anew(replay, method)
        with monkeypatch.context() as patch:
            patch.setattr(Replay, "text", lambda *told: asked.append(told[2].prompt) or text(*told))
            assert Trying(replay, [*trace]).done(method) == expected, policy
    assert asked


@attrs.frozen
class AsksForLaws(Chain):
    """Drafts one token, the likelier of the first two by the whole law; the second where there is none."""

    name = "asks-for-laws"

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        try:
            law = candidates.law(0)
        except ValueError:
            return Growth(candidates.best(2)[-1:])
        return Growth(np.array([int(law[candidates.tokens[0, 0]] < 0)]))


@attrs.frozen
class NeedsLaws(AsksForLaws):
    """The same, and an error where there is none."""

    name = "needs-laws"

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        candidates.law(0)
        return super().grow(tree, candidates, choices)


@pytest.mark.parametrize("policy", [AsksForLaws(length=1), NeedsLaws(length=1)])
def test_it_is_asked_again_for_laws(trace: Trace, policy: Chain) -> None:
    method, replay = Method(policy.name, policy, Match(), Ngram()), Replay(trace)
    done = Trying(replay, [*trace]).done(method)
    assert done == asking_anew(replay, method)
    assert done == asking_anew(replay, attrs.evolve(method, policy=Chain(length=1)))


def test_an_error_of_a_policy_is_its_own(trace: Trace) -> None:
    @attrs.frozen
    class Fails(Chain):
        name = "fails"

        def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
            raise KeyError("no idea")

    with pytest.raises(PluginError, match="'fails'"):
        Trying(Replay(trace), [*trace]).done(Method("fails", Fails(), Match(), Ngram()))


def test_the_best_trees_are_those_of_all_that_it_knows(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = replayed(trace, [method_of("ngram/talon", trace)], 1).tried
    monkeypatch.setattr(Answers, "of", lambda self, text: None)
    monkeypatch.setattr(trying, "superset_of", lambda trace, depth: ASKED)
    (asked,) = replayed(trace, [method_of("ngram/talon", trace)], 1).tried
    assert kept == asked


def answers_of(trace: Trace) -> Answers:
    return Answers(Ngram(), trace)


def test_what_is_kept_is_read_and_not_asked_for(kept_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = read_trace(SHIPPED)
    first = [answers_of(trace).of(text) for text in trace]
    (folder,) = kept_in.iterdir()
    assert len([*folder.iterdir()]) == 4
    monkeypatch.setattr(module, "whole_rows_of", refuse)
    for one, text in zip(first, trace, strict=True):
        again = answers_of(trace).of(text)
        assert one is not None
        assert again is not None
        assert one.rows is not None
        assert again.rows is not None
        assert one.along is not None
        assert again.along is not None
        for name in ("starts", "above", "nodes", "logp", "whole"):
            assert getattr(one.rows, name).tolist() == getattr(again.rows, name).tolist()
        everything = range(len(one.rows.above))
        assert one.rows.offered(everything, 9)[0].tolist() == again.rows.offered(everything, 9)[0].tolist()
        assert one.along.ranks.tolist() == again.along.ranks.tolist()


def test_what_killed_processes_have_left_is_taken_away_after_a_while(kept_in: Path) -> None:
    trace = read_trace(SHIPPED)
    folder = answers_of(trace).folder
    folder.mkdir(parents=True)
    old, new = folder / "tmpold.unfinished", folder / "tmpnew.unfinished"
    for left, age in ((old, 2 * module.FORGOTTEN), (new, 1.0)):
        left.write_bytes(b"half")
        os.utime(left, (time.time() - age,) * 2)
    assert answers_of(trace).of(next(iter(trace))) is not None
    assert (old.exists(), new.exists()) == (False, True)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def changed(file: Path) -> None:
    """Its numbers, not its header: log-probabilities above 0."""
    data = bytearray(file.read_bytes())
    data[-4000:] = bytes([0x3F]) * 4000
    file.write_bytes(data)


def of_another_text(file: Path) -> None:
    other = next(one for one in sorted(file.parent.iterdir()) if one != file)
    file.write_bytes(other.read_bytes())


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("spoil", [cut, changed, of_another_text, a_folder])
def test_it_is_asked_again_where_a_file_is_not_what_was_kept(kept_in: Path, spoil: Callable[[Path], None]) -> None:
    trace = read_trace(SHIPPED)
    for text in trace:
        answers_of(trace).of(text)
    text = next(iter(trace))
    file = answers_of(trace).folder / trace.file(text.set, text.prompt).name
    whole = file.read_bytes()
    spoil(file)
    assert answers_of(trace).of(text) is not None
    method = method_of("ngram/talon", trace)
    assert Trying(Replay(trace), [*trace]).done(method) == asking_anew(Replay(trace), method)
    assert spoil is a_folder or file.read_bytes() == whole


def test_without_a_place_to_keep_it_is_asked_each_time(kept_in: Path) -> None:
    kept_in.parent.write_text("no folder")
    trace = read_trace(SHIPPED)
    method = method_of("ngram/talon", trace)
    assert Trying(Replay(trace), [*trace]).done(method) == asking_anew(Replay(trace), method)
    assert kept_in.parent.read_text() == "no folder"


@attrs.frozen
class OfFiles(Ngram):
    """A look-up whose files may change."""

    name = "of-files"
    contents: str = attrs.field(default="", eq=False, repr=False)

    def files_hash(self) -> str:
        return self.contents


def test_it_is_kept_apart_by_options_files_code_and_trace(
    tiny: Any, recorded: Callable[..., Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = read_trace(SHIPPED)
    of = [Answers(spec, trace) for spec in (Ngram(), Ngram(max_match=3), OfFiles(), OfFiles(contents="new"))]
    of += [Answers(HybridSpec("ngram+pld"), trace), Answers(Ngram(), recorded(tiny, "ngram"))]
    monkeypatch.setattr(code, "digest", lambda where: "another")
    of.append(Answers(Ngram(), trace))
    assert len({one.key for one in of}) == len(of)
    assert Answers(Ngram(), trace).key == of[-1].key
    assert len({one.folder for one in of}) == len(of) - 1  # the code is told by the files, which are written again


def test_what_other_code_has_said_is_asked_for_again(kept_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = read_trace(SHIPPED)
    text = next(iter(trace))
    asked: list[int] = []
    ask = module.whole_rows_of
    monkeypatch.setattr(module, "whole_rows_of", lambda *told: asked.append(1) or ask(*told))
    answers_of(trace).of(text)
    monkeypatch.setattr(code, "digest", lambda where: "another")
    for _ in range(2):
        answers_of(trace).of(text)
    assert len(asked) == 2
    assert len([*kept_in.rglob("*.safetensors")]) == 1


def test_of_code_that_nobody_can_tell_nothing_is_kept(kept_in: Path) -> None:
    @attrs.frozen
    class InAFunction(Ngram):
        name = "in-a-function"

    trace = read_trace(SHIPPED)
    for text in trace:
        assert Answers(InAFunction(), trace).of(text) is not None
    assert not kept_in.exists()


def test_laws_of_the_recorded_drafter_are_not_those_of_another(
    tiny: Any, recorded: Callable[..., Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = recorded(tiny, laws=True, max_new_tokens=8, nodes=2, depth=2)
    monkeypatch.setattr(trying, "FEWEST", 2)
    for policy in (AsksForLaws(length=1), NeedsLaws(length=1)):
        method, replay = Method(policy.name, policy, Match(), Ngram()), Replay(trace)
        assert Trying(replay, [*trace]).done(method) == asking_anew(replay, method)


@attrs.frozen
class ByWidth(Chain):
    """Looks at how many candidates it is shown."""

    name = "by-width"

    def width(self, tree: TokenTree) -> int:
        return 0 if len(tree) > self.length else 9

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(1 + candidates.width % 2)[: self.budget - len(tree)])


@pytest.mark.parametrize("fewest", [2, 99])
def test_as_many_candidates_are_shown_as_it_offers(trace: Trace, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "FEWEST", fewest)
    method, replay = Method("by-width", ByWidth(length=6), Match(), Ngram()), Replay(trace)
    assert Trying(replay, [*trace]).done(method) == asking_anew(replay, method)


def test_another_process_finds_it() -> None:
    program = (
        "from pathlib import Path; from talon_core.trace.answers import Answers; from talon_drafters import Ngram; "
        "from talon_core.trace.folder import read_trace; import sys; "
        "print(Answers(Ngram(), read_trace(Path(sys.argv[1]))).key)"
    )
    told = subprocess.run([sys.executable, "-c", program, str(SHIPPED)], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == answers_of(read_trace(SHIPPED)).key


def test_a_recording_asks_a_drafter_of_texts(
    tiny: Any, recorder: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = recorder(tiny, "ngram").run(tmp_path / "trace").trace
    monkeypatch.setattr(module, "whole_rows_of", refuse)
    assert all(answers_of(trace).of(text) is not None for text in trace)
    (tried,) = replayed(trace, [method_of("chain", trace)], 1).tried
    assert tried.totals.outside == 0


@attrs.define
class Clock:
    """Stands still but where it is set forward."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


CLOCK = Clock()


class Slowly(Drafter):
    """Takes half a second for each layer."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.max_depth = drafter.max_depth

    def open(self, slot: int, prompt: Any, room: int) -> None:
        self.drafter.open(slot, prompt, room)

    def propose(self, frontiers: Any) -> Proposed:
        CLOCK.seconds += 0.5
        return self.drafter.propose(frontiers)

    def commit(self, committed: Any) -> None:
        self.drafter.commit(committed)


@attrs.frozen
class Slow(Ngram):
    """Its drafter is slow."""

    name = "slow"

    def open(self, target: Target) -> Drafter:
        return Slowly(super().open(target))


@pytest.mark.parametrize("timed", [[0], [1, 3]])
def test_what_it_takes_itself_is_taken_on_some_texts(timed: list[int]) -> None:
    trace = read_trace(SHIPPED)
    replay, names = Replay(trace, PricesByLength(), now=CLOCK), trace.texts()
    method = Method("slow", Chain(length=1), Match(), Slow())
    found = tried_on(replay, [method], [*trace], [names[place] for place in timed])
    some = [totals for ((totals, _),) in found]
    each = [Done.of(replay.text(method, text)).totals for text in trace]
    assert [place for place, one in enumerate(some) if one.timed_texts] == timed
    assert [one.drafter_seconds for one in each] == [0.5 * (one.target_passes - 1) for one in each]
    for place, (one, other) in enumerate(zip(some, each, strict=True)):
        assert one.target_passes == other.target_passes
        if place in timed:
            assert one.drafter_seconds == other.drafter_seconds
            assert one.predicted_seconds == pytest.approx(other.predicted_seconds)
    rounds = sum(each[place].target_passes for place in timed)
    a_round = sum(each[place].drafter_seconds or 0.0 for place in timed) / rounds
    for place, one in enumerate(with_own_time(some)):
        assert one.drafter_seconds is not None
        if place not in timed:
            assert one.drafter_seconds == pytest.approx(a_round * one.target_passes)
            measured = each[place].drafter_seconds or 0.0
            assert one.predicted_seconds == pytest.approx(
                (each[place].predicted_seconds or 0.0) - measured + one.drafter_seconds
            )


def test_its_seconds_are_told_where_there_are_any() -> None:
    trace = read_trace(SHIPPED)
    methods = [method_of(spec, trace) for spec in ("ngram/talon", "talon")]
    of_texts, of_a_model = replayed(trace, methods, 1, costs=PricesByLength()).as_dict()["methods"]
    assert 0 < of_texts["drafter_seconds"] < of_texts["predicted_seconds"]
    assert "drafter_seconds" not in of_a_model
    for costs, timed in ((None, True), (PricesByLength(), False)):
        (untold, _) = replayed(trace, methods, 1, costs=costs, timed=timed).as_dict()["methods"]
        assert "drafter_seconds" not in untold
