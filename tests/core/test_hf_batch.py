"""A batch of sequences on a transformers model: each row gets what it would get alone, whatever its neighbours are."""

from typing import Any

import numpy as np
import pytest
import torch

from talon_core import TokenTree
from talon_core.hf.inputs import prompt_passes
from talon_core.hf.target import HFTarget
from talon_core.registry import load_registry
from talon_core.testing.tiny_models import tiny_model

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


def outputs(target: HFTarget, rows: list[int], capacity: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """For each row of the plan that takes part its logits and features in each round, the prompt's features first."""
    prompts, trees, paths = plan()
    found: list[list[tuple[Any, Any]]] = [[] for _ in rows]
    with target.session():
        for at, features in enumerate(target.prefill([prompts[row] for row in rows], [capacity] * len(rows))):
            found[at].append((None, features))
        for round_trees, round_paths in zip(trees, paths, strict=True):
            passes = target.passes
            for at, one in enumerate(target.verify([round_trees[row] for row in rows])):
                found[at].append((one.logits.clone(), one.features.clone()))
            assert target.passes == passes + 1
            target.commit([round_paths[row] for row in rows])
    return found


def check_close(one: torch.Tensor, other: torch.Tensor) -> None:
    """Equal but for float32 rounding of sums in another order: 1e-5 of the largest entry."""
    assert one.shape == other.shape
    if other.numel():
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(other.abs().max()))


def backend(name: str) -> Any:
    """An attention backend; the test is skipped, in sight, where the native one cannot be built."""
    made = load_registry().get("attention backend", name).cls()
    why = made.unavailable(torch.device("cpu"), torch.float32)
    if why is not None:
        pytest.skip(why)
    return made


@pytest.mark.parametrize("capacity", [24, 200])
@pytest.mark.parametrize("attention", ["reference", "sdpa", "native"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_gets_in_a_batch_what_it_gets_alone(architecture: str, attention: str, capacity: int) -> None:
    target = HFTarget(tiny_model(architecture), backend(attention), features=(0, 3))
    together = outputs(target, [0, 1, 2], capacity)
    for row in range(3):
        (alone,) = outputs(target, [row], capacity)
        for (logits, features), (expected_logits, expected_features) in zip(together[row], alone, strict=True):
            check_close(features, expected_features)
            if logits is not None:
                check_close(logits, expected_logits)


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
    target = HFTarget(tiny_model(architecture), backend("sdpa"), features=(2,))
    one, other = outputs(target, [0, 1, 2], 200), outputs(target, [2, 0, 1], 200)
    for row, place in ((0, 1), (1, 2), (2, 0)):
        for (logits, _), (expected, _) in zip(one[row][1:], other[place][1:], strict=True):
            check_close(logits, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_the_plain_models(architecture: str) -> None:
    model = tiny_model(architecture)
    target = HFTarget(model, backend("sdpa"), features=(0,))
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
    target = HFTarget(tiny_model(architecture), backend("reference"), features=(0, 3))
    expected = outputs(target, [0, 1, 2], 64)
    monkeypatch.setattr("talon_core.hf.runner.PREFILL_CHUNK", 5)
    monkeypatch.setattr(target.runner, "_prefill_rows", rows)
    for row, one in zip(outputs(target, [0, 1, 2], 64), expected, strict=True):
        for (logits, features), (expected_logits, expected_features) in zip(row, one, strict=True):
            check_close(features, expected_features)
            if logits is not None:
                check_close(logits, expected_logits)


def test_prompts_of_similar_length_run_together() -> None:
    passes = list(prompt_passes([7, 0, 3, 12, 4], chunk=5, rows=2))
    assert passes == [(0, [2]), (0, [4, 0]), (5, [0]), (0, [3]), (5, [3]), (10, [3])]


def test_another_batch_can_follow() -> None:
    target = HFTarget(tiny_model("llama"), backend("sdpa"), features=(0,))
    first = outputs(target, [1], 64)
    outputs(target, [0, 1, 2], 64)
    again = outputs(target, [1], 64)
    for (logits, _), (expected, _) in zip(again[0][1:], first[0][1:], strict=True):
        assert torch.equal(logits, expected)
