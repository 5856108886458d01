import math
from operator import mul
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build, spelled
from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_strategies import SpecDecPlusPlus
from talon_strategies.acceptance_head import AcceptanceHead
from talon_strategies.specdec_plus_plus import FEATURES

TENSORS = {
    "hidden.weight": np.array([[2.0, -1.0, -0.5, 0.1], [-3.0, 0.5, 1.0, 0.0], [0.0, 0.0, 0.3, -0.2]], dtype=np.float32),
    "hidden.bias": np.array([0.1, 0.2, 0.0], dtype=np.float32),
    "output.weight": np.array([[1.5, -2.0, 0.5]], dtype=np.float32),
    "output.bias": np.array([0.7], dtype=np.float32),
}


def predicted(law, depth):
    """What the head of `TENSORS` says of the best token, in plain Python."""
    features = [law[0], law[1], -sum(prob * math.log(prob) for prob in law if prob > 0), depth]
    hidden, bias, out, last = (TENSORS[name].astype(float).tolist() for name in TENSORS)
    score = last[0]
    for weights, own, given_out in zip(hidden, bias, out[0], strict=True):
        score += given_out * max(0.0, own + sum(map(mul, weights, features)))
    return 1 / (1 + math.exp(-score))


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    file = tmp_path_factory.mktemp("head") / "head.safetensors"
    save_file(TENSORS, file)
    return str(file)


@pytest.mark.parametrize("options", [{}, {"length": 1}, {"h": 0.0}, {"h": 1.0}])
def test_keeps_the_contract(options):
    check_tree_policy(lambda: SpecDecPlusPlus(**options), max_examples=20)


def test_keeps_the_contract_with_a_head(head):
    check_tree_policy(lambda: SpecDecPlusPlus(head=head), max_examples=20)


@pytest.mark.parametrize("trained", [False, True])
@given(drafter=st.integers(2, 16).flatmap(untied_drafters), h=st.sampled_from([0.0, 0.5, 0.7, 0.95]))
def test_the_chain_ends_where_a_rejection_is_likely(draft, chain_until, head, drafter, h, trained):
    policy = SpecDecPlusPlus(length=9, h=h, head=head if trained else None)
    for _ in range(2):  # the second tree does not know the first
        chances = []

        def ends(law, chances=chances):
            chances.append(predicted(law, len(chances) + 1) if trained else law[0])
            assume(abs(1 - math.prod(chances) - h) > 1e-9)
            return 1 - math.prod(chances) > h

        assert draft(policy, drafter).tree.tokens.tolist() == chain_until(drafter, 9, ends)


def test_a_chain_by_hand(draft):
    # .9 ** 11 = .314 and .9 ** 12 = .282: the twelfth token is the first with which a rejection is likelier than .7
    assert len(draft(SpecDecPlusPlus(), TableDrafter([[0.9, 0.1]])).tree) == 1 + 12


def test_a_spec_names_a_head_and_says_it_again(head):
    policy = build(load_registry(), "tree policy", f"specdec-plus-plus:head={head}")
    assert policy == SpecDecPlusPlus(head=Path(head)) != SpecDecPlusPlus()
    assert hash(policy) == hash(SpecDecPlusPlus(head=AcceptanceHead.read(head, FEATURES)))
    assert spelled(policy) == f"specdec-plus-plus:head={head}"


WRONG = {
    "another tensor": ({**TENSORS, "more": np.zeros(1)}, "its tensors are hidden.bias, .*more"),
    "nothing": ({}, "its tensors are none"),
    "three features": ({**TENSORS, "hidden.weight": np.zeros((3, 3))}, r"hidden.weight has shape \(3, 3\)"),
    "no rows": ({**TENSORS, "hidden.weight": np.zeros(())}, r"hidden.weight has shape \(\)"),
    "no neurons": (
        {**TENSORS, "hidden.weight": np.zeros((0, 4)), "hidden.bias": np.zeros(0), "output.weight": np.zeros((1, 0))},
        r"hidden.weight has shape \(0, 4\)",
    ),
    "another size": ({**TENSORS, "output.weight": np.zeros((1, 2))}, r"output.weight has shape \(1, 2\)"),
    "whole numbers": ({**TENSORS, "output.bias": np.zeros(1, dtype=np.int64)}, "output.bias does not hold finite"),
    "no number": ({**TENSORS, "hidden.bias": np.full(3, np.nan)}, "hidden.bias does not hold finite"),
}


@pytest.mark.parametrize(("tensors", "complaint"), WRONG.values(), ids=WRONG.keys())
def test_a_file_that_is_no_head_is_refused_in_a_sentence(tmp_path, tensors, complaint):
    file = tmp_path / "wrong.safetensors"
    save_file(tensors, file)
    with pytest.raises(
        ValueError, match=rf"^the file '{file}' is no head: {complaint}.*; a head holds hidden.weight of"
    ):
        SpecDecPlusPlus(head=str(file))


def test_so_is_a_file_that_cannot_be_read(tmp_path):
    file = tmp_path / "text.safetensors"
    for content in (None, "no tensors"):
        if content:
            file.write_text(content)
        with pytest.raises(ValueError, match=rf"^the head '{file}' cannot be read \(.*\); a head holds"):
            SpecDecPlusPlus(head=str(file))


@pytest.mark.parametrize("options", [{"h": 1.1}, {"h": -0.1}, {"head": 3}, {"head": ["head"]}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}.* must be"):
        SpecDecPlusPlus(**options)
