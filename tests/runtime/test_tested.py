"""Drawn children tested on a device: the rule's own walks, with the same numbers, to the last one."""

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process

from talon_core.choices import SeededChoices
from talon_core.drawn import Drawn
from talon_core.engine.acceptors import Acceptors, Offered
from talon_core.laws import Laws
from talon_core.request import Request
from talon_core.rule import AcceptanceRule
from talon_core.runtime import next_tokens
from talon_core.runtime.device import DeviceExecutor
from talon_core.runtime.recording import Walk
from talon_core.sampling import Sampling
from talon_core.target import ALL_WALKED, NO_TOKEN, NodeDraws
from talon_core.testing import TableDrafter, TableLaws
from talon_core.testing.drawing import drawn_trees
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import Tape, TapedBackend, TapeRecorder
from talon_core.tree import FloatArray, TokenTree
from talon_strategies import Block, Hybrid, Match, RecursiveRejection, RejectionWithoutReplacement, Traversal
from talon_tests.drawing_ways import OnDevice

RULES: list[tuple[AcceptanceRule, str]] = [
    (rule, kind)
    for rule in (RecursiveRejection(), RejectionWithoutReplacement(), Hybrid(), Block(), Traversal())
    for kind in ("iid", "without-replacement", "hybrid", "sampled-chain")
    if kind in rule.exact_for
]
NAMES = [f"{rule.name}-{kind}" for rule, kind in RULES]
VOCAB = 5
NO_ENDS: frozenset[int] = frozenset()


def logits_of(laws: FloatArray) -> torch.Tensor:
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(laws))


def draws_of(
    rule: AcceptanceRule, tree: TokenTree, choices: SeededChoices, ends: frozenset[int], *warpers: Any
) -> NodeDraws:
    """How the target is told to test a tree."""
    request = Request(np.array([0]), 5, Sampling(True, warpers), ends)
    acceptor, offered = Acceptors(rule, OnDevice(np.zeros((1, 1)))).of(request, choices), Offered()
    acceptor.offer(0, tree, offered)
    return offered.drawn[0]


def walked_on_device(
    trees: Mapping[int, TokenTree],
    logits: torch.Tensor,
    drawn: Mapping[int, NodeDraws],
    ends: frozenset[int] = NO_ENDS,
    executor: DeviceExecutor | None = None,
    unwalked: Mapping[int, int] = ALL_WALKED,
) -> Mapping[int, Walk]:
    """Where an executor goes in trees; the logits are those of all nodes, one tree after another."""
    executor = executor or DeviceExecutor(PlainDevice(), torch.device("cpu"))
    for slot in range(max(trees) + 1):
        executor.cache.open(slot, 64)
    kept = F.pad(logits, (0, 0, 0, 64))
    inputs = executor.inputs({slot: (tree, 0) for slot, tree in trees.items()})
    slots = [*drawn]
    _, walks = executor.walk(inputs, lambda view: (kept[: len(view.ids)],), "table", slots, ends, unwalked, drawn)
    assert executor.cache.lengths == [len(walks[slot].path) if slot in walks else 0 for slot in trees]
    return walks


@st.composite
def trials(draw: st.DrawFn, kind: str) -> tuple[TokenTree, TableDrafter, int | None, int]:
    """A tree, the target's laws, which may forbid tokens, the token that ends the text, and a seed."""
    tree = draw(drawn_trees(kind, vocab_size=VOCAB, max_nodes=10))
    weights = st.lists(st.sampled_from([1.0, 2.0, 5.0, 0.0, 1e-12]), min_size=VOCAB, max_size=VOCAB)
    rows = draw(st.lists(weights.filter(any), min_size=1, max_size=4))
    laws = np.array(rows) / np.sum(rows, axis=1, keepdims=True)
    return tree, TableDrafter(laws), draw(st.none() | st.integers(0, VOCAB - 1)), draw(st.integers(0, 2**32))


class Given(Laws):
    """The laws at a tree's nodes, as they are given."""

    def __init__(self, laws: FloatArray, ends: frozenset[int] = NO_ENDS) -> None:
        self._laws, self._ends = laws, ends

    def at(self, node: int) -> FloatArray:
        return self._laws[node]

    def ends(self, token: int) -> bool:
        return token in self._ends


def soft(logits: torch.Tensor) -> FloatArray:
    """A law that has been through its logarithm is another one in the last digits."""
    return np.asarray(torch.softmax(logits, dim=-1).numpy())


@pytest.mark.parametrize(("rule", "kind"), RULES, ids=NAMES)
def test_a_walk_is_that_of_the_rule_and_so_is_what_is_left_of_the_numbers(rule: AcceptanceRule, kind: str) -> None:
    went = set()

    @settings(deadline=None, max_examples=60)
    @given(trials(kind))
    def same(trial: tuple[TokenTree, TableDrafter, int | None, int]) -> None:
        tree, target, end, seed = trial
        ends = NO_ENDS if end is None else frozenset({end})
        table, here, there = TableLaws(target, tree), SeededChoices(seed), SeededChoices(seed)
        logits = logits_of(np.stack([table.at(node) for node in range(len(tree))]))
        expected = rule.walk(tree.copied(), Given(soft(logits), ends), here)
        walk = walked_on_device({0: tree}, logits, {0: draws_of(rule, tree, there, ends)}, ends)[0]
        there.used(walk.numbers)
        assert (walk.path.tolist(), walk.token) == (expected.path.tolist(), expected.token)
        assert here.ahead(2).tolist() == there.ahead(2).tolist()
        went.add(len(walk.path))

    same()
    assert max(went) > 1


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, len(RULES) - 1), min_size=4, max_size=4),
    st.data(),
    st.integers(0, 2**32),
    st.sampled_from([1, 10, 1 << 24]),
    st.booleans(),
)
def test_each_of_a_batch_is_walked_as_alone(
    which: list[int], data: st.DataObject, seed: int, most_scores: int, recorded: bool
) -> None:
    """Of all rules, beside one that is drawn for and one that is left to the host; of some trees at a time."""
    rng = np.random.default_rng(seed)
    trees = {slot: data.draw(drawn_trees(RULES[rule][1], vocab_size=VOCAB)) for slot, rule in enumerate(which)}
    rules: dict[int, AcceptanceRule] = {slot: RULES[rule][0] for slot, rule in enumerate(which)}
    trees |= {slot: data.draw(drawn_trees(vocab_size=VOCAB)) for slot in (4, 5)}
    rules[4] = Match()
    logits = torch.from_numpy(rng.normal(size=(sum(map(len, trees.values())), VOCAB)) * 2)
    starts = np.cumsum([0, *map(len, trees.values())])
    own = {slot: logits[starts[slot] : starts[slot + 1]] / 2.0 for slot in trees}
    halving: Any = logits_process.TemperatureLogitsWarper(2.0)
    drawn = {
        slot: draws_of(rule, trees[slot], SeededChoices(seed + slot), NO_ENDS, halving) for slot, rule in rules.items()
    }
    backend = TapedBackend(PlainDevice()) if recorded else PlainDevice()
    executor = DeviceExecutor(backend, torch.device("cpu"), TapeRecorder() if recorded else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_tokens, "MOST_SCORES", most_scores)
        walks = walked_on_device(trees, logits, drawn, executor=executor)
    assert {*walks} == {*rules}
    for slot, rule in rules.items():
        choices = SeededChoices(seed + slot)
        expected = rule.walk(trees[slot].copied(), Given(soft(own[slot])), choices)
        assert (walks[slot].path.tolist(), walks[slot].token) == (expected.path.tolist(), expected.token)
        alone = walked_on_device({0: trees[slot]}, own[slot] * 2.0, {0: drawn[slot]})[0]
        assert (alone.path.tolist(), *alone[1:]) == (walks[slot].path.tolist(), *walks[slot][1:])


def chain(law: FloatArray, length: int) -> TokenTree:
    """A drawn chain of token 1, and a root of token 0."""
    draws = {node: Drawn(np.array([1]), law) for node in range(length)}
    return TokenTree([0, *[1] * length], [*range(-1, length)], np.zeros(length + 1), draws)


@pytest.mark.parametrize("rule", [RecursiveRejection(), Traversal()])
@pytest.mark.parametrize("without", range(4))
def test_where_there_is_no_law_a_walk_ends_there(rule: AcceptanceRule, without: int) -> None:
    """As on the host, which asks for the law at a node when it comes to it, and of a leaf when it is accepted."""
    sure = np.array([0.0, 1.0, 0.0])
    tree, logits = chain(sure, 3), logits_of(np.tile(sure, (4, 1)))
    logits[without] = -torch.inf  # every token is forbidden
    walk = walked_on_device({0: tree}, logits, {0: draws_of(rule, tree, SeededChoices(0), NO_ENDS)})[0]
    assert (walk.path.tolist(), walk.token) == ([*range(without + 1)], NO_TOKEN)


def test_a_law_that_nobody_comes_to_need_not_be_there() -> None:
    tree, logits = chain(np.array([0.0, 1.0, 0.0]), 2), logits_of(np.array([[1.0, 0, 0]] * 3))
    logits[1:] = torch.nan
    for rule in (RecursiveRejection(), Traversal()):
        walk = walked_on_device({0: tree}, logits, {0: draws_of(rule, tree, SeededChoices(0), NO_ENDS)})[0]
        assert (walk.path.tolist(), walk.token) == ([0], 0)


def test_nodes_that_no_path_goes_to_are_not_gone_to() -> None:
    """They hold the token that is drawn when a drawn child was rejected."""
    drawn = {0: Drawn(np.array([1]), np.array([0.0, 1.0, 0.0]))}
    tree = TokenTree([0, 1, 2, 0], [-1, 0, 0, 2], np.zeros(4), drawn)
    logits = logits_of(np.array([[0.0, 0.0, 1.0], [1.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0]]))
    how = {0: draws_of(Hybrid(), tree, SeededChoices(0), NO_ENDS)}
    found = {count: walked_on_device({0: tree}, logits, how, unwalked={0: count})[0] for count in (0, 1, 2)}
    assert {count: (walk.path.tolist(), walk.token) for count, walk in found.items()} == {
        0: ([0, 2, 3], 1),
        1: ([0, 2], 0),
        2: ([0], 2),
    }


@pytest.mark.parametrize("rule", [RejectionWithoutReplacement(), Traversal()])
def test_testing_asks_the_device_for_nothing(rule: AcceptanceRule) -> None:
    tree = chain(np.array([0.3, 0.5, 0.2]), 3)
    logits, numbers = torch.randn(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    how = {0: draws_of(rule, tree, SeededChoices(0), NO_ENDS)}
    expected = next_tokens.next_tokens(logits, numbers, np.array([0, 4]), [0], how)
    with Tape():  # which refuses questions
        found = next_tokens.next_tokens(logits, numbers, np.array([0, 4]), [0], how)
    assert torch.equal(found.tokens, expected.tokens)


@pytest.mark.parametrize("rule", [RejectionWithoutReplacement(), Traversal()])
def test_where_a_processor_raises_nothing_is_taken_of_what_is_warped_alike(rule: AcceptanceRule) -> None:
    """Not of the trees tested before it raised either: a device would move their rows, and the host again."""

    def finite(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if scores.isnan().any():
            raise ValueError("NaN")
        return scores

    law = np.array([0.3, 0.5, 0.2])
    trees = {slot: chain(law, 3) for slot in range(3)}
    drawn = {slot: draws_of(rule, tree, SeededChoices(0), NO_ENDS) for slot, tree in trees.items()}
    drawn |= {slot: attrs.evolve(drawn[slot], warpers=(finite,)) for slot in (0, 2)}
    logits = logits_of(np.tile(law, (12, 1)))
    logits[8:] = torch.nan
    starts = np.array([0, 4, 8, 12])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_tokens, "MOST_SCORES", 3)  # a tree at a time
        found = next_tokens.next_tokens(logits, torch.zeros(12, dtype=torch.float64), starts, [0, 1, 2], drawn)
    assert found.failed == {0, 2}
    assert [bool((found.tokens[4 * slot : 4 * slot + 4] == NO_TOKEN).all()) for slot in range(3)] == [1, 0, 1]


def test_a_fault_of_ours_is_none_of_a_processors() -> None:
    """What fails in a processor is left to the host; what fails in the tests themselves is an error."""
    tree = chain(np.array([0.3, 0.5, 0.2]), 1)
    how = {0: draws_of(RecursiveRejection(), tree, SeededChoices(0), NO_ENDS)}
    with pytest.raises(RuntimeError, match="size"):
        walked_on_device({0: tree}, torch.zeros(2, 7, dtype=torch.float64), how)
