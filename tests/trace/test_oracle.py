"""The oracle's figures, against trees that are really made."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core import Candidates, Growth, TokenTree, TreePolicy
from talon_core.choices import Choices
from talon_core.costs import Costs
from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace.along import Along
from talon_core.trace.asking import along_of, rows_of, superset_of
from talon_core.trace.columns import NO_ROW, Rows, TextTrace
from talon_core.trace.folder import Trace, read_trace
from talon_core.trace.methods import parse_method
from talon_core.trace.oracle import along_rows, best_trees, fastest, fastest_by_the_laws
from talon_core.trace.replay import Method, Replay, Totals
from talon_core.trace.run import replayed
from talon_strategies import Match


@attrs.frozen
class Likeliest(TreePolicy):
    """All that is offered in three layers, and of it the likeliest nodes."""

    name = "likeliest"
    budget: int = 4

    @property
    def draft_budget(self) -> int:
        return 2000

    def width(self, tree: TokenTree) -> int:
        return 11

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        chosen = candidates.best(1331)
        return Growth(chosen, frontier=None if tree.depths.max() < 2 else chosen[:0])

    def finish(self, tree: TokenTree) -> TokenTree:
        return tree.keep(tree.best(self.budget))


@pytest.mark.parametrize("nodes", [1, 2, 5, 20, 200])
def test_by_the_laws_is_what_the_likeliest_nodes_get(small: Any, recorded: Callable[..., Trace], nodes: int) -> None:
    trace = recorded(small, max_new_tokens=8, width=11, nodes=121, depth=3, least=0.0, laws=True)
    replay, method = Replay(trace), Method("likeliest", Likeliest(nodes), Match())
    texts = [*trace]
    totals = Totals.all_of(Totals.of(replay.text(method, text)) for text in texts)
    found = best_trees([text.along for text in texts if text.along is not None], nodes)
    assert totals.outside == 0
    assert found.by_the_laws == totals.mean_accepted_tokens
    assert found.in_hindsight >= found.by_the_laws


def tried(trace: Trace, specs: Sequence[str]) -> list[tuple[int, float, float]]:
    """Methods on a trace: questions outside, what they get, and what the oracle gets."""
    methods = [parse_method(spec, trace, load_registry()) for spec in specs]
    return [
        (one.totals.outside, one.totals.mean_accepted_tokens, one.oracle.in_hindsight)
        for one in replayed(trace, methods, jobs=1).tried
    ]


DRAWS = ("dyspec:budget=8,depth=3", "dyspec:budget=8,depth=3/match", "dyspec:budget=3,depth=1/match")


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_no_policy_gets_more_than_the_oracle_where_all_that_may_be_drawn_is_recorded(
    small: Any, recorded: Callable[..., Trace], temperature: float
) -> None:
    sizes: dict[str, Any] = {"width": 11, "nodes": 121, "depth": 3, "least": 0.0, "laws": True}
    trace = recorded(small, max_new_tokens=8, temperature=temperature, **sizes)
    for outside, own, best in tried(trace, ["chain:length=3", "eagle2:budget=9,depth=2,top_k=3", *DRAWS]):
        assert outside == 0
        assert own <= best


def test_no_policy_of_recorded_candidates_gets_more_than_the_oracle_at_any_temperature(
    tiny: Any, recorded: Callable[..., Trace]
) -> None:
    trace = recorded(tiny, temperature=1.0, width=2, depth=4, nodes=12)
    found = tried(trace, ["chain:length=4", "eagle2:budget=12,depth=4,top_k=2", "talon:budget=12", "static"])
    assert all(own <= best for _, own, best in found)
    assert max(own for _, own, _ in found) > 1


def test_children_that_are_drawn_outside_of_what_was_recorded_may_get_more_than_the_oracle(
    tiny: Any, recorded: Callable[..., Trace]
) -> None:
    trace = recorded(tiny, temperature=1.0, width=1, depth=2, nodes=12, laws=True)
    [(outside, own, best)] = tried(trace, ["dyspec:budget=8,depth=1/match"])
    assert outside == 0  # a leaf is no question
    assert own > best


def fewest(ranks: Sequence[tuple[int, ...]], nodes: int, position: int = 0) -> int:
    """Target passes of the best choice of chains, by trying all."""
    if position >= len(ranks):
        return 0
    longest = min(len(ranks[position]), nodes - 1)
    return 1 + min(fewest(ranks, nodes, position + 1 + length) for length in range(longest + 1))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 5))
def test_in_hindsight_no_choice_of_chains_takes_fewer_passes(reaches: list[int], nodes: int) -> None:
    ranks = [(0,) * min(reach, len(reaches) - position - 1) for position, reach in enumerate(reaches)]
    assert Along.listed(ranks).in_hindsight(nodes) == fewest(ranks, nodes)
    assert best_trees([Along.listed(ranks)]).in_hindsight >= best_trees([Along.listed(ranks)], nodes).in_hindsight


def listed(text: TextTrace) -> list[tuple[int, ...]]:
    """The ranks of each position."""
    assert text.along is not None
    numbers = iter(text.along.ranks.tolist())
    return [tuple(islice(numbers, count)) for count in text.along.reach.tolist()]


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=9), st.integers(1, 12))
def test_as_many_count_as_come_before_the_last_place_in_the_tree(ranks: list[list[int]], nodes: int) -> None:
    rising = [sorted(own)[: len(ranks) - place - 1] for place, own in enumerate(ranks)]
    assert Along.listed(rising).within(nodes).tolist() == [bisect_left(own, nodes) for own in rising]


class Falling(Costs):
    """Passes over longer texts take longer, and so do those over more nodes: each in its own way."""

    def verify(self, nodes: int, context: int, batch: int = 1) -> float:
        return 10.0 + 3.0 * nodes + 0.5 * context

    def draft(self, rows: int, width: int) -> float:
        return 2.0 + 0.25 * rows + 0.125 * width

    def accept(self, nodes: int) -> float:
        return 0.5 * nodes

    def commit(self, tokens: int) -> float:
        return 0.25 * tokens

    def read(self, tokens: int) -> float:
        return 4.0 * tokens


def quickest(ranks: Sequence[tuple[int, ...]], costs: Costs, prompt: int, layer: float, position: int = 0) -> float:
    """Seconds of the best choice of chains, by trying all."""
    if position >= len(ranks):
        return 0.0
    ways = []
    for length in range(len(ranks[position]) + 1):
        size = length + 1
        parts = costs.verify(size, prompt + position), costs.accept(size), costs.commit(size)
        after = quickest(ranks, costs, prompt, layer, position + size)
        ways.append(sum(part for part in parts if part is not None) + length * layer + after)
    return min(ways)


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=9), min_size=1, max_size=3),
    st.sampled_from([0.0, 2.0, 9.0, 30.0]),
)
def test_no_choice_of_chains_is_faster_than_the_fastest(texts: list[list[int]], layer: float) -> None:
    ranks = [
        [(0,) * min(reach, len(reaches) - position - 1) for position, reach in enumerate(reaches)] for reaches in texts
    ]
    prompts = [7 + 4 * number for number in range(len(texts))]
    expected = [
        quickest(own, Falling(), prompt, layer) + Falling().read(prompt)
        for own, prompt in zip(ranks, prompts, strict=True)
    ]
    assert fastest([*map(Along.listed, ranks)], prompts, Falling(), layer) == pytest.approx(expected, rel=1e-12)


class Uneven(Falling):
    """Sums of its seconds are rounded; it may know nothing of more than so many nodes."""

    def __init__(self, known: int) -> None:
        self._known = known

    def verify(self, nodes: int, context: int, batch: int = 1) -> Any:
        return None if nodes > self._known else 10 / 3 + nodes / 7 + context / 11


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=9), min_size=1, max_size=4), st.sampled_from([3, 60]))
def test_a_text_has_the_same_bits_in_any_company(reaches: list[list[int]], known: int) -> None:
    texts = [
        Along.listed([(0,) * min(reach, len(own) - position - 1) for position, reach in enumerate(own)])
        for own in reaches
    ]
    prompts = [7 + 2 * (number % 2) for number in range(len(texts))]
    alone = [fastest([text], [prompt], Uneven(known), 0.1)[0] for text, prompt in zip(texts, prompts, strict=True)]
    assert fastest(texts, prompts, Uneven(known), 0.1) == alone


class KnownToThree(Falling):
    """Knows nothing of more than three nodes."""

    def verify(self, nodes: int, context: int, batch: int = 1) -> Any:
        return None if nodes > 3 else super().verify(nodes, context, batch)


def test_where_nothing_is_known_of_large_trees_the_others_cost_what_they_do() -> None:
    short = [(1,), (1,), ()]
    expected = quickest(short, Falling(), 7, 1.0) + Falling().read(7)
    assert fastest([Along.listed(short)], [7], KnownToThree(), 1.0) == [expected]
    # of the pass over five nodes, which leads to the end, nothing is known: it counts as free, and no other does
    long = Along.listed([(1,), (1, 2, 3, 4), (), (), (), ()])
    assert fastest([long], [7], KnownToThree(), 1.0)[0] > Falling().verify(1, 7)


def test_no_policy_is_faster_than_the_oracle_which_is_the_best_choice_of_chains() -> None:
    shipped, registry = read_trace(SHIPPED), load_registry()
    specs = [
        "none",
        "chain:length=2",
        "talon:budget=8",
        "eagle2:budget=6,depth=3",
        "talon-cost",
        "ngram/chain:length=3",
    ]
    methods = [parse_method(spec, shipped, registry) for spec in specs]
    answer = replayed(shipped, methods, jobs=1, costs=Falling())
    speeds = [one.totals.predicted_tokens_per_second for one in answer.tried]
    for one, speed in zip(answer.tried, speeds, strict=True):
        assert speed is not None
        assert one.oracle.tokens_per_second is not None
        assert speed <= one.oracle.tokens_per_second
    told = answer.as_dict()
    assert told["oracle"]["tokens_per_second"] == answer.tried[0].oracle.tokens_per_second
    texts = [*shipped]
    seconds = sum(quickest(listed(text), Falling(), text.prompt_tokens, Falling().draft(1, 1)) for text in texts)
    seconds += sum(Falling().read(text.prompt_tokens) for text in texts)
    assert told["oracle"]["tokens_per_second"] == pytest.approx(sum(text.positions for text in texts) / seconds)
    free = replayed(shipped, methods[:1], jobs=1).as_dict()
    assert "tokens_per_second" not in {**free["oracle"], **free["methods"][0]["oracle"]}


def test_the_oracle_of_all_is_that_of_the_traces_own_drafter(tiny: Any, recorded: Callable[..., Trace]) -> None:
    trace = recorded(tiny, "ngram:min_match=1,least=0.0")
    other, own = (parse_method(spec, trace, load_registry()) for spec in ("ngram:min_match=4 / talon", "talon"))
    alone = [replayed(trace, [method], jobs=1).oracle for method in (other, own)]
    assert alone[0] != alone[1]
    assert replayed(trace, [other, own], jobs=1).oracle == alone[1]


def offered(rows: Rows, position: int, layers: int) -> list[tuple[tuple[int, ...], float]]:
    """All paths of so many layers that are offered at a position, the likeliest first, with their log-probabilities."""
    found: list[tuple[tuple[int, ...], float]] = []
    first, end = rows.starts[position : position + 2].tolist()
    above: dict[int, tuple[tuple[int, ...], float]] = {}
    for row in range(first, end):
        path, score = (), 0.0
        if rows.above[row] != NO_ROW:
            path = (*above[int(rows.above[row])][0], int(rows.nodes[row]))
            score = dict(found)[path]
        above[row] = path, score
        tokens, logp = rows.offered([row], rows.width)
        found += [
            ((*path, token), score + own)
            for token, own in zip(tokens[0].tolist(), logp[0].tolist(), strict=True)
            if token >= 0
        ]
    return sorted(((path, score) for path, score in found if len(path) <= layers), key=lambda each: -each[1])


def quickest_by_the_laws(text: TextTrace, costs: Costs, layer: float, most: int) -> float:
    """Seconds of the best choice of trees by the laws, of which each is made: all sizes and depths are tried."""
    assert text.rows is not None
    new = text.ids[text.prompt_tokens :].tolist()
    left = [0.0] * (len(new) + 1)
    for position in reversed(range(len(new))):
        coming, ways = new[position:-1], []
        for layers in range(most + 1):
            paths = [path for path, _ in offered(text.rows, position, layers)]
            on_text = [place for place, path in enumerate(paths, 2) if list(path) == coming[: len(path)]]
            for nodes in range(1, 2 + len(paths)):
                tokens = 1 + bisect_left(on_text, nodes + 1)
                parts = costs.verify(nodes, text.prompt_tokens + position), costs.accept(nodes), costs.commit(tokens)
                seconds = sum(part for part in parts if part is not None)
                ways.append(seconds + layers * layer + left[position + tokens])
        left[position] = min(ways)
    return left[0] + (costs.read(text.prompt_tokens) or 0.0)


class ByTheNode(Falling):
    """A node takes so long, a pass ten seconds more."""

    def __init__(self, node: float) -> None:
        self._node = node

    def verify(self, nodes: int, context: int, batch: int = 1) -> float:
        return 10.0 + self._node * nodes


@pytest.mark.parametrize(("node", "layer"), [(0.0, 1.0), (0.05, 0.5), (0.2, 0.1), (0.5, 0.0), (3.0, 0.1)])
def test_no_choice_of_trees_by_the_laws_is_faster_than_the_fastest(
    small: Any, recorded: Callable[..., Trace], node: float, layer: float
) -> None:
    texts = [*recorded(small, max_new_tokens=6, width=5, nodes=9, depth=3)]
    alongs, prompts = [text.along for text in texts if text.along], [text.prompt_tokens for text in texts]
    costs = ByTheNode(node)
    expected = [quickest_by_the_laws(text, costs, layer, 3) for text in texts]
    assert fastest_by_the_laws(alongs, prompts, costs, layer) == pytest.approx(expected, rel=1e-12)


def test_ranks_among_all_nodes_alone_do_not_do_for_prices() -> None:
    shipped = read_trace(SHIPPED)  # of an earlier version
    text = shipped.text(*shipped.texts()[0])
    assert text.along is not None
    with pytest.raises(ValueError, match=r"has no 'shallow' ranks, .*along_rows\(rows, tokens\) says of its rows and"):
        fastest_by_the_laws([text.along], [text.prompt_tokens], Falling(), 1.0)
    known = along_rows(text.recorded, text.ids[text.prompt_tokens :].tolist())
    assert fastest_by_the_laws([known], [text.prompt_tokens], Falling(), 1.0)[0] > 0


@pytest.mark.parametrize("node", [0.01, 0.1, 0.5])
def test_trees_of_one_size_by_the_laws_are_no_faster_than_those_of_the_best_sizes(
    small: Any, recorded: Callable[..., Trace], node: float
) -> None:
    trace = recorded(small, max_new_tokens=8, width=11, nodes=121, depth=3, least=0.0, laws=True)
    methods = [Method(f"likeliest-{nodes}", Likeliest(nodes), Match()) for nodes in (1, 2, 3, 5, 9, 20, 100)]
    answer = replayed(trace, methods, jobs=1, costs=ByTheNode(node), timed=False)
    best = answer.oracle.by_the_laws_tokens_per_second
    speeds = [one.totals.predicted_tokens_per_second for one in answer.tried]
    assert best is not None
    assert answer.oracle.tokens_per_second is not None
    assert all(speed is not None and speed <= best for speed in speeds)
    assert best < answer.oracle.tokens_per_second
    told = answer.as_dict()
    assert told["oracle"]["by_the_laws_tokens_per_second"] == best
    assert {one["oracle"]["by_the_laws_tokens_per_second"] for one in told["methods"]} == {best}
    assert "by_the_laws_tokens_per_second" not in replayed(trace, methods[:1], jobs=1).as_dict()["oracle"]


def test_a_trace_without_the_ranks_among_shallow_nodes_has_the_same_oracle(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    trace = recorded(tiny)
    older = Trace(tmp_path, trace.manifest)
    for text in trace:
        assert text.along is not None
        assert text.along.shallow is not None
        older.save(attrs.evolve(text, along=attrs.evolve(text.along, shallow=None)))
    assert all(text.along is not None and text.along.shallow is None for text in older)
    method = parse_method("talon", trace, load_registry())
    old, new = (replayed(each, [method], jobs=1, costs=Falling(), timed=False) for each in (older, trace))
    assert old.tried == new.tried
    assert replayed(older, [method], jobs=1).tried == replayed(trace, [method], jobs=1).tried
    (file,) = (older.file(*text) for text in older.texts()[:1])
    likely = next(iter(older)).recorded.logp[-1:].tobytes()
    file.write_bytes(file.read_bytes().replace(likely, next(iter(older)).recorded.logp[-2:-1].tobytes()))
    with pytest.raises(ValueError, match="a row of the trace is not what was recorded"):
        replayed(older, [method], jobs=1, costs=Falling())


def test_ranks_count_what_is_likelier(small: Any, recorded: Callable[..., Trace]) -> None:
    trace = recorded(small, max_new_tokens=8, width=11, nodes=121, depth=3, least=0.0, laws=True)
    text = next(iter(trace))
    rows = text.rows
    assert rows is not None
    assert text.along is not None
    new = text.ids[text.prompt_tokens :].tolist()
    scores: dict[tuple[int, ...], float] = {}
    row_of = {(): rows.root(0)}
    for depth in range(1, 4):
        for path in product(range(11), repeat=depth):
            if path[:-1] in row_of:
                row = row_of[path[:-1]]
                tokens, logp = rows.offered([row], 11)
                rank = np.flatnonzero(tokens[0] == path[-1])
                if len(rank):
                    scores[path] = scores.get(path[:-1], 0.0) + float(logp[0, rank[0]])
                (found,) = rows.find(0, [row], [path[-1]])
                if found != NO_ROW:
                    row_of[path] = found
    own = [scores[tuple(new[:depth])] for depth in range(1, 4)]
    assert listed(text)[0] == tuple(sum(score > mine for score in scores.values()) for mine in own)  # no ties here
    assert text.along.shallow is not None
    shallow = [
        sum(score > mine for path, score in scores.items() if len(path) <= depth) for depth, mine in enumerate(own, 1)
    ]
    assert text.along.shallow[:3].tolist() == shallow


def test_of_equals_only_as_many_are_taken_as_there_is_room_for() -> None:
    rows = Rows(
        starts=np.array([0, 1, 1]),
        above=np.array([-1]),
        nodes=np.array([9]),
        tokens=np.array([[4, 5, 6]], dtype=np.int32),
        logp=np.log(np.full((1, 3), 1 / 3)),
        whole=np.array([True]),
        passes=np.ones((2, 1), dtype=np.int64),
    )
    ranks = {token: along_rows(rows, [token, 0]).ranks.tolist() for token in (4, 5, 6, 7)}
    assert ranks == {4: [0], 5: [1], 6: [2], 7: []}


@pytest.mark.parametrize("depth", [1, 4, 12])
@pytest.mark.parametrize("drafter", ["ngram", "pld"])
def test_a_drafter_of_texts_is_asked_no_more_than_the_ranks_need(drafter: str, depth: int) -> None:
    shipped, found = read_trace(SHIPPED), 0
    spec = built(load_registry(), "drafter", drafter)
    for text in shipped:
        superset = superset_of(shipped, depth)
        rows = rows_of(spec, text, shipped, superset)
        along = along_of(spec, text, shipped, superset)
        expected = along_rows(rows, text.ids[text.prompt_tokens :].tolist())
        assert along.ranks.tolist() == expected.ranks.tolist()
        assert along.reach.tolist() == expected.reach.tolist()
        assert along.shallow is not None
        assert expected.shallow is not None
        assert along.shallow.tolist() == expected.shallow.tolist()
        found += len(along.ranks)
    assert found > 4
