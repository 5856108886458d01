"""Rounds on a device that is only pretended: what they ask of the host, and that nothing else is asked."""

import json
import subprocess
from pathlib import Path

import pytest

from talon_tests.trained_heads import KINDS

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


COPIES = {
    "plain": (1, 1, 0),
    "alone": (1, 1, 0),
    "ngram": (1, 1, 0),
    "draft model": (1, 1, 1),
    **{name: kind.rounds.copies for name, kind in KINDS.items()},
    "lookahead": (2, 2, 0),  # which nodes it asks about, and what the target says there
}
"""Copies to the device and from it of a round, however many sequences it has, and of a pass of the drafter."""


@pytest.mark.slow
@pytest.mark.parametrize("what", COPIES)
def test_a_pass_has_one_copy_to_the_device_and_one_back_whatever_the_batch(told, what):
    found = told[what]
    sent, fetched, drafted = COPIES[what]
    assert found["tokens"] == told["expected"]["greedy"][: len(found["tokens"])]
    assert found["rounds"] > 2
    assert (found["drafted"] > 0) == (drafted > 0)
    assert found["fetched"] <= fetched * found["rounds"] + drafted * found["drafted"]
    assert found["sent"] <= sent * found["rounds"] + drafted * found["drafted"] + NEW_SHAPES
    assert found["asked"] == found["between"] == 0


@pytest.mark.slow
def test_a_law_is_fetched_where_a_look_up_offers_what_a_model_did_not(told):
    found = told["hybrid"]
    assert found["tokens"] == told["expected"]["greedy"]
    passes = found["rounds"] + found["drafted"]
    assert found["fetched"] <= passes + 2 * found["rounds"]
    assert found["sent"] <= passes + NEW_SHAPES
    assert found["asked"] == found["between"] == 0


@pytest.mark.slow
def test_a_choice_of_layers_is_fetched_twice_and_asks_nothing_else(told):
    """A choice is three passes, each of which is sent its tokens and positions."""
    found = told["conflayers"]
    assert found["tokens"] == told["expected"]["greedy"]
    passes = found["rounds"] + found["drafted"]
    assert found["fetched"] <= passes
    assert found["sent"] <= 2 * passes
    assert found["asked"] == found["between"] == 0


DONE = {
    "ngram": (0, 0),
    "draft model": (0, 102),
    "conflayers": (0, 166),
    "hybrid": (0, 103),
    "lookahead": (12, 0),
    **{name: kind.rounds.done for name, kind in KINDS.items()},
    "drawn": (53, 0),  # none of them where there is a recording, which does it (`test_recorded_draws`)
    "drawn alone": (53, 0),
    "drawn on the host": (66, 0),
    "tested in turn": (358, 0),
    "tested leaves first": (301, 0),
}
"""Operations on the device that a round adds to a plain one, and those of a pass of the drafter, for four sequences.

Where passes are not recorded, each is launched by the host.
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", DONE)
def test_operations_on_the_device_stay_within_what_they_were(told, what):
    found, plain = told[what], told["plain"]
    a_round, drafted = DONE[what]
    assert plain["done"] == 167 * plain["rounds"]
    assert found["done"] <= (167 + a_round) * found["rounds"] + drafted * found["drafted"]


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
        *[(what, "verify") for what in ("plain", *DONE)],
        *[(what, "draft") for what in ("draft model", "conflayers")],
        *[(name, "draft") for name, kind in KINDS.items() if kind.rounds.waits],
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
