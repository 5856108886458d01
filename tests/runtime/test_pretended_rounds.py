"""Rounds on a device that is only pretended: what they ask of the host, and that nothing else is asked."""

import json
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
NEW_SHAPES = 1
"""Sizes of passes that the rounds counted may be the first to have: memory for each is sent once empty."""

MOVED = 14
"""Copies between two devices in a round: what goes from layer to layer and is read there, and which rows are moved."""

PROMPT = 8
"""Tokens of the longest prompt, which is fetched when its request is made. A law would be 97 numbers."""


@pytest.fixture(scope="module")
def told(forked_python):
    command = [forked_python, "-m", "talon_tests.pretended_rounds"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["plain", "ngram", "draft model", "head", "alone"])
def test_a_pass_has_one_copy_to_the_device_and_one_back_whatever_the_batch(told, what):
    found = told[what]
    assert found["tokens"] == told["expected"]["greedy"][: len(found["tokens"])]
    passes = found["rounds"] + found["drafted"]
    assert found["rounds"] > 2
    assert found["fetched"] <= passes
    assert found["sent"] <= passes + NEW_SHAPES
    assert found["asked"] == found["between"] == 0


@pytest.mark.slow
def test_hydras_heads_get_tokens_once_a_layer_and_states_once_a_round(told):
    found = told["hydra"]
    assert found["tokens"] == told["expected"]["greedy"]
    assert found["drafted"] > found["rounds"] > 2
    assert found["fetched"] <= found["rounds"] + found["drafted"]
    assert found["sent"] <= 2 * found["rounds"] + found["drafted"] + NEW_SHAPES
    assert found["asked"] == found["between"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("what", ["drawn", "drawn alone"])
def test_a_pass_that_is_drawn_from_has_no_more_copies(told, what):
    found = told[what]
    assert found["tokens"] == told["expected"]["drawn"][: len(found["tokens"])]
    assert found["fetched"] <= found["rounds"]
    assert found["sent"] <= found["rounds"] + NEW_SHAPES
    assert found["asked"] == found["between"] == 0


@pytest.mark.slow
def test_what_a_round_asks_that_is_drawn_on_the_host_does_not_grow(told):
    """Its processors look at the text, so a node is drawn for after the other: each of these is to become less.

    But for a node a token is fetched, not a law.
    """
    found = told["drawn on the host"]
    assert found["tokens"] == told["expected"]["drawn on the host"]
    assert found["fetched"] <= 2 * found["rounds"]
    assert found["largest"] <= PROMPT
    assert found["sent"] <= 2 * found["rounds"] + NEW_SHAPES
    assert found["asked"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "part"),
    [
        *[(what, "verify") for what in ("plain", "draft model", "head", "hydra", "drawn", "drawn on the host")],
        *[(what, "draft") for what in ("draft model", "head", "hydra")],
    ],
)
def test_no_pass_is_over_before_its_device_was_waited_for(told, what, part):
    """Or what is learnt from its seconds is what it takes to launch it."""
    assert told[what]["without a wait"][part] == 0


@pytest.mark.slow
def test_a_model_that_asks_its_device_is_seen_to(told):
    found = told["asking"]
    assert found["tokens"] == told["expected"]["greedy"][:1]
    assert found["asked"] == found["rounds"] > 2


@pytest.mark.slow
@pytest.mark.parametrize("what", ["tested in turn", "tested leaves first"])
def test_what_drawn_children_are_tested_with_is_sent_in_two_copies(told, what):
    found = told[what]
    assert found["tokens"] == told["expected"][what]
    assert found["fetched"] <= found["rounds"]
    assert found["sent"] <= 3 * found["rounds"] + NEW_SHAPES
    assert found["asked"] == found["between"] == 0


@pytest.mark.slow
def test_tensors_on_two_devices_do_not_go_together(told):
    assert "expects all tensors on one device" in told["nothing is moved"]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "as_"), [("two devices", "greedy"), ("drawn on two devices", "drawn")])
def test_layers_on_another_device_read_what_is_there(told, what, as_):
    """What they read of a pass is copied once, from device to device; nothing more is asked of the host."""
    found = told[what]
    assert found["tokens"] == told["expected"][as_]
    assert found["fetched"] <= found["rounds"]
    assert found["sent"] <= found["rounds"] + NEW_SHAPES
    assert found["asked"] == 0
    assert 0 < found["between"] <= MOVED * found["rounds"]
