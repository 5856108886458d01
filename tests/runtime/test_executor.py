"""The two executors: a network is run over the same trees by both, and what comes out is the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from talon_core import TokenTree
from talon_core.attention import AttentionBackend
from talon_core.runtime.best import Best, Vocabulary, best_by, best_numbers, last_rows
from talon_core.runtime.device import DeviceExecutor, executor_for
from talon_core.runtime.executor import Executor, HostExecutor, Numbers, TreeView
from talon_core.runtime.passes import Pass
from talon_core.testing import draft_trees
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_kernels import NativeAttention, ReferenceAttention

VOCAB, WIDTH, HEADS = 11, 8, 2
CPU = torch.device("cpu")


class Network(nn.Module):
    """One attention layer over embeddings of tokens and positions, in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(64, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, VOCAB)
        self.double()

    def forward(self, executor: Executor, ids: Tensor, positions: Tensor, this_pass: Pass) -> Tensor:
        """Logits, shape `(rows, queries, vocab)`."""
        hidden = self.tokens(ids) + self.places(positions)
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(hidden).chunk(3, dim=-1)
        )
        keys, values = executor.cache.update(key, value, 0)
        mixed = this_pass.attend(query, keys, values, query.shape[-1] ** -0.5)
        logits: Tensor = self.out(hidden + mixed.transpose(1, 2).flatten(2))
        return logits


def executors() -> dict[str, Executor]:
    return {
        "host": executor_for(ReferenceAttention(), CPU),
        "device": executor_for(PlainDevice(), CPU),
        "recorded": executor_for(TapedBackend(PlainDevice()), CPU, TapeRecorder()),
    }


def each(of: Callable[[Executor, Network], list[Tensor]]) -> None:
    """What is done with each executor gives the same tensors."""
    network = Network()
    with torch.inference_mode():
        found = {name: of(executor, network) for name, executor in executors().items()}
    for name in ("device", "recorded"):
        for own, expected in zip(found[name], found["host"], strict=True):
            torch.testing.assert_close(own, expected, rtol=0, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


def read(executor: Executor, network: Network, slot: int, ids: list[int]) -> None:
    executor.cache.open(slot, 48)
    with executor.reading([slot], [len(ids)]) as (positions, this_pass):
        network(executor, torch.tensor([ids]), positions, this_pass)


def logits(executor: Executor, network: Network, staged: dict[int, tuple[TokenTree, int]]) -> Tensor:
    inputs = executor.inputs(staged)

    def work(view: TreeView) -> tuple[Tensor]:
        return (network(executor, view.ids[None], view.positions[None], view.attention)[0],)

    (made,) = executor.run(inputs, work, "logits")
    return executor.lasting(made[: inputs.layout.queries])


def test_the_backend_says_which_executor_it_is() -> None:
    kinds = {name: type(executor) for name, executor in executors().items()}
    assert kinds == {"host": HostExecutor, "device": DeviceExecutor, "recorded": DeviceExecutor}


@settings(max_examples=15, deadline=None)
@given(st.lists(draft_trees(max_nodes=9, vocab_size=VOCAB), min_size=1, max_size=3), st.data())
def test_rounds_over_any_trees_are_the_same(trees: list[TokenTree], data: st.DataObject) -> None:
    """Trees are run whole or in two parts, paths through them are kept, and the next trees see what was kept."""
    paths = {slot: tree.path(data.draw(st.integers(0, len(tree) - 1))) for slot, tree in enumerate(trees)}
    cuts = {slot: data.draw(st.integers(0, len(tree) - 1)) for slot, tree in enumerate(trees)}

    def rounds(executor: Executor, network: Network) -> list[Tensor]:
        for slot in range(len(trees)):
            read(executor, network, slot, [1 + slot, 2, 3][: 1 + slot])
        found = []
        for _ in range(2):
            first = {slot: (tree.keep(range(cuts[slot])), 0) for slot, tree in enumerate(trees) if cuts[slot]}
            if first:
                found.append(logits(executor, network, first))
            found.append(logits(executor, network, {slot: (tree, cuts[slot]) for slot, tree in enumerate(trees)}))
            executor.commit(paths)
        return found

    each(rounds)


def test_walks_are_those_along_the_most_likely_tokens() -> None:
    network = Network()
    executor = DeviceExecutor(PlainDevice(), CPU)
    host = HostExecutor(ReferenceAttention(), CPU)
    native = NativeAttention().recorder()  # None where there is no compiler
    walking = [executor, *([HostExecutor(ReferenceAttention(), CPU, native)] if native else [])]
    tree = TokenTree(np.arange(VOCAB + 1) % VOCAB, np.array([-1, *[0] * VOCAB]), np.zeros(VOCAB + 1))
    with torch.inference_mode():
        for one in (*walking, host):
            read(one, network, 0, [4, 5])
            read(one, network, 1, [6])
        expected = logits(host, network, {0: (tree, 0), 1: (tree, 0)}).argmax(-1)[: len(tree)]
    child = next(node for node in range(1, len(tree)) if tree.tokens[node] == expected[0])
    for one in walking:
        inputs = one.inputs({0: (tree, 0), 1: (tree, 0)})

        def work(view: TreeView, own: Executor = one) -> tuple[Tensor]:
            return (network(own, view.ids[None], view.positions[None], view.attention)[0],)

        _, walks = one.walk(inputs, work, "logits", [0], frozenset())
        path, token, _ = walks[0]
        assert path.tolist() == [0, child]
        assert token == expected[child]
        assert walks.keys() == {0}
        assert one.cache.lengths == [2 + 2, 1]
        assert one.cache.staged == [0, len(tree)]
    assert not host.can_walk
    with pytest.raises(RuntimeError, match="does not walk"):
        host.walk(inputs, lambda view: (view.ids,), "ids", [0], frozenset())


def test_numbers_are_sent_with_a_pass() -> None:
    tree = TokenTree([3, 1, 2], [-1, 0, 0], np.zeros(3))

    def sent(executor: Executor, network: Network) -> list[Tensor]:
        read(executor, network, 0, [1])
        found = []
        for values in ([2, 0], [1, 1]):
            inputs = executor.inputs({0: (tree, 0)})
            more = {"some": Numbers(np.array(values))}

            def work(view: TreeView) -> tuple[Tensor]:
                made = network(executor, view.ids[None], view.positions[None], view.attention)[0]
                return (made.index_select(0, view.more["some"]),)

            (made,) = executor.run(inputs, work, "some", more)
            found.append(executor.lasting(made[: len(values)]))
            executor.commit({0: np.array([0])})
        return found

    each(sent)


@given(st.integers(1, 9), st.integers(1, VOCAB))
def test_the_best_tokens_of_a_function_are_the_same(rows: int, width: int) -> None:
    torch.manual_seed(rows)
    states = torch.randn(2, rows, WIDTH, dtype=torch.float64)

    def best(executor: Executor, network: Network) -> list[Tensor]:
        found = [best_by(executor, "out", network.out, (own,), width, Vocabulary(VOCAB)) for own in states]
        assert [one.law(0).sum() for one in found] == pytest.approx([1, 1])
        return [torch.from_numpy(part) for one in found for part in (one.tokens[:, :width], one.logp[:, :width])]

    each(best)


def test_each_kind_of_pass_is_recorded_by_itself() -> None:
    tree = TokenTree([3, 1, 2], [-1, 0, 0], np.zeros(3))

    def both(executor: Executor, network: Network) -> list[Tensor]:
        read(executor, network, 0, [1])
        found = []
        for sign in (1, -1, 1):
            inputs = executor.inputs({0: (tree, 0)})

            def work(view: TreeView, sign: int = sign) -> tuple[Tensor]:
                return (sign * network(executor, view.ids[None], view.positions[None], view.attention)[0],)

            (made,) = executor.run(inputs, work, sign)
            found.append(executor.lasting(made[:3]))
            executor.commit({0: np.array([0])})
        return found

    each(both)


def test_each_kind_of_walk_is_recorded_by_itself() -> None:
    network = Network()
    executor = executor_for(TapedBackend(PlainDevice()), CPU, TapeRecorder())
    tree = TokenTree.root(3)
    found = []
    with torch.inference_mode():
        for sign in (1, -1):
            read(executor, network, 0, [4, 5])

            def work(view: TreeView, sign: int = sign) -> tuple[Tensor]:
                return (sign * network(executor, view.ids[None], view.positions[None], view.attention)[0],)

            (made,), walks = executor.walk(executor.inputs({0: (tree, 0)}), work, sign, [0], frozenset())
            assert walks[0][1] == made[0].argmax()
            found.append(made[0].clone())
    torch.testing.assert_close(found[0], -found[1], rtol=0, atol=1e-12)


def test_what_a_pass_found_lasts_through_calls_and_other_passes() -> None:
    tree = TokenTree([3, 1], [-1, 0], np.zeros(2))

    def kept(executor: Executor, network: Network) -> list[Tensor]:
        read(executor, network, 0, [1])
        first = logits(executor, network, {0: (tree, 0)})
        executor.call("out", network.out, torch.ones(2, WIDTH, dtype=torch.float64))
        executor.commit({0: np.array([0, 1])})
        return [first, logits(executor, network, {0: (tree, 0)})]

    each(kept)


def test_what_cannot_be_recorded_runs_as_it_is_and_says_why() -> None:
    executor = executor_for(TapedBackend(PlainDevice()), CPU, TapeRecorder())
    rows = torch.arange(4.0)[:, None]
    with pytest.warns(RuntimeWarning, match="without CUDA graphs"):
        found = executor.call("asks", lambda own: own * float(own.max() >= 0), rows)
    assert torch.equal(found, rows)
    assert "asks the device" in str(executor.failure)
    assert torch.equal(executor.call("asks", lambda own: own + 1, rows), rows + 1)


TREE = TokenTree([3, 1, 2], [-1, 0, 0], np.zeros(3))


@pytest.mark.parametrize("name", executors())
@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ([0, 3], r"the path of slot 0 is \[0, 3\]; it must ascend, within its 3 staged nodes"),
        ([2, 0], r"is \[2, 0\]; it must ascend"),
        ([-1], r"is \[-1\]; it must ascend"),
    ],
)
def test_a_path_through_other_nodes_than_those_that_are_staged_is_refused(
    name: str, path: list[int], complaint: str
) -> None:
    executor, network = executors()[name], Network()
    with torch.inference_mode():
        read(executor, network, 0, [1])
        logits(executor, network, {0: (TREE, 0)})
        with pytest.raises(ValueError, match=complaint):
            executor.commit({0: np.array(path)})
        executor.commit({0: np.array([0, 2])})
    assert executor.cache.lengths == [3]


@pytest.mark.parametrize("name", executors())
def test_slots_that_are_not_open_are_refused(name: str) -> None:
    executor, network = executors()[name], Network()
    read(executor, network, 2, [1])
    for wrong in (
        lambda: executor.inputs({0: (TREE, 0)}),
        lambda: executor.commit({9: np.array([0])}),
        lambda: executor.reading([0], [1]).__enter__(),
        lambda: executor.cache.resume(3, 8, 9, 1),
    ):
        with pytest.raises(ValueError, match=r"slot [09] is not open; open are: 2"):
            wrong()
    with pytest.raises(ValueError, match="the slot is -1; it must be a whole number and at least 0"):
        executor.cache.open(-1, 8)


@pytest.mark.parametrize("name", executors())
def test_prompts_that_cannot_be_read_together_are_refused(name: str) -> None:
    executor, network = executors()[name], Network()
    with torch.inference_mode():
        read(executor, network, 0, [1])
        read(executor, network, 1, [1, 2])
        for slots in ([0, 1], [0, 0]):
            with pytest.raises(ValueError, match="must be different slots whose prefixes are equally long"):
                executor.reading(slots, [1, 1]).__enter__()
        logits(executor, network, {0: (TREE, 0)})
        with pytest.raises(ValueError, match="slot 0 has staged nodes; commit them before"):
            executor.reading([0], [1]).__enter__()


@pytest.mark.parametrize("name", executors())
@pytest.mark.parametrize("values", [np.arange(4), np.zeros((1, 2), dtype=np.int64), np.array([0.5])])
def test_numbers_that_a_pass_has_no_room_for_are_refused(name: str, values: Any) -> None:
    executor, network = executors()[name], Network()
    read(executor, network, 0, [1])
    inputs = executor.inputs({0: (TREE, 0)})
    with pytest.raises(ValueError, match=r"'some' has shape .* whole numbers in a row, at most as many as .* are 3$"):
        executor.run(inputs, lambda view: (view.ids,), "some", {"some": Numbers(values)})


def test_no_candidates_cannot_be_wanted() -> None:
    with pytest.raises(ValueError, match="the width is 0; at least 1 candidate must be wanted"):
        best_by(executors()["host"], "out", Network().out, (torch.ones(1, WIDTH),), 0, Vocabulary(VOCAB))


def test_what_lasts_is_not_overwritten() -> None:
    network = Network()
    for executor in executors().values():
        with torch.inference_mode():
            ones, zeros = torch.ones(2, WIDTH, dtype=torch.float64), torch.zeros(2, WIDTH, dtype=torch.float64)
            first = executor.lasting(executor.call("out", network.out, ones)[:2])
            before = first.clone()
            executor.call("out", network.out, zeros)
            assert torch.equal(first, before)


def test_a_vocabulary_names_the_targets_tokens() -> None:
    scores = torch.tensor([[0.0, 2.0, 1.0]])
    best = Best.of(scores, 2, Vocabulary(9, np.array([8, 3, 5])))
    assert best.tokens.tolist() == [[3, 5]]
    law = best.law(0)
    assert np.flatnonzero(law).tolist() == [3, 5, 8]
    assert law.sum() == pytest.approx(1)
    assert best_numbers(scores, 2)[0, :2].tolist() == [1, 2]


def backends() -> list[AttentionBackend]:
    return [ReferenceAttention(), PlainDevice()]


@pytest.mark.parametrize("backend", backends(), ids=lambda backend: type(backend).__name__)
def test_a_prompt_in_parts_is_as_one_that_is_read_at_once(backend: AttentionBackend) -> None:
    network, tree = Network(), TokenTree([3, 1], [-1, 0], np.zeros(2))
    found = []
    with torch.inference_mode():
        for parts in ([[1, 2, 3, 4]], [[1], [2, 3], [4]]):
            executor = executor_for(backend, CPU)
            executor.cache.open(0, 16)
            for ids in parts:
                with executor.reading([0], [len(ids)]) as (positions, this_pass):
                    network(executor, torch.tensor([ids]), positions, this_pass)
            found.append(logits(executor, network, {0: (tree, 0)}))
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([[1, 2]], r"have shape \(1, 2\) and type int64; they are whole numbers in a row"),
        ([1.0], "type float64"),
        ([1, 9], "hold 9; the target's vocabulary has ids 0 to 8"),
        ([-1], "hold -1"),
        ([3, 4, 3], "hold a token twice"),
    ],
)
def test_a_drafters_vocabulary_is_of_different_tokens_of_the_target(ids, sentence):
    with pytest.raises(ValueError, match=sentence):
        Vocabulary(9, np.array(ids))


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({0: 3}, "last 3 rows of slot 0 .* has 2"),
        ({0: 1.5}, "last 1.5 rows"),
        ({7: 1}, "of slot 7 are wanted; the pass has slots 0 to 2"),
        ({7: 0}, "of slot 7"),
        ({-1: 0}, "of slot -1"),
    ],
)
def test_rows_that_a_pass_does_not_have_are_refused(counts, sentence):
    with pytest.raises(ValueError, match=sentence):
        last_rows(np.array([0, 2, 2, 5]), counts)


def test_the_last_rows_of_no_slot_are_none():
    places, first = last_rows(np.array([0, 2]), {})
    assert (places.tolist(), first) == ([], {})


def test_the_best_of_nothing_cannot_be_had():
    with pytest.raises(ValueError, match="inputs are empty"):
        best_by(executors()["host"], "out", Network().out, (), 2, Vocabulary(VOCAB))
