"""A policy on several texts at once has the rounds that it has on each of them."""

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from weakref import ref

import attrs
import numpy as np
import pytest
from safetensors.numpy import save_file

from talon_core import Candidates, Growth, TokenTree
from talon_core.choices import Choices
from talon_core.costs import Costs
from talon_core.errors import PluginError
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_grower import ForestGrowth, forest_grower
from talon_core.forest_planner import AskedLayer, ForestPlanner, TreePlan
from talon_core.plugins.registry import load_registry
from talon_core.policy import TreePolicy
from talon_core.profiles.store import find_profile
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace.folder import Trace, read_trace
from talon_core.trace.methods import parse_method
from talon_core.trace.replay import Method, Replay, Replayed, Totals
from talon_core.trace.several import SeveralTexts
from talon_core.trace.together import OneAfterTheOther, Planned, Together
from talon_core.trace.trying import Trying, together
from talon_core.tree import FloatArray, IntArray
from talon_core.tree_arrays import totals
from talon_strategies import Eagle2, Match, SpecDecPlusPlus, StaticTree, Talon, TalonCost, Taps
from talon_strategies.cost_aware import CostAware
from talon_strategies.talon_cost_forests import TalonCostForest
from talon_tests.prices import PricesByLength, PricesOfChains
from talon_tests.replayed import same

GROWN_TOGETHER = (
    *("none", "chain:length=4", "talon:budget=14,top_k=4,mu=0.1", "talon:budget=60,least=0.01", "talon-gate-only"),
    *("talon-topk-layers:budget=12,top_k=3", "talon-absolute:budget=12,top_k=4", "talon-local:budget=12,top_k=4"),
    *("static", "static:shape=0;2;2.1;2.1.0", "ddtree:budget=8", "ddtree:budget=40"),
    *("eagle2:budget=12,depth=4", "eagle2:budget=5,depth=2,top_k=3"),
    *("ddd:budget=12,depth=4,checked=1;2;3", "ddd:budget=6,depth=4,top_k=2,checked=2;3,threshold=0.6"),
    *("opt-tree:budget=12,depth=5", "opt-tree:budget=7,delta=0.05,depth=4", "svip:length=6,h=0.6", "svip:length=5"),
    *(
        "caddtree",
        "caddtree:budget=9,depth=3",
        "caddtree:convex=true",
        "caddtree:budget=2",
        "bastion",
        "bastion:budget=40,depth=4",
    ),
)
PLANNED = (
    *("gammatune:length=6", "gammatune-plus:length=6,tau=0.1", "heuristic:length=6", "sps:length=6,start=0.9,weight=9"),
    *("adaedl:length=6", "adaedl:threshold=0.7,step=0.3", "adaedl:threshold=0,step=0", "adaedl:factor=50,step=0"),
    *(
        "adaedl:threshold=1,step=0.01,length=30",
        "adaedl:factor=1e308",
        "adaedl:threshold=0.37499999999999994,step=0.01,length=30",
    ),
    "bandit:of=adaedl+chain[length=2]+specdec-plus-plus",
    *("speckv:gammas=1;2;3;4;5", "speckv:objective=paper", "specdec-plus-plus:length=6"),
    *("bandit", "bandit:of=none+gammatune[length=4]+talon[budget=12;top_k=4;mu=0.1],explore=0.3,reward=blend"),
)
SIDE_BY_SIDE = (
    *("talon-cost", "talon-cost:budget=12,depth=5", "talon-cost:budget=2", "talon-cost:budget=30,depth=1"),
    *("taps", "taps:of=talon[budget=14;top_k=4;mu=0.1]", "taps:of=talon-cost[budget=40;depth=3]", "taps:of=caddtree"),
)
IN_TURN = ("taps:of=gammatune", "bandit:of=chain[length=2]+talon-cost")

SPECS = (*GROWN_TOGETHER, *PLANNED, *SIDE_BY_SIDE, *IN_TURN)
ASK_FOR_PRICES = {"caddtree", "bastion", "sps", "bandit", "speckv", "talon-cost", "taps"}
PRICED: list[tuple[str, Costs | None]] = [
    (spec, costs) for spec in SPECS for costs in (PricesByLength(), *map(PricesOfChains, (0.02, 0.002)))
]
FREE = [(spec, None) for spec in SPECS if spec.partition(":")[0] in ASK_FOR_PRICES]
"""Where it is not told what passes take, only these policies may have other rounds."""

FEW_ANSWERS: dict[str, Any] = {"width": 2, "nodes": 1, "depth": 2}
SAMPLED: dict[str, Any] = {"temperature": 0.7, "seed": 3}

registry = cache(load_registry)


def both(trace: Trace, method: Method, costs: Costs | None = None) -> tuple[list[Replayed], list[Replayed]]:
    """The rounds text by text, and together."""
    replay, texts = Replay(trace, costs, timed=False), [*trace]
    replay.check(method)
    grown = together(replay, method, SeveralTexts(texts))
    assert grown is not None
    found = grown.replayed()
    assert grown.totals() == [Totals.of(one) for one in found]
    return [replay.text(method, text) for text in texts], found


def all_same(found: tuple[Sequence[Replayed], Sequence[Replayed]]) -> bool:
    return len(found[0]) == len(found[1]) > 1 and all(map(same, *found))


@pytest.mark.parametrize(("spec", "costs"), [*PRICED, *FREE])
def test_the_rounds_are_those_of_each_text(spec: str, costs: Costs | None) -> None:
    shipped = read_trace(SHIPPED)
    assert all_same(both(shipped, parse_method(spec, shipped, registry()), costs))


@pytest.mark.parametrize("spec", ["caddtree", "bastion"])
def test_a_policy_that_knows_all_prices_already_asks_for_none(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, texts = Replay(read_trace(SHIPPED), find_profile("h100-llama-3.1-8b"), timed=False), [*read_trace(SHIPPED)]
    method = parse_method(spec, replay.trace, registry())
    grower = forest_grower(replay.begun(method, texts[0]))
    assert grower is not None
    first = Together(replay, method, grower, SeveralTexts(texts), None).totals()
    monkeypatch.setattr(CostAware, "prices", None)
    assert Together(replay, method, grower, SeveralTexts(texts), None).totals() == first


@pytest.mark.parametrize("settings", [FEW_ANSWERS, SAMPLED], ids=["few", "sampled"])
@pytest.mark.parametrize("spec", SPECS)
def test_so_they_are_where_questions_are_not_answered_and_at_a_temperature(
    tiny: Any, recorded: Callable[..., Trace], spec: str, settings: dict[str, Any]
) -> None:
    trace = recorded(tiny, **settings)
    method = parse_method(spec, trace, registry())
    found = both(trace, method)
    assert all_same(found)
    if settings is FEW_ANSWERS and spec in GROWN_TOGETHER and method.policy is not None and method.policy.budget > 6:
        assert sum(one.outside for one in found[0]) > 0


@pytest.mark.parametrize("h", [0.1, 0.7, 0.95])
def test_so_they_are_where_a_head_ends_chains(tmp_path: Path, h: float) -> None:
    shapes = {"hidden.weight": (3, 4), "hidden.bias": (3,), "output.weight": (1, 3), "output.bias": (1,)}
    numbers = np.random.default_rng(7)
    save_file({name: numbers.normal(size=shape) for name, shape in shapes.items()}, tmp_path / "head.safetensors")
    policy = SpecDecPlusPlus(h=h, length=9, head=str(tmp_path / "head.safetensors"))
    shipped = read_trace(SHIPPED)
    assert all_same(both(shipped, Method("specdec-plus-plus", policy, Match())))


@pytest.mark.parametrize(("bound", "most"), [("TREES", 1), ("TREES", 7), ("TREES", 10_000), ("NODES", 100)])
def test_it_makes_no_difference_how_many_trees_are_begun_with(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(f"talon_core.trace.together.{bound}", most)
    shipped = read_trace(SHIPPED)
    assert all_same(both(shipped, Method("talon", Talon(), Match())))


@pytest.mark.parametrize("spec", ["bandit", "speckv", "adaedl"])
def test_trees_that_were_grown_together_are_not_held_longer_than_they_are_wanted(spec: str) -> None:
    """Their arrays are large, and the garbage collector sees objects alone."""
    shipped = read_trace(SHIPPED)
    found = together(Replay(shipped), parse_method(spec, shipped, registry()), SeveralTexts([*shipped]))
    assert isinstance(found, Planned)
    grown = [ref(one) for one in found._grown]
    assert grown
    gc.disable()
    try:
        del found
        assert [one() for one in grown] == [None] * len(grown)
    finally:
        gc.enable()


def test_plans_are_grown_part_by_part_and_too_many_of_them_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = read_trace(SHIPPED)
    method = parse_method("gammatune:length=6", shipped, registry())
    monkeypatch.setattr("talon_core.trace.together.NODES", 100)
    assert all_same(both(shipped, method))
    monkeypatch.setattr("talon_core.trace.together.PLANS", 1)
    assert all_same(both(shipped, method))  # its plans are of one policy
    replay, texts = Replay(shipped), SeveralTexts([*shipped])
    assert isinstance(together(replay, parse_method("bandit", shipped, registry()), texts), OneAfterTheOther)


@attrs.frozen(eq=False)
class LastOfEach(Talon):
    """Chooses the last candidate of each row."""

    name = "last-of-each"

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(np.arange(1, 1 + len(candidates.frontier)) * candidates.width - 1)

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        return ForestGrowth(np.arange(1, 1 + len(candidates.frontier)) * candidates.width - 1)

    def widths(self, forest: Forest) -> IntArray:
        return 1 + np.arange(forest.size) % 3


def test_within_taps_a_tree_has_no_candidates_beyond_those_that_it_asks_for() -> None:
    shipped = read_trace(SHIPPED)
    method = Method("taps", Taps(of=LastOfEach()), Match())
    with pytest.raises(PluginError, match=r"chose a padded candidate"):
        together(Replay(shipped), method, SeveralTexts([*shipped]))


@attrs.frozen(eq=False)
class NotHashed(Talon):
    """One that no other is equal to, and that cannot be hashed."""

    name = "not-hashed"
    __hash__ = None  # type: ignore[assignment]


@attrs.frozen
class Planning(ForestPlanner):
    """Plans what it is told to: in each round the same."""

    name = "planning"
    of: TreePolicy
    depth: int | None = None

    @property
    def budget(self) -> int:  # type: ignore[override]
        return self.of.budget

    @property
    def draft_budget(self) -> int:
        return self.of.draft_budget

    def width(self, tree: TokenTree) -> int:
        return self.of.width(tree) if self.depth is None or tree.depths.max() < self.depth else 0

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return self.of.grow(tree, candidates, choices)

    def finish(self, tree: TokenTree) -> TokenTree:
        return self.of.finish(tree)

    def plan(self) -> TreePlan:
        return TreePlan(self.of, self.depth)


@pytest.mark.parametrize("depth", [None, 0, 1, 3, 40])
@pytest.mark.parametrize("of", [Talon(budget=14, top_k=4, mu=0.1), Eagle2(budget=12, depth=4), StaticTree()])
def test_plans_may_be_trees_of_a_policy_to_some_depth(of: TreePolicy, depth: int | None) -> None:
    shipped = read_trace(SHIPPED)
    assert all_same(both(shipped, Method("planning", Planning(of, depth), Match())))


def best(logp: FloatArray) -> FloatArray:
    return logp[:, 0]


def covered(logp: FloatArray) -> FloatArray:
    return totals(np.exp(logp))


@attrs.frozen
class Ending(Planning):
    """Ends the trees that it plans with the layer in which a candidate is as likely as this."""

    name = "ending"
    likely: float = attrs.field(default=-0.1, kw_only=True)

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        growth = super().grow(tree, candidates, choices)
        return Growth(growth.chosen, frontier=np.arange(0)) if best(candidates.logp).max() > self.likely else growth

    def plan(self) -> TreePlan:
        return super().plan()

    def ends_after(self, layers: Iterator[AskedLayer]) -> int | None:
        for depth, layer in enumerate(layers, 1):
            assert layer.logp.shape == (layer.rows, layer.width)
            for measure in (best, covered):
                assert layer.measured(measure).tolist() == measure(layer.logp).tolist()
            if layer.measured(best).max() > self.likely:
                return depth
        return None


@pytest.mark.parametrize("likely", [-0.5, -0.1, 0.0])
@pytest.mark.parametrize("depth", [None, 0, 2])
@pytest.mark.parametrize("of", [Talon(budget=14, top_k=4, mu=0.1), Eagle2(budget=12, depth=4), StaticTree()])
def test_they_may_end_by_what_was_offered(of: TreePolicy, depth: int | None, likely: float) -> None:
    shipped = read_trace(SHIPPED)
    assert all_same(both(shipped, Method("ending", Ending(of, depth, likely=likely), Match())))


@attrs.frozen
class EndsWrongly(Planning):
    name = "ends-wrongly"

    def ends_after(self, layers: Iterator[AskedLayer]) -> int | None:
        return -1


def test_an_end_that_is_none_names_the_policy() -> None:
    shipped = read_trace(SHIPPED)
    method = Method("ends-wrongly", EndsWrongly(Talon()), Match())
    with pytest.raises(PluginError, match=r"tree policy 'ends-wrongly' .*ends_after.*depth"):
        together(Replay(shipped), method, SeveralTexts([*shipped]))


def test_what_is_planned_and_cannot_be_grown_together_is_asked_in_turn() -> None:
    shipped = read_trace(SHIPPED)
    texts = SeveralTexts([*shipped])
    for of in (NotHashed(), OfItsOwn()):
        method = Method("planning", Planning(of), Match())
        assert isinstance(together(Replay(shipped), method, texts), OneAfterTheOther)
        assert all_same(both(shipped, method))


def test_methods_whose_drafter_is_not_the_recorded_one_are_tried_text_by_text(
    tiny: Any, recorded: Callable[..., Trace]
) -> None:
    trace = recorded(tiny, **SAMPLED)
    texts = SeveralTexts([*trace])
    assert together(Replay(trace), parse_method("ngram/talon", trace, registry()), texts) is None
    for spec in ("talon", "ngram/talon"):
        method = parse_method(spec, trace, registry())
        done = Trying(Replay(trace), [*trace]).done(method)
        assert [one.totals for one in done] == [Totals.of(Replay(trace).text(method, text)) for text in trace]


@pytest.mark.parametrize(("fewest", "side_by_side"), [(4, True), (5, False)])
def test_few_texts_of_a_policy_that_learns_are_tried_text_by_text(
    monkeypatch: pytest.MonkeyPatch, fewest: int, side_by_side: bool
) -> None:
    monkeypatch.setattr("talon_core.trace.trying.FEWEST", fewest)
    begun: list[int] = []

    def beside(_: TalonCost, policies: Sequence[TalonCost]) -> TalonCostForest:
        begun.append(len(policies))
        return TalonCostForest(policies)

    monkeypatch.setattr(TalonCost, "beside", beside)
    shipped = read_trace(SHIPPED)
    replay, method = Replay(shipped, PricesByLength(), timed=False), Method("talon-cost", TalonCost(), Match())
    done = Trying(replay, [*shipped]).done(method)
    assert begun == ([4] if side_by_side else [])
    assert [one.totals for one in done] == [Totals.of(replay.text(method, text)) for text in shipped]


@attrs.frozen
class OfItsOwn(Talon):
    """Changes what a tree is, and not what a forest is."""

    name = "of-its-own"

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(1))


def test_what_a_subclass_has_changed_for_one_tree_is_not_passed_over() -> None:
    shipped = read_trace(SHIPPED)
    method = Method("of-its-own", OfItsOwn(), Match())
    assert isinstance(together(Replay(shipped), method, SeveralTexts([*shipped])), OneAfterTheOther)
    assert all_same(both(shipped, method))
    (done, *_) = Trying(Replay(shipped), [*shipped]).done(method)
    assert done.deepest > 5


@attrs.frozen
class Greedy(Eagle2):
    """Takes a candidate twice."""

    name = "greedy"

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        return ForestGrowth(np.zeros(2, dtype=np.int64))


@attrs.frozen
class GreedyAtTimes(Talon):
    """Drafts a tree deeper than its budget allows where its root is this token."""

    name = "greedy-at-times"
    at: int = 0

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        growth = super().grow_forest(forest, candidates)
        wrong = forest.tokens[: forest.size][candidates.trees[growth.chosen // candidates.width]] == self.at
        again = growth.chosen[wrong][:1]
        return ForestGrowth(np.concatenate([growth.chosen, again]), growth.frontier)


@pytest.mark.parametrize("planned", [False, True])
def test_what_is_wrong_counts_where_a_round_begins_and_nowhere_else(planned: bool) -> None:
    shipped = read_trace(SHIPPED)
    texts = [*shipped]
    done = Replay(shipped).text(parse_method("talon", shipped, registry()), texts[0])
    roots = {int(one.tree.tokens[0]) for one in done.rounds}
    others = [token for token in texts[0].ids[texts[0].prompt_tokens - 1 : -1].tolist() if token not in roots]

    def tried(at: int) -> Any:
        policy: TreePolicy = GreedyAtTimes(at=at)
        method = Method("greedy-at-times", Planning(policy) if planned else policy, Match())
        return together(Replay(shipped), method, SeveralTexts(texts[:1]))

    found = tried(others[0])
    assert found is not None
    assert len(found.replayed()[0].rounds) == len(done.rounds)
    with pytest.raises(PluginError, match="chose the same candidate twice"):
        tried(max(roots))


def test_what_is_wrong_for_a_forest_names_the_policy() -> None:
    shipped = read_trace(SHIPPED)
    with pytest.raises(PluginError, match=r"tree policy 'greedy' .*Greedy\) chose the same candidate twice"):
        together(Replay(shipped), Method("greedy", Greedy(), Match()), SeveralTexts([*shipped]))


@attrs.frozen
class Writing(Talon):
    """Writes into all that it is shown, as far as it can."""

    name = "writing"

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        growth = super().grow_forest(forest, candidates)
        shown = [candidates.frontier, candidates.trees, candidates.logp, candidates.path_logp, candidates.tokens]
        for array in (*shown, forest.sizes, forest.tokens, *(layer.path_logp for layer in forest.layers)):
            for own in (array,) if array.base is None else (array.base, array):
                try:
                    own.flags.writeable = True
                    own[...] = 1
                except (ValueError, TypeError, AttributeError):
                    continue
        return growth


def test_a_policy_cannot_change_what_it_is_shown() -> None:
    shipped = read_trace(SHIPPED)
    texts = SeveralTexts([*shipped])
    found = [together(Replay(shipped), Method("talon", policy, Match()), texts) for policy in (Talon(), Writing())]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].totals() == found[1].totals()


def test_texts_of_other_widths_are_refused(tiny: Any, recorded: Callable[..., Trace]) -> None:
    texts = [next(iter(recorded(tiny, **settings))) for settings in (SAMPLED, FEW_ANSWERS)]
    with pytest.raises(ValueError, match="has 2 candidates a row, and others have 32; a file of the trace was changed"):
        SeveralTexts(texts)
