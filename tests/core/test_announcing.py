"""What Python's logging is told when a decoder is made."""

import logging

import pytest

import talon_core
from talon_core.decoding.announcing import MANY_NODES
from talon_core.decoding.loading import DEFAULT_POLICY
from talon_tests.tiny_models import tiny_model


def told(caplog: pytest.LogCaptureFixture, level: int, policy: str | None, drafter: str = "ngram") -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "talon_core"):
        talon_core.load(tiny_model("llama"), drafter=drafter, policy=policy)
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_the_parts_that_were_chosen_are_told(caplog: pytest.LogCaptureFixture) -> None:
    parts, rule, backend = told(caplog, logging.INFO, DEFAULT_POLICY, drafter="auto")
    assert parts == "drafter 'ngram' drafts for tree policy 'talon'"
    assert rule == "rule 'match' accepts"
    assert backend.startswith("attention backend '")
    assert backend.endswith("compute on cpu")
    assert len(told(caplog, logging.INFO, None)) == 2


@pytest.mark.parametrize("policy", ["talon:budget=65536", "eagle2:budget=2000", "chain:length=5000"])
def test_a_tree_that_takes_minutes_is_warned_of_before_it_is_drafted(
    caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    (warning,) = told(caplog, logging.WARNING, policy)
    assert warning.startswith(f"tree policy '{policy.partition(':')[0]}' may verify ")
    assert "the model's context holds 256 tokens" in warning


@pytest.mark.parametrize("policy", [None, DEFAULT_POLICY, "eagle2", f"talon:budget={MANY_NODES}"])
def test_usual_trees_are_not_warned_of(caplog: pytest.LogCaptureFixture, policy: str | None) -> None:
    assert told(caplog, logging.WARNING, policy) == []
