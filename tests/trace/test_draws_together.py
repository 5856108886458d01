"""Rounds whose rule tests what was drawn are the same whether all texts are tried at once, or each by itself."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from talon_core.choices import BLOCK, SeededChoices
from talon_core.drawn import sharpened, without
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_drawer import ForestLaws
from talon_core.forest_grower import ForestGrowth
from talon_core.plugins.registry import load_registry
from talon_core.rounds import Round
from talon_core.rule import AcceptanceRule
from talon_core.trace import grown_draws, tested
from talon_core.trace.folder import Trace
from talon_core.trace.law_sums import LEVELS, Layout, drawn_at, left_of, weights
from talon_core.trace.methods import parse_method
from talon_core.trace.replay import Method, Replay, Replayed, Totals
from talon_core.trace.several import SeveralTexts
from talon_core.trace.several_laws import DrawnFrom
from talon_core.trace.stored import mapped
from talon_core.trace.text_laws import LawsChanged
from talon_core.trace.together import Drawing, together
from talon_core.tree import FloatArray, TokenTree
from talon_strategies.rules.rrs import RecursiveRejection
from talon_strategies.sampled_chain import SampledChain
from talon_strategies.talon_sampled import TalonSampled
from talon_tests.prices import PricesByLength
from talon_tests.tiny_models import of_words

WIDE: dict[str, Any] = {"laws": True, "max_new_tokens": 16, "width": 30, "nodes": 20, "depth": 3, "least": 0.0}
METHODS = (
    *("sampled-chain:length=3", "sampled-chain:length=3/rrs", "sampled-chain:length=3/hybrid"),
    *("sampled-chain:length=2/traversal", "sampled-chain:length=2/rrsw"),
    *("specinfer:widths=3;2", "specinfer"),
    *("talon-sampled:budget=8", "talon-sampled:budget=12,least=0.05,mu=0.3"),
    *("sequoia:budget=8", "sequoia:budget=12,depth=3/rrsw"),
)


@pytest.fixture(scope="module")
def blocks() -> tuple[Any, Any]:
    """A tiny Llama whose laws have two blocks, of which the second is a shorter one."""
    return of_words(vocab_size=300)


def seeded(trace: Trace, seed: int) -> Trace:
    return Trace(trace.folder, {**trace.manifest, "settings": {**trace["settings"], "seed": seed}})


def both(trace: Trace, spec: str, seed: int, costs: Any = None) -> tuple[list[Replayed], list[Replayed]]:
    """The rounds text by text, and together."""
    replay, texts = Replay(trace, costs, timed=False), [*trace]
    method = parse_method(spec, trace, load_registry())
    replay.check(method)
    replay.trace = seeded(trace, seed)
    grown = together(replay, method, SeveralTexts(texts))
    assert isinstance(grown, Drawing)
    found = grown.replayed()
    assert grown.totals() == [Totals.of(one) for one in found]
    return [replay.text(method, text) for text in texts], found


def told(tree: TokenTree | None) -> Any:
    """What a tree says, with what was drawn in it."""
    if tree is None:
        return None
    drawn = {node: (one.tokens.tolist(), one.replacement, len(one.law)) for node, one in tree.drawn.items()}
    return tree.tokens.tolist(), tree.parents.tolist(), drawn


def of(rounds: Sequence[Round]) -> Any:
    return [
        (told(one.tree), told(one.drafted), one.path.tolist(), one.tokens.tolist(), one.draft_passes, one.spans)
        for one in rounds
    ]


def check_same(alone: Sequence[Replayed], found: Sequence[Replayed]) -> None:
    assert [(of(one.rounds), one.outside) for one in found] == [(of(one.rounds), one.outside) for one in alone]
    for one, other in zip(found, alone, strict=True):
        assert one.seconds == (None if other.seconds is None else pytest.approx(other.seconds))
        for mine, theirs in zip(one.rounds, other.rounds, strict=True):
            np.testing.assert_allclose(mine.tree.path_logp, theirs.tree.path_logp, rtol=1e-9)
            for node, drawn in mine.tree.drawn.items():
                np.testing.assert_allclose(drawn.logp, theirs.tree.drawn[node].logp, rtol=1e-9)


@pytest.mark.parametrize("spec", METHODS)
@pytest.mark.parametrize(("model", "temperature"), [("small", 0.7), ("blocks", 1.0)])
def test_the_rounds_are_those_of_each_text(
    recorded: Callable[..., Trace], request: pytest.FixtureRequest, model: str, spec: str, temperature: float
) -> None:
    trace = recorded(request.getfixturevalue(model), temperature=temperature, **WIDE)
    lengths: set[int] = set()
    for seed in range(4):
        alone, found = both(trace, spec, seed, PricesByLength() if seed else None)
        check_same(alone, found)
        lengths |= {len(round_.path) for one in found for round_ in one.rounds}
    assert {1, 2} <= lengths


@pytest.mark.parametrize("spec", ["sampled-chain:length=3", "specinfer:widths=3;2", "talon-sampled:budget=8"])
def test_trees_that_the_bounds_do_not_decide_are_left_to_the_rule(
    blocks: Any, recorded: Callable[..., Trace], spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, walks = recorded(blocks, temperature=1.0, **WIDE), list[int]()
    walked = grown_draws.walked

    def noted(rule: AcceptanceRule, *given: Any) -> Any:
        walks.append(1)
        return walked(rule, *given)

    monkeypatch.setattr(grown_draws, "walked", noted)
    usual = both(trace, spec, 1)
    few = len(walks)
    monkeypatch.setattr(tested, "left_of", lambda p, *_: (np.zeros(len(p)), np.ones(len(p))))
    monkeypatch.setattr(tested.DrawnTrees, "token_of_rest", lambda _, nodes, *__: np.full(len(nodes), tested.UNSURE))
    found = both(trace, spec, 1)
    check_same(*usual)
    check_same(*found)
    assert len(walks) > few


@pytest.mark.parametrize("spec", ["sampled-chain:length=3", "talon-sampled:budget=20,mu=0.01"])
def test_questions_that_are_not_answered_are_counted_alike(
    blocks: Any, recorded: Callable[..., Trace], spec: str
) -> None:
    trace = recorded(blocks, temperature=1.0, **{**WIDE, "nodes": 2, "depth": 2})
    alone, found = both(trace, spec, 5)
    check_same(alone, found)
    assert sum(one.outside for one in found) > 0


def without_sums(data: bytes) -> bytes:
    """A text as an earlier version has written it."""
    columns, length = load(data), int.from_bytes(data[:8], "little")
    told = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["text"])
    del told["sum"], told["drawn_at"]
    kept = {name: column for name, column in columns.items() if not name.startswith(("law.sums", "law.checks"))}
    del kept["sums.law.sums"]
    return save(kept, {"text": json.dumps(told)})


def copied(trace: Trace, folder: Path, change: Callable[[bytes], bytes]) -> Trace:
    """A trace whose files were all changed."""
    own = Trace(folder, trace.manifest)
    (folder / "texts").mkdir()
    for text in trace.texts():
        own.file(*text).write_bytes(change(trace.file(*text).read_bytes()))
    return own


def grown(trace: Trace, spec: str = "specinfer") -> Any:
    replay, method = Replay(trace, timed=False), parse_method(spec, trace, load_registry())
    return together(replay, method, SeveralTexts([*trace]))


def test_traces_that_keep_no_sums_and_other_temperatures_are_tried_text_by_text(
    blocks: Any, recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    trace = recorded(blocks, temperature=1.0, **WIDE)
    older = copied(trace, tmp_path, without_sums)
    assert grown(older) is None
    assert grown(trace, "specinfer:temperature=0.9") is None
    assert grown(trace, "dyspec") is None
    assert grown(trace, "specinfer:temperature=0.8") is not None
    method = parse_method("specinfer", trace, load_registry())
    for text, same in zip(trace, older, strict=True):
        found = (Replay(one, timed=False).text(method, own).rounds for one, own in ((trace, text), (older, same)))
        assert of(next(found)) == of(next(found))


def columns_of(change: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        columns, length = load(data), int.from_bytes(data[:8], "little")
        change(columns)
        return save(columns, json.loads(data[8 : 8 + length])["__metadata__"])

    return changed


def with_another_law(columns: Any) -> None:
    for name in ("law.target", "law.drafter"):
        columns[name][:, [0, 1]] = columns[name][:, [1, 0]] + np.float32(1e-6)


def with_another_sum(columns: Any) -> None:
    columns["law.sums.1"][:, 0] *= 1.001


def with_fewer_sums(columns: Any) -> None:
    columns["law.sums.2"] = columns["law.sums.2"][:, 1:]


@pytest.mark.parametrize("change", [with_another_law, with_another_sum])
def test_what_was_changed_is_not_taken_for_what_was_recorded(
    blocks: Any, recorded: Callable[..., Trace], tmp_path: Path, change: Callable[[Any], None]
) -> None:
    trace = copied(recorded(blocks, temperature=1.0, **WIDE), tmp_path, columns_of(change))
    assert grown(trace) is None  # then each text is tried by itself
    law, rows = next(iter(trace)).law, np.array([3, 1])
    assert law is not None
    if change is with_another_law:
        with pytest.raises(LawsChanged, match=r"^a law in '.+\.safetensors' is not what was recorded"):
            law.blocks("target", rows, np.array([0, 0]))
        law.blocks("target", rows, np.array([1, 1]))
    else:
        with pytest.raises(LawsChanged, match=r"^a sum of laws in '.+\.safetensors' is not what was recorded"):
            law.sums(rows, 1)
        law.sums(rows, 0)


def test_a_text_whose_file_is_gone_is_read_from_what_is_mapped(
    blocks: Any, recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    trace = copied(recorded(blocks, temperature=1.0, **WIDE), tmp_path, lambda data: data)
    texts, method = [*trace], parse_method("specinfer", trace, load_registry())
    before = together(Replay(trace, timed=False), method, SeveralTexts(texts))
    for text in trace.texts():
        trace.file(*text).unlink()
    after = together(Replay(trace, timed=False), method, SeveralTexts(texts))
    assert before is not None
    assert after is not None
    assert before.totals() == after.totals()


def test_draws_know_what_is_left_of_a_law_that_is_nearly_on_one_token() -> None:
    law = np.array([0.9998, 0.00012, 0.00006, 0.00002])
    exact = without(sharpened(law, 0.24), 0)[1]
    one = np.zeros(1, dtype=np.int64)
    logp = np.log(law)[None, :1]
    pool = ForestCandidates(one, one, logp, logp, 1, lambda: one[:, None])
    layout = Layout(4, (0.24,))
    kept = law.astype(np.float32)
    sums = layout.of(kept, kept, (float(kept.sum()), float(kept.sum())))
    laws: Any = SimpleNamespace(
        layout=layout,
        temperature=lambda _: 0,
        sums=lambda rows, part: np.repeat(sums[part][None], len(rows), axis=0),
        weights=lambda _, rows, blocks, peaks: np.pad(
            np.repeat(weights(kept, 1.0, peaks[0], 0.24)[None], len(rows), axis=0), ((0, 0), (0, BLOCK - 4))
        ),
    )
    numbers: Any = SimpleNamespace(at=lambda trees, _: np.zeros(len(trees)))
    draws = DrawnFrom(laws, one, pool, numbers, one.copy()).drawing(0.24)
    assert draws.draw(np.array([0, 0])).all()
    assert draws.tokens.tolist() == [0, 1]
    assert draws.prob[1] / draws.left[1] == pytest.approx(exact, rel=1e-5)
    assert 1.0 - draws.prob[0] == 0.0 < draws.left[1]  # of which no digit is right
    with pytest.raises(ValueError, match="rows that are not there; there are rows 0 to 0"):
        draws.draw(np.array([1]))
    unknown = DrawnFrom(laws, one - 1, pool, numbers, one.copy()).drawing(0.24)
    with pytest.raises(ValueError, match="was drawn from that was not recorded, and has no law"):
        unknown.draw(np.array([0]))


@pytest.mark.parametrize("spec", ["dyspec", "specinfer"])
def test_nobody_who_asks_for_a_law_is_blamed_for_its_file(
    blocks: Any, recorded: Callable[..., Trace], tmp_path: Path, spec: str
) -> None:
    trace = copied(recorded(blocks, temperature=1.0, **WIDE), tmp_path, columns_of(with_another_law))
    with pytest.raises(LawsChanged, match=r"^a law in '.+\.safetensors' is not what was recorded"):
        Replay(trace).text(parse_method(spec, trace, load_registry()), next(iter(trace)))


def test_sums_of_other_rows_are_refused_when_a_text_is_read(
    blocks: Any, recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    trace = copied(recorded(blocks, temperature=1.0, **WIDE), tmp_path, columns_of(with_fewer_sums))
    with pytest.raises(ValueError, match="the sums of its laws are not those of its rows"):
        next(iter(trace))


class OwnWalk(RecursiveRejection):
    """Does not say how it tests: another walk."""

    def walk(self, tree: TokenTree, laws: Any, choices: Any) -> Any:
        return super().walk(tree, laws, choices)


@attrs.frozen
class Wider(TalonSampled):
    """A subclass that decides otherwise for one tree."""

    def width(self, tree: TokenTree) -> int:
        return 2


@attrs.frozen
class Forgetting(SampledChain):
    """Draws as it should not: twice under one node."""

    def draw_forest(self, forest: Forest, candidates: ForestCandidates, laws: ForestLaws) -> ForestGrowth:
        drawn = laws.drawing()
        drawn.draw(np.repeat(np.arange(len(candidates.frontier)), 2))
        return ForestGrowth(np.arange(0), drawn=drawn)


def test_rules_and_policies_that_do_otherwise_are_asked_themselves(blocks: Any, recorded: Callable[..., Trace]) -> None:
    trace = recorded(blocks, temperature=1.0, **WIDE)
    several = SeveralTexts([*trace])
    assert together(Replay(trace), Method("own", SampledChain(3), OwnWalk()), several) is None
    assert together(Replay(trace), Method("own", Wider(8), RecursiveRejection()), several) is None
    with pytest.raises(Exception, match=r"tree policy 'sampled-chain' .* drew 2 children of one node"):
        together(Replay(trace), Method("own", Forgetting(3), RecursiveRejection()), several)


LAWS = st.tuples(st.sampled_from([5, 256, 300, 700]), st.integers(0, 2**32), st.sampled_from([0.02, 0.3, 5.0]))


@given(LAWS, st.floats(1.0, 1e5), st.floats(1.0, 2.0))
def test_bounds_hold_whatever_the_laws_are(laws: tuple[int, int, float], b: float, more: float) -> None:
    size, seed, spread = laws
    rng = np.random.default_rng(seed)
    p, q = (rng.dirichlet(np.full(size, spread)).astype(np.float32) for _ in range(2))
    totals = tuple(float(law.sum(dtype=np.float64)) for law in (p, q))
    layout = Layout(size, drawn_at(0.9))
    sums = layout.of(p, q, (totals[0], totals[1]))
    assert [len(part) for part in sums] == [*layout.parts]
    target = p.astype(np.float64) / totals[0]
    for number, temperature in enumerate(layout.temperatures):
        own = weights(q, totals[1], float(q.max()), temperature)
        drafter = own / own.sum()
        assert sums[layout.drafter(number)][:-1].sum() == pytest.approx(own.sum())
        levels = sums[layout.levels(number)][None]
        both_sums = levels[:, : len(LEVELS)], levels[:, len(LEVELS) :]
        for least, most in ((1.0, 1.0), (b, b), (b, b * more)):
            low, high = left_of(*both_sums, np.array([least]), np.array([most]))
            exact: list[float] = [np.maximum(target - each * drafter, 0.0).sum() for each in (most, least)]
            assert low[0] - 1e-9 <= exact[0] <= exact[1] <= high[0] + 1e-9
    low, high = left_of(*both_sums, np.ones(1), np.ones(1))
    assert high[0] - low[0] < 1e-6  # what a first rejection leaves is known


def test_each_place_has_numbers_of_its_own_and_the_first_those_of_the_seed() -> None:
    choices = SeededChoices(7)
    places = np.array([3, 0, 1, 2**40])
    numbers = choices.numbers_at(places, 5)
    assert len({*numbers.ravel().tolist()}) == numbers.size
    for place, own in zip(places.tolist(), numbers, strict=True):
        assert choices.at(place).ahead(5).tolist() == own.tolist()
    assert numbers[1].tolist() == SeededChoices(7).ahead(5).tolist()
    law: FloatArray = np.full(BLOCK * 3, 1.0 / (BLOCK * 3))
    assert choices.at(3).pick(law) == int(numbers[0, 0] * len(law))
    assert choices.apart(1).at(2).ahead(1) != choices.at(2).ahead(1)


def test_laws_lie_in_parts_that_are_read_alone(blocks: Any, recorded: Callable[..., Trace], tmp_path: Path) -> None:
    trace = recorded(blocks, temperature=1.0, **WIDE)
    file = trace.file(*trace.texts()[0])
    columns, text = mapped(file), next(iter(trace))
    assert text.law is not None
    rows, part = np.array([4, 0, 0, 1, 9]), np.array([1, 0, 1, 1, 0])
    found = text.law.blocks("drafter", rows, part)
    for row, block, own in zip(rows.tolist(), part.tolist(), found, strict=True):
        whole = np.zeros(2 * BLOCK, dtype=np.float32)
        whole[:300] = columns["law.drafter"][row]
        assert np.array_equal(own, whole[block * BLOCK : (block + 1) * BLOCK])
