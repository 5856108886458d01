"""`talon demo`."""

import time

import pytest

from talon_core.cli import demo
from talon_core.decoding.decoder import Decoder
from talon_core.engine.sequence import Sequence
from talon_core.request import Result

SENTENCE = "hi-🙂é~\n"


@pytest.fixture(autouse=True)
def _short_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PROMPT", SENTENCE)


def test_both_runs_are_shown_and_compared(talon, model):
    ran = talon("demo", "--model", model, "--max-new-tokens", "30")
    assert ran.status == 0
    assert ran.out.count("hi-🙂é~\nhi-🙂é~\n") == 2
    assert "accepted" in ran.out
    assert "identical output: yes" in ran.out
    assert "Both decoded it 3 times in turns, unseen: " in ran.out
    for row in ("tokens/s", "mean accepted tokens", "target passes", "draft", "policy", "verify", "commit", "other"):
        assert row in ran.out


def test_a_slow_terminal_does_not_count(talon, model, monkeypatch):
    """It would count for each pass, and there are more of them without TALON."""
    push = demo._Wrapped.push

    def slowly(self, text):
        time.sleep(0.05)
        return push(self, text)

    monkeypatch.setattr(demo._Wrapped, "push", slowly)
    compare, found = demo.compare, []
    monkeypatch.setattr(demo, "compare", lambda *args, **more: found.append(compare(*args, **more)) or found[0])
    assert talon("demo", "--model", model, "--max-new-tokens", "30").status == 0
    (comparison,) = found
    assert comparison.shown.plain.stats.other_seconds > 10 * 0.05
    assert len(comparison.turns) == 3
    for turn in comparison.turns:
        assert turn.plain.token_ids == comparison.shown.plain.token_ids
        assert turn.plain.stats.other_seconds < 5 * 0.05


def test_json_holds_both_runs(talon, model):
    ran = talon("demo", "--model", model, "--max-new-tokens", "30", "--policy", "chain:length=4", "--json")
    assert ran.status == 0
    assert set(ran.answer) == {"prompt", "identical", "speed_up", "speed_ups", "plain", "talon"}
    assert ran.answer["speed_up"] == sorted(ran.answer["speed_ups"])[1]
    assert len(ran.answer["speed_ups"]) == 3
    assert ran.answer["identical"] is True
    assert ran.answer["plain"]["token_ids"] == ran.answer["talon"]["token_ids"]
    assert ran.answer["plain"]["policy"] == "none"
    assert ran.answer["talon"]["policy"] == "chain:length=4"
    assert ran.answer["plain"]["rule"] == ran.answer["talon"]["rule"] == "match"
    assert ran.answer["talon"]["stats"]["target_passes"] < ran.answer["plain"]["stats"]["target_passes"] == 30


def test_a_difference_is_a_failure(talon, model, monkeypatch):
    result = Decoder._result

    def wrong(self: Decoder, sequence: Sequence) -> Result:
        found = result(self, sequence)
        if self.policy is not None:
            found.token_ids[3] += 1
        return found

    monkeypatch.setattr(Decoder, "_result", wrong)
    ran = talon("demo", "--model", model, "--max-new-tokens", "12")
    assert ran.status == 1
    assert "identical output: no, from token 3 on" in ran.out
    assert talon("demo", "--model", model, "--max-new-tokens", "12", "--json").status == 1


def test_plain_decoding_is_that_of_policy_none_whatever_the_default_rule(talon, model):
    ran = talon("demo", "--model", model, "--max-new-tokens", "12", "--policy", "sampled-chain", "--json")
    assert (ran.status, ran.answer["identical"]) == (0, True)
    assert (ran.answer["plain"]["rule"], ran.answer["talon"]["rule"]) == ("match", "block")


def test_a_lossy_rule_is_no_subject_of_the_demo(talon):
    ran = talon("demo", "--rule", "typical")
    assert (ran.status, ran.out) == (2, "")
    assert "rule 'typical'" in ran.err
    assert "is lossy" in ran.err


def test_no_policy_is_nothing_to_compare(talon):
    ran = talon("demo", "--policy", "none")
    assert (ran.status, ran.out) == (2, "")
    assert "--policy is none" in ran.err


def test_a_streamed_text_is_broken_between_words():
    wrapped = demo._Wrapped(10)
    pieces = [wrapped.push(piece) for piece in ("one two", " three", " four\n  five", " six,", " seven")]
    assert "".join(pieces) == "one two\nthree four\n  five\nsix, seven"
