"""`talon certify` in small worlds: what it prints, its exit status, and what it refuses."""

import importlib.util
import re

import numpy as np
import pytest

from talon_core import Accepted
from talon_strategies import Match


def test_a_certificate_is_printed_and_the_status_is_0(talon):
    ran = talon("certify", "--policy", "talon:budget=4,top_k=2", "--worlds", "40", "--seed", "3")
    assert ran.status == 0
    first, tried, error, versions = ran.out.strip().splitlines()
    assert first == "CERTIFIED: policy talon:budget=4,top_k=2 with rule match, drafter: random tables"
    assert tried.startswith("40 worlds, ")
    assert "tolerance 1e-12), seed 3" in error
    assert "talon-core" in versions


def test_the_rule_is_the_one_the_policy_suits_or_the_one_that_is_named(talon):
    suited = talon("certify", "--policy", "sequoia", "--worlds", "20", "--json").answer
    named = talon("certify", "--policy", "sequoia", "--rule", "rrsw", "--worlds", "20", "--json").answer
    assert (suited["rule"], named["rule"]) == ("traversal", "rrsw")
    assert suited["certified"] is named["certified"] is True
    assert suited["worlds"] == 20
    assert suited["counterexample"] is None
    assert suited["largest_error"] <= suited["tolerance"]


def test_what_is_not_lossless_is_refuted_with_status_1_and_a_world_to_follow(talon):
    ran = talon("certify", "--policy", "chain", "--rule", "typical", "--worlds", "200")
    assert ran.status == 1
    assert ran.out.startswith("REFUTED: policy chain with rule typical")
    for part in ("the world:", "target after 0:", "the laws part after", "emitted", "the round that begins after"):
        assert part in ran.out
    answer = talon("certify", "--policy", "chain", "--rule", "typical", "--worlds", "200", "--json").answer
    assert answer["certified"] is False
    assert answer["largest_error"] > 1e-3
    assert any("the laws part after" in line for line in answer["counterexample"])


def test_any_registered_drafter_that_takes_any_target_can_draft(talon):
    answer = talon("certify", "--policy", "talon", "--drafter", "ngram", "--worlds", "20", "--json").answer
    assert (answer["certified"], answer["drafter"]) == (True, "ngram")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no policy: name one with --policy"),
        (["--policy", "tallon"], "no tree policy 'tallon'; did you mean 'talon'?"),
        (["--policy", "talon:budget=1"], "'budget' must be >= 2"),
        (["--policy", "talon", "--rule", "matsch"], "no rule 'matsch'; did you mean 'match'?"),
        (["--policy", "sequoia", "--rule", "rrs"], "rule 'rrs' .* is not exact for the without-replacement trees"),
        (["--policy", "talon", "--worlds", "0"], "--worlds is 0; it must be at least 1"),
        (["--policy", "talon", "--worlds", "many"], "'many' is not a whole number"),
        (["--policy", "talon", "--drafter", "eagle3"], "drafter 'eagle3' drafts for transformers models"),
        (["--policy", "none"], "there is nothing to certify without a policy"),
    ],
)
def test_bad_input_gets_one_sentence_and_status_2(talon, arguments, complaint):
    ran = talon("certify", *arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert len(ran.err.strip().splitlines()) == 1
    assert re.search(complaint, ran.err)


def test_without_hypothesis_the_sentence_names_the_extra(talon, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr("talon_core.cli.certify.find_spec", lambda name: None if name == "hypothesis" else real(name))
    ran = talon("certify", "--policy", "talon")
    assert ran.status == 2
    assert "talon-core[testing]" in ran.err


def test_on_a_model_greedy_output_is_held_against_generate(talon, model):
    ran = talon("certify", "--model", model, "--limit", "2", "--max-new-tokens", "30")
    assert ran.status == 0
    assert "greedy output in float32, held against generate" in ran.out
    assert ran.out.count("identical") == 3
    assert "PASSED: ngram / talon / match: 2 of 2 outputs are identical, 60 tokens compared" in ran.out


def test_any_policy_and_rule_can_be_held_against_generate(talon, model, tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text('"hi"\n{"turns": ["~", "again"]}\n')
    policy = ("--policy", "specinfer:widths=2;1", "--drafter", "ngram")
    answer = talon(
        "certify", "--model", model, *policy, "--prompts", str(file), "--max-new-tokens", "30", "--json"
    ).answer
    assert answer["passed"] is True
    assert (answer["rule"], answer["policy"], answer["dtype"]) == ("rrs", "specinfer", "float32")
    assert [one["compared"] for one in answer["prompts"]] == [30, 30]
    assert answer["nodes_verified"] > 60


def test_in_half_precision_a_near_tie_is_no_error(talon, model):
    answer = talon("certify", "--model", model, "--dtype", "bfloat16", "--limit", "1", "--json").answer
    assert answer["dtype"] == "bfloat16"
    assert answer["passed"] is True


def test_a_wrong_output_has_status_1_and_is_called_an_error(talon, model, monkeypatch):
    monkeypatch.setattr(Match, "walk", lambda self, tree, laws, choices: Accepted(np.array([0]), 7))
    ran = talon("certify", "--model", model, "--limit", "1", "--max-new-tokens", "6")
    assert ran.status == 1
    assert "FAILED" in ran.out
    assert "error" in ran.out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--worlds", "5"], "--worlds is for a check without --model; leave it out"),
        (["--dtype", "float64"], "--dtype is 'float64'; it must be one of float32, bfloat16, float16"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0; it must be at least 1"),
        (["--policy", "sequoia", "--rule", "rrs"], "rule 'rrs' .* is not exact for"),
    ],
)
def test_bad_input_for_a_model_gets_one_sentence_and_status_2(talon, model, arguments, complaint):
    ran = talon("certify", "--model", model, *arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert re.search(complaint, ran.err)


def test_options_of_models_are_refused_without_one(talon):
    ran = talon("certify", "--policy", "talon", "--dtype", "bfloat16")
    assert ran.status == 2
    assert "--dtype is for a check with --model; leave it out" in ran.err
