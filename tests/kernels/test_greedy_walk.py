"""The device's walk is the rule's own at temperature 0, node for node and token for token."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.attention import TreeLayout
from talon_core.choices import SeededChoices
from talon_core.laws import Laws
from talon_core.runtime.host_walks import greedy_walks
from talon_core.runtime.inputs import pass_inputs
from talon_core.testing import draft_trees
from talon_core.tree import TokenTree
from talon_kernels.greedy_walk import greedy_walk
from talon_kernels.native import switch_off
from talon_strategies import Match

VOCAB = 500
FEW = 6


class OneHotLaws(Laws):
    """All of the law on one token after each node."""

    def __init__(self, best, ends):
        self.best, self.ending = best, ends

    def at(self, node):
        law = np.zeros(VOCAB)
        law[self.best[node]] = 1.0
        return law

    def ends(self, token):
        return token in self.ending


def tree_of(parents, tokens):
    return TokenTree(tokens=tokens, parents=parents, path_logp=np.zeros(len(parents)))


@st.composite
def large_trees(draw):
    """Trees of a GPU's size, over several blocks of nodes; siblings may hold the same token."""
    nodes = draw(st.sampled_from([1, 2, 7, 63, 100, 127, 128, 129, 300]))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    before = np.arange(-1, nodes - 1)
    kind = draw(st.sampled_from(["any", "chain", "wide", "nearly a chain", "late children"]))
    if kind == "wide":
        before = np.minimum(before, 0)
    elif kind == "any":
        before[1:] = random.integers(0, np.arange(1, nodes)) if nodes > 1 else []
    elif kind == "nearly a chain":
        before[1:] = np.maximum(before[1:] - random.integers(0, 3, nodes - 1), 0)
    elif kind == "late children":  # far behind their parents, in other blocks
        before[1:] = before[1:] // 2
    return tree_of(before, random.integers(0, draw(st.sampled_from([1, FEW, FEW, VOCAB])), nodes))


@st.composite
def targets(draw, trees):
    """A tree, or None, with the target's best token after each node: mostly, or always, one that a child holds."""
    tree = draw(st.none() | trees)
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    best = random.integers(0, FEW, len(tree) if tree else 0)
    rate = draw(st.sampled_from([0.9, 1.0]))
    for node in range(len(best)):
        children = np.flatnonzero(tree.parents == node)
        if len(children) and random.random() < rate:
            best[node] = tree.tokens[random.choice(children)]
    return tree, best


def batches(trees, most=5):
    return st.lists(targets(trees), min_size=1, max_size=most)


ENDS = st.just([]) | st.lists(st.sampled_from([0, 1, FEW, 100, 2**31 - 1]), max_size=20)


def arguments(batch, ends, device, best_type=torch.int64, ends_type=torch.int64):
    """What `greedy_walk` takes, with memory behind the nodes that no sequence owns."""
    trees = [tree for tree, _ in batch]
    layout = TreeLayout(
        np.full(len(batch), 7),
        tuple(tree.parents if tree else np.zeros(0, np.int64) for tree in trees),
        np.zeros(len(batch), np.int64),
    )
    sequences = layout.packed(device).sequences

    def flat(arrays, dtype):
        return torch.tensor([*np.concatenate(arrays).tolist(), 0, 0, 0], dtype=dtype, device=device)

    return (
        flat([best for _, best in batch], best_type),
        flat([tree.tokens if tree else [] for tree in trees], torch.int32),
        flat([tree.parents if tree else [] for tree in trees], torch.int32),
        sequences,
        torch.tensor(list(ends), dtype=ends_type, device=device),
    )


def expected(batch, ends, longest):
    """The rule `match`, sequence by sequence."""
    walks = []
    for tree, best in batch:
        path, token = [], -1
        if tree:
            accepted = Match().walk(tree, OneHotLaws(best, ends), SeededChoices(0))
            path, token = accepted.path[:longest].tolist(), accepted.token
            if len(accepted.path) > longest:
                token = int(best[path[-1]])
        walks.append([len(path), token, *path, *[-1] * (longest - len(path))])
    return walks


@settings(deadline=None)
@given(batch=batches(draft_trees(max_nodes=24, vocab_size=FEW) | large_trees()), ends=ENDS, longest=st.integers(1, 40))
def test_the_reference_walks_as_match_does(batch, ends, longest):
    got = greedy_walk(*arguments(batch, ends, "cpu"), longest, backend="reference")
    assert got.tolist() == expected(batch, ends, longest)
    assert got.dtype == torch.int32


@settings(deadline=None, max_examples=60)
@given(
    batch=batches(draft_trees(max_nodes=24, vocab_size=FEW) | large_trees()),
    ends=ENDS,
    longest=st.integers(1, 200),
    types=st.tuples(*[st.sampled_from([torch.int32, torch.int64])] * 2),
)
def test_the_native_kernel_walks_as_match_does(library, batch, ends, longest, types):
    got = greedy_walk(*arguments(batch, ends, "cpu", *types), longest, backend="native")
    assert got.tolist() == expected(batch, ends, longest)
    assert got.dtype == torch.int32


@settings(deadline=None)
@given(batch=batches(draft_trees(max_nodes=24, vocab_size=FEW) | large_trees()), ends=ENDS, data=st.data())
def test_a_host_walks_as_match_does_and_goes_to_no_node_that_is_asked_about(batch, ends, data):
    slots = [slot for slot, (tree, _) in enumerate(batch) if tree]
    more = {slot: data.draw(st.integers(0, 3)) for slot in data.draw(st.sets(st.sampled_from(slots)))} if slots else {}
    asked = {
        slot: tree_of(
            [*tree.parents, *data.draw(st.lists(st.integers(0, len(tree) - 1), min_size=count, max_size=count))],
            [*tree.tokens, *data.draw(st.lists(st.integers(0, FEW), min_size=count, max_size=count))],
        )
        for slot, count in more.items()
        for tree in [batch[slot][0]]
    }
    staged = {slot: (asked.get(slot, batch[slot][0]), 0) for slot in slots}
    inputs = pass_inputs(staged, [7] * len(batch))
    best = [np.append(batch[slot][1], np.zeros(more.get(slot, 0), np.int64)) for slot in slots]
    walks = greedy_walks(inputs, torch.from_numpy(np.concatenate([[], *best]).astype(np.int64)), slots, set(ends), more)
    walked = {slot: [len(walk.path), walk.token, *walk.path.tolist()] for slot, walk in walks.items()}
    longest = max((len(tree) for tree, _ in batch if tree), default=1)
    rule = expected(batch, ends, longest)
    assert walked == {slot: rule[slot][: 2 + rule[slot][0]] for slot in slots}
    assert all(walk.path.dtype == np.int64 for walk in walks.values())


def test_without_kernels_the_reference_walks():
    given_ = arguments([(tree_of([-1, 0], [0, 5]), np.array([5, 2]))], [], "cpu")
    with switch_off("there is no compiler"):
        assert greedy_walk(*given_, 2).tolist() == [[2, 2, 0, 1]]
        with pytest.raises(ValueError, match="backend 'native' cannot be used here: there is no compiler"):
            greedy_walk(*given_, 2, backend="native")


@settings(deadline=None, max_examples=60)
@given(
    batch=batches(draft_trees(max_nodes=24, vocab_size=FEW)),
    ends=ENDS,
    longest=st.sampled_from([1, 2, 7, 24, 63]),
    types=st.tuples(*[st.sampled_from([torch.int32, torch.int64])] * 2),
)
def test_triton_walks_as_match_does(device, batch, ends, longest, types):
    got = greedy_walk(*arguments(batch, ends, device, *types), longest, backend="triton")
    assert got.tolist() == expected(batch, ends, longest)
    assert got.dtype == torch.int32
    assert got.device.type == device.type


@settings(deadline=None, max_examples=50)
@given(
    batch=batches(large_trees(), most=2),
    ends=ENDS,
    longest=st.sampled_from([1, 5, 17, 40, 127, 128, 129, 200]),
)
def test_triton_walks_as_the_reference_does_over_many_blocks(device, batch, ends, longest):
    given_ = arguments(batch, ends, device)
    assert torch.equal(
        greedy_walk(*given_, longest, backend="triton"), greedy_walk(*given_, longest, backend="reference")
    )


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_the_tree_of_seven(device, backend):
    #         0
    #       /   \
    #      1:5   2:4
    #     /  \     \
    #   3:2  4:2   5:1      node:token
    #   |
    #   6:3
    tree = tree_of([-1, 0, 0, 1, 1, 2, 3], [0, 5, 4, 2, 2, 1, 3])

    def walks(best, ends=(), longest=5):
        return greedy_walk(*arguments([(tree, np.array(best))], ends, device), longest, backend=backend).tolist()

    assert walks([5, 2, 0, 3, 3, 0, 0]) == [[4, 0, 0, 1, 3, 6, -1]]
    assert walks([5, 2, 0, 3, 3, 0, 0], longest=4) == [[4, 0, 0, 1, 3, 6]]
    assert walks([5, 2, 0, 3, 3, 0, 0], longest=3) == [[3, 3, 0, 1, 3]], "node 6 would be one too many"
    assert walks([5, 2, 0, 3, 3, 0, 0], ends=[9, 2, 30]) == [[2, 2, 0, 1, -1, -1, -1]], "the end itself is in no path"
    assert walks([4, 2, 0, 3, 3, 0, 0]) == [[2, 0, 0, 2, -1, -1, -1]]
    assert walks([1, 2, 0, 3, 3, 0, 0]) == [[1, 1, 0, -1, -1, -1, -1]]


@pytest.mark.parametrize("longest", [129, 257, 400])
def test_a_chain_is_followed_from_block_to_block(device, longest):
    tree = tree_of(np.arange(-1, 299), np.arange(300) % FEW)
    batch = [(None, np.zeros(0)), (tree, np.append(tree.tokens[1:], 77))]
    got = greedy_walk(*arguments(batch, [77], device), longest, backend="triton")
    length = min(longest, 300)
    token = 77 if longest > 300 else longest % FEW
    assert got[1].tolist() == [length, token, *range(length), *[-1] * (longest - length)]


def test_the_same_memory_written_anew_gives_the_new_answer(device):
    """What a captured graph relies on: sizes and addresses stay, the numbers change; trees take more or less room."""
    random = np.random.default_rng(0)
    memory = [torch.zeros(400, dtype=torch.int64, device=device)]
    memory += [torch.zeros(400, dtype=torch.int32, device=device) for _ in range(2)]
    memory += [torch.zeros(3, 4, dtype=torch.int32, device=device), torch.zeros(2, dtype=torch.int64, device=device)]
    for nodes in ((3, 0, 130), (0, 0, 0), (150, 7, 63)):
        batch = []
        for count in nodes:
            tree = tree_of(np.arange(-1, count - 1), random.integers(0, FEW, count)) if count else None
            stops = int(random.integers(0, 20))
            batch.append((tree, np.array([*tree.tokens[1 : stops + 1], *[0] * count][:count]) if tree else np.zeros(0)))
        ends = [1000, int(random.integers(0, FEW))]
        for kept, new in zip(memory, arguments(batch, ends, device), strict=True):
            kept[: len(new)] = new
        assert greedy_walk(*memory, 12, backend="triton").tolist() == expected(batch, ends, 12)


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_without_sequences_there_is_nothing_to_walk(device, backend):
    none = torch.zeros(0, dtype=torch.int32, device=device)
    sequences = torch.zeros(0, 4, dtype=torch.int32, device=device)
    assert greedy_walk(none, none, none, sequences, none, 3, backend=backend).shape == (0, 5)
    sequences = torch.zeros(2, 4, dtype=torch.int32, device=device)
    assert greedy_walk(none, none, none, sequences, none, 3, backend=backend).tolist() == [[0, -1, -1, -1, -1]] * 2


INTS = torch.zeros(3, dtype=torch.int32)
SEQUENCES = torch.zeros(1, 4, dtype=torch.int32)
GOOD = {"best": INTS, "tokens": INTS, "parents": INTS, "sequences": SEQUENCES, "ends": INTS, "longest": 3}


def test_the_cpu_takes_the_reference_and_says_so_where_triton_is_asked_for(monkeypatch, device):
    monkeypatch.delenv("TRITON_INTERPRET")
    greedy_walk(**GOOD)
    with pytest.raises(
        ValueError, match=r"'triton' cannot be used here: it runs on GPUs, not on cpu.*TRITON_INTERPRET"
    ):
        greedy_walk(**GOOD, backend="triton")
    monkeypatch.setattr("talon_kernels.triton_runtime.find_spec", lambda _: None)
    greedy_walk(**GOOD)
    with pytest.raises(ValueError, match="triton is not installed"):
        greedy_walk(**GOOD, backend="triton")


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"best": INTS[:2]}, r"best, tokens and parents are \(queries,\); got \(2,\), \(3,\) and \(3,\)"),
        ({"parents": INTS[None]}, r"got \(3,\), \(3,\) and \(1, 3\)"),
        ({"sequences": SEQUENCES[:, :3]}, r"sequences is \(batch, 4\) and ends \(ends,\); got \(1, 3\) and \(3,\)"),
        ({"ends": INTS[None]}, r"got \(1, 4\) and \(1, 3\)"),
        ({"best": INTS.float()}, "best must be contiguous torch.int32 or torch.int64 on cpu.*; got torch.float32"),
        ({"tokens": INTS.long()}, "tokens must be contiguous torch.int32 on cpu.*; got torch.int64"),
        ({"parents": INTS.to("meta")}, "parents must be contiguous torch.int32 on cpu.* on meta"),
        ({"ends": torch.zeros(6, dtype=torch.int32)[::2]}, r"ends must be contiguous .* strides \(2,\)"),
        ({"longest": 0}, "longest is 0; it must be at least 1, for the root"),
        ({"backend": "magic"}, "no backend 'magic' of greedy_walk; there are: triton, native, reference"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(bad, sentence):
    with pytest.raises(ValueError, match=sentence):
        greedy_walk(**{**GOOD, **bad})
