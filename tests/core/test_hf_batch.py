"""A batch of sequences on a transformers model: each row gets what it would get alone, whatever its neighbours are."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from talon_core import TokenTree
from talon_core.hf.target import HFTarget
from talon_core.plugins.registry import load_registry
from talon_core.runtime.inputs import prompt_passes
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_tests.tiny_models import tiny_model

ARCHITECTURES = ["llama", "gemma3"]
VOCAB = 97
PROMPTS = (19, 1, 6)
"""Lengths; one goes past the sliding window of 12, and one leaves nothing to prefill."""
SIZES = ((7, 1, 12), (1, 9, 2), (5, 33, 1), (3, 2, 8))
"""Nodes of the three trees in each round; some masks need two words."""


@pytest.fixture(autouse=True)
def _poisoned_buffers():
    """Memory that nobody wrote to holds NaN, so a row that reads its neighbour's padding is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def random_tree(rng: np.random.Generator, root: int, nodes: int) -> TokenTree:
    parents = [-1, *(int(rng.integers(0, node)) for node in range(1, nodes))]
    return TokenTree([root, *rng.integers(0, VOCAB, nodes - 1)], parents, np.zeros(nodes))


def plan() -> tuple[list[np.ndarray], list[list[TokenTree]], list[list[np.ndarray]]]:
    """Three prompts, and for each round three trees and the paths that are kept of them."""
    rng = np.random.default_rng(6)
    prompts = [rng.integers(3, VOCAB, length) for length in PROMPTS]
    roots = [int(prompt[-1]) for prompt in prompts]
    trees, paths = [], []
    for sizes in SIZES:
        trees.append([random_tree(rng, root, nodes) for root, nodes in zip(roots, sizes, strict=True)])
        paths.append([tree.path(int(rng.integers(0, len(tree)))) for tree in trees[-1]])
        roots = [int(rng.integers(0, VOCAB)) for _ in roots]
    return prompts, trees, paths


def outputs(
    target: HFTarget, rows: list[int], capacity: int, slots: list[int] | None = None, part: int = 99
) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """For each row of the plan that takes part its logits and features in each round, the prompt's features first.

    Args:
        target: runs them.
        rows: which of the plan's sequences.
        capacity: room for each.
        slots: where each is; by default the first ones.
        part: how many tokens of a prompt are read at a time.
    """
    prompts, trees, paths = plan()
    slots = [*range(len(rows))] if slots is None else slots
    own = [*zip(slots, rows, strict=True)]
    found: list[list[tuple[Any, Any]]] = [[] for _ in rows]
    passes = counted(target)
    with target.session():
        for slot in slots:
            target.open(slot, capacity)
        parts: list[dict[int, torch.Tensor | None]] = []
        for start in range(0, max(PROMPTS), part):
            given = {slot: prompts[row][:-1][start : start + part] for slot, row in own}
            parts.append({**target.read({slot: ids for slot, ids in given.items() if len(ids) or not start})})
        for at, slot in enumerate(slots):
            features = [of[slot] for of in parts if slot in of]
            found[at].append((None, torch.cat([one for one in features if one is not None])))
        for round_trees, round_paths in zip(trees, paths, strict=True):
            before = len(passes)
            verified = target.verify({slot: round_trees[row] for slot, row in own})
            assert (verified.outputs.keys(), verified.accepted) == (set(slots), {})
            for at, slot in enumerate(slots):
                one = verified.outputs[slot]
                assert one.features is not None
                found[at].append((one.logits.clone(), one.features.clone()))
            assert len(passes) == before + 1
            target.commit({slot: round_paths[row] for slot, row in own})
        for slot in slots:
            target.close(slot)
    return found


def counted(target: HFTarget) -> list[int]:
    """The rows of each forward pass of the model from now on."""
    passes: list[int] = []
    target.model.register_forward_pre_hook(
        lambda _module, _args, options: passes.append(len(options["input_ids"])), with_kwargs=True
    )
    return passes


def check_rows(one: list[tuple[Any, Any]], other: list[tuple[Any, Any]], rounding: float = 1e-5) -> None:
    """Logits and features of all rounds are close."""
    for (logits, features), (expected_logits, expected_features) in zip(one, other, strict=True):
        check_close(features, expected_features, rounding)
        assert (logits is None) == (expected_logits is None)
        if logits is not None:
            check_close(logits, expected_logits, rounding)


def check_close(one: torch.Tensor, other: torch.Tensor, rounding: float = 1e-5) -> None:
    """Equal but for rounding of sums in another order: in float32 1e-5 of the largest entry, in float64 1e-12."""
    assert one.shape == other.shape
    if other.numel():
        torch.testing.assert_close(one, other, rtol=0, atol=rounding * float(other.abs().max()))


def backend(name: str) -> Any:
    """An attention backend; the test is skipped, in sight, where the native one cannot be built."""
    made = load_registry().get("attention backend", name).cls()
    why = made.unavailable(torch.device("cpu"), torch.float32)
    if why is not None:
        pytest.skip(why)
    return made


unprobed = partial(HFTarget, probe=False)
"""Probing takes longer than most of these tests; of each architecture and way of attending one target is probed."""


@pytest.mark.parametrize("capacity", [24, 200])
@pytest.mark.parametrize("attention", ["reference", "sdpa", "native"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_gets_in_a_batch_what_it_gets_alone(architecture: str, attention: str, capacity: int) -> None:
    target = HFTarget(tiny_model(architecture), backend(attention), features=(0, 3))
    together = outputs(target, [0, 1, 2], capacity)
    for row in range(3):
        (alone,) = outputs(target, [row], capacity)
        check_rows(together[row], alone)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_with_native_kernels_a_row_gets_the_very_same_bits(architecture: str) -> None:
    attention = backend("native")
    accelerator = load_registry().get("accelerator", "native").cls()
    target = HFTarget(tiny_model(architecture), attention, accelerator, features=(0, 3))
    together = outputs(target, [0, 1, 2], 200)
    for row in range(3):
        (alone,) = outputs(target, [row], 200)
        for (logits, features), (expected_logits, expected_features) in zip(together[row], alone, strict=True):
            assert torch.equal(features, expected_features)
            assert logits is None or torch.equal(logits, expected_logits)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_rows_place_in_the_batch_does_not_matter(architecture: str) -> None:
    target = unprobed(tiny_model(architecture), backend("sdpa"), features=(2,))
    one, other = outputs(target, [0, 1, 2], 200), outputs(target, [2, 0, 1], 200)
    for row, place in ((0, 1), (1, 2), (2, 0)):
        for (logits, _), (expected, _) in zip(one[row][1:], other[place][1:], strict=True):
            check_close(logits, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_the_plain_models(architecture: str) -> None:
    model = tiny_model(architecture)
    target = unprobed(model, backend("sdpa"), features=(0,))
    found = outputs(target, [0, 1, 2], 64)
    prompts, trees, paths = plan()
    for row in range(3):
        prefix = prompts[row][:-1]
        for (logits, _), round_trees, round_paths in zip(found[row][1:], trees, paths, strict=True):
            tree, path = round_trees[row], round_paths[row]
            for node in range(len(tree)):
                ids = torch.as_tensor(np.concatenate([prefix, tree.tokens[tree.path(node)]]))[None]
                with torch.inference_mode():
                    plain = model(input_ids=ids, use_cache=False).logits[0, -1]
                check_close(logits[node], plain)
            prefix = np.concatenate([prefix, tree.tokens[path]])


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gemma2", "gpt-oss"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_prompts_may_run_together_and_in_parts(architecture: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = unprobed(tiny_model(architecture), backend("reference"), features=(0, 3))
    expected = outputs(target, [0, 1, 2], 64)
    monkeypatch.setattr("talon_core.runtime.executor.HOST_PROMPT_TOKENS", 5)
    monkeypatch.setattr(type(target.runner.executor), "prompts", rows)
    for row, one in zip(outputs(target, [0, 1, 2], 64), expected, strict=True):
        check_rows(row, one)


@pytest.mark.parametrize("part", [1, 7, 18])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gemma2", "gpt-oss"])
def test_a_prompt_that_is_read_in_several_parts_is_as_one_that_is_read_at_once(
    architecture: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(architecture).double()
    model.set_experts_implementation("eager")  # the others have no float64
    target = unprobed(model, backend("reference"), features=(0, 3))
    expected = outputs(target, [0, 1, 2], 64)
    for rows, chunk in ((1, 1024), (3, 5)):
        monkeypatch.setattr("talon_core.runtime.executor.HOST_PROMPT_TOKENS", chunk)
        monkeypatch.setattr(type(target.runner.executor), "prompts", rows)
        for row, one in zip(outputs(target, [0, 1, 2], 64, part=part), expected, strict=True):
            check_rows(row, one, 1e-12)


def states_of_ends(
    architecture: str, counts: list[int], slots: list[int], accelerator: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[int, torch.Tensor], int]:
    """What is read in these slots of ends of so many tokens, after the same beginning, and in how many passes."""
    rng, passes = np.random.default_rng(7), []
    beginning, ends = rng.integers(3, VOCAB, 14), [rng.integers(3, VOCAB, count) for count in counts]
    target = unprobed(tiny_model(architecture), backend("native"), accelerator, features=(0, 3))
    with target.session():
        for slot in slots:
            target.open(slot, 64)
            target.read({slot: beginning})
        forward = target.runner._forward
        monkeypatch.setattr(
            target.runner, "_forward", lambda *args, **options: (passes.append(args), forward(*args, **options))[1]
        )
        found = target.read({slot: ends[slot] for slot in slots})
    return {slot: one.clone() for slot, one in found.items() if one is not None}, len(passes)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gemma2"])
def test_short_parts_of_one_length_share_a_pass_and_have_the_bits_they_have_alone(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, accelerator = [2, 40, 17, 2, 17, *[16] * 9], load_registry().get("accelerator", "native").cls()
    slots = [*range(len(counts))]
    together, passes = states_of_ends(architecture, counts, slots, accelerator, monkeypatch)
    assert passes == 6  # those of 2 tokens have one, eight of 16 have one; the other part of 16, and longer ones, don't
    for slot in slots:
        alone, _ = states_of_ends(architecture, counts, [slot], accelerator, monkeypatch)
        assert torch.equal(together[slot], alone[slot])


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gemma2"])
def test_without_an_accelerator_short_parts_are_read_as_alone_up_to_rounding(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [2, 16, 2, *[16] * 7]
    slots = [*range(len(counts))]
    together, _ = states_of_ends(architecture, counts, slots, None, monkeypatch)
    for slot in slots:
        alone, _ = states_of_ends(architecture, counts, [slot], None, monkeypatch)
        check_close(together[slot], alone[slot])


def test_prompts_of_similar_length_run_together() -> None:
    parts = {slot: (0, count) for slot, count in {0: 7, 2: 3, 3: 12, 4: 4}.items()}
    assert list(prompt_passes(parts, chunk=5, rows=2)) == [
        (0, [2, 4]), (0, [0, 3]), (5, [0, 3]), (10, [3])
    ]  # fmt: skip
    assert list(prompt_passes({}, chunk=5, rows=2)) == []


def test_only_prompts_that_go_on_from_the_same_position_run_together() -> None:
    parts = {9: (4, 6), 0: (0, 6), 3: (4, 2), 1: (0, 5)}
    assert list(prompt_passes(parts, chunk=5, rows=3)) == [(0, [1, 0]), (5, [0]), (0, [3, 9]), (5, [9])]


# Slots


@pytest.mark.parametrize("attention", ["reference", "sdpa", "native"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_slots_may_be_any(architecture: str, attention: str) -> None:
    target = unprobed(tiny_model(architecture), backend(attention), features=(0, 3))
    expected = outputs(target, [0, 1, 2], 64)
    for row, one in zip(outputs(target, [0, 1, 2], 64, [5, 0, 3]), expected, strict=True):
        check_rows(row, one)


def taped() -> tuple[Any, list[TapeRecorder]]:
    """A backend whose passes are recorded, and the recorders."""
    recorders: list[TapeRecorder] = []

    def graphs() -> TapeRecorder:
        recorders.append(TapeRecorder())
        return recorders[-1]

    return graphs, recorders


class Row:
    """One row of the plan on its way through a target, compared with what it gets alone."""

    def __init__(self, target: HFTarget, row: int, slot: int, expected: list[tuple[Any, Any]], room: int) -> None:
        prompts, trees, paths = plan()
        self.slot = slot
        self.prompt = prompts[row][:-1]
        self.trees = [round_[row] for round_ in trees]
        self.paths = [round_[row] for round_ in paths]
        self.expected = expected
        self.at = 0
        target.open(slot, room)

    def heard(self, features: Any) -> None:
        check_close(features, self.expected[0][1])

    def verified(self, outputs: Any) -> None:
        logits, features = self.expected[1 + self.at]
        check_close(outputs.logits, logits)
        check_close(outputs.features, features)


def round_of(target: HFTarget, rows: list[Row]) -> None:
    """One round of these rows, the others rest."""
    outputs = target.verify({row.slot: row.trees[row.at] for row in rows}).outputs
    for row in rows:
        row.verified(outputs[row.slot])
    target.commit({row.slot: row.paths[row.at] for row in rows})
    for row in rows:
        row.at += 1


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_slots_join_rest_leave_and_are_opened_again_while_others_are_decoded(architecture: str, recorded: bool) -> None:
    model = tiny_model(architecture)
    graphs, recorders = taped()
    target = (
        HFTarget(model, TapedBackend(PlainDevice()), features=(0, 3), graphs=graphs)
        if recorded
        else unprobed(model, backend("sdpa"), features=(0, 3))
    )
    alone = unprobed(model, backend("reference"), features=(0, 3))
    expected = [outputs(alone, [row], 64)[0] for row in range(3)]

    def join(row: int, slot: int, room: int = 24) -> Row:
        made = Row(target, row, slot, expected[row], room)
        made.heard(target.read({slot: made.prompt})[slot])
        return made

    with target.session():
        first, second = join(0, 4), join(2, 1)
        round_of(target, [first, second])
        third = join(1, 2, room=90)  # more than there is
        round_of(target, [third, first])  # the second rests
        round_of(target, [second, third])
        target.close(1)  # in the middle of its text
        round_of(target, [first, third])
        again = join(0, 1)
        target.close(2)
        round_of(target, [again])
        other = join(1, 4)  # its slot was not even closed
        for _ in range(3):
            round_of(target, [again, other])
        round_of(target, [other])
        for slot in (1, 4):
            target.close(slot)
    assert target.runner.cache.lengths == [0] * len(target.runner.cache.lengths)
    assert all(one.repeated > one.recorded > 0 for one in recorders)
    assert len(recorders) == recorded


@pytest.mark.parametrize("recorded", [True, False])
def test_a_target_says_of_a_pass_whether_it_was_recorded_in_it(recorded: bool) -> None:
    graphs = TapeRecorder if recorded else None
    target = HFTarget(tiny_model("llama"), TapedBackend(PlainDevice()), None, graphs=graphs, probe=False)
    tree = TokenTree([3, 4, 5], [-1, 0, 0], [0.0, -0.1, -0.2])
    with target.session():
        target.open(0, 50)
        for ends in ({}, {0: frozenset({1})}):  # chosen here, and walked on the device
            said = []
            for _ in range(3):
                said.append(target.verify({0: tree}, ends).prepared)
                if not ends:
                    target.commit({0: np.array([0])})
            assert said == [recorded, False, False]


def greedy_path(tree: TokenTree, logits: torch.Tensor, ends: frozenset[int]) -> tuple[list[int], int]:
    """The longest path of the most likely tokens, by definition, and the token after it."""
    path, best = [0], logits.argmax(-1).tolist()
    while best[path[-1]] not in ends and (child := tree.child(path[-1], best[path[-1]])) is not None:
        path.append(child)
    return path, best[path[-1]]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("walking", [(), (1,), (4, 0), (4, 1, 0)])
def test_a_target_walks_for_some_slots_while_the_host_accepts_for_others(
    walking: tuple[int, ...], recorded: bool
) -> None:
    model = tiny_model("llama")
    graphs, recorders = taped()
    device = unprobed(model, TapedBackend(PlainDevice()), features=(0, 3), graphs=graphs if recorded else None)
    host = unprobed(model, backend("reference"), features=(0, 3))
    prompts, _, _ = plan()
    slots = dict(zip((4, 1, 0), prompts, strict=True))
    ends = frozenset({3, 50})
    roots = {slot: int(prompt[-1]) for slot, prompt in slots.items()}
    accepted_more = 0
    for target in (device, host):
        for slot in slots:
            target.open(slot, 64)
    with host.session():
        host.read({slot: prompt[:-1] for slot, prompt in slots.items()})
    with device.session():
        device.read({slot: prompt[:-1] for slot, prompt in slots.items()})
    for _ in range(4):
        trees = {slot: knowing(host, slot, root) for slot, root in roots.items()}
        with host.session():
            outputs = host.verify(trees).outputs
            expected = {slot: greedy_path(trees[slot], own.logits, ends) for slot, own in outputs.items()}
            features = {slot: own.features[expected[slot][0]] for slot, own in outputs.items()}
            host.commit({slot: np.array(path) for slot, (path, _) in expected.items()})
        with device.session():
            verified = device.verify(trees, dict.fromkeys(walking, ends))
            assert verified.accepted.keys() == set(walking)
            assert verified.outputs.keys() == set(slots) - set(walking)
            for slot, one in verified.accepted.items():
                assert (one.path.tolist(), one.token) == expected[slot]
                check_close(one.features, features[slot])
            for slot, own in verified.outputs.items():
                check_close(own.logits, outputs[slot].logits)
                check_close(own.features, outputs[slot].features)
            device.commit({slot: np.array(expected[slot][0]) for slot in verified.outputs})
        assert device.runner.cache.lengths == host.runner.cache.lengths
        roots = {slot: token for slot, (_, token) in expected.items()}
        accepted_more += sum(len(path) > 1 for path, _ in expected.values())
    assert accepted_more > 4
    assert all(one.repeated > one.recorded > 0 for one in recorders)


def knowing(target: HFTarget, slot: int, root: int) -> TokenTree:
    """A tree with two worse tokens under each node of a path of the most likely ones, which stand last."""
    tokens, parents, path = [root], [-1], [0]
    for _ in range(3):
        with target.session():
            tree = TokenTree(tokens, parents, np.zeros(len(tokens)))
            best = target.verify({slot: tree}).outputs[slot].logits[path[-1]].topk(3).indices.tolist()
            target.commit({slot: np.array([], dtype=np.int64)})
        tokens += best[::-1]
        parents += [path[-1]] * 3
        path.append(len(tokens) - 1)
    return TokenTree(tokens, parents, np.zeros(len(tokens)))


def test_slots_whose_texts_end_with_other_tokens_are_left_to_the_host() -> None:
    target = unprobed(tiny_model("llama"), PlainDevice())
    with target.session():
        for slot in range(4):
            target.open(slot, 9)
        trees = {slot: TokenTree.root(5) for slot in range(4)}
        ends, others = frozenset({1}), frozenset({2})
        verified = target.verify(trees, {0: others, 1: ends, 3: ends})
        assert (verified.accepted.keys(), verified.outputs.keys()) == ({1, 3}, {0, 2})
        target.commit({slot: np.zeros(1, dtype=np.int64) for slot in verified.outputs})
        assert target.runner.cache.lengths == [1, 1, 1, 1]


def test_another_batch_can_follow() -> None:
    target = unprobed(tiny_model("llama"), backend("sdpa"), features=(0,))
    first = outputs(target, [1], 64)
    outputs(target, [0, 1, 2], 64)
    again = outputs(target, [1], 64)
    for (logits, _), (expected, _) in zip(again[0][1:], first[0][1:], strict=True):
        assert torch.equal(logits, expected)
