"""`talon certify` in small worlds: what it prints, its exit status, and what it refuses."""

import importlib.util
import re
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest

from talon_core import Accepted
from talon_core.certify.trial import certify
from talon_strategies import Match


def test_a_certificate_is_printed_and_the_status_is_0(talon):
    ran = talon("certify", "--policy", "talon:budget=4,top_k=2", "--worlds", "40", "--seed", "3")
    assert ran.status == 0
    first, tried, error, versions = ran.out.strip().splitlines()
    assert first == "CERTIFIED: policy talon:budget=4,top_k=2 with rule match, drafter: random tables"
    assert tried.startswith("40 worlds, ")
    assert "tolerance 1e-12), seed 3" in error
    assert "talon-core" in versions


def test_the_rule_is_the_policys_default_rule_or_the_one_that_is_named(talon):
    default = talon("certify", "--policy", "sequoia", "--worlds", "20", "--json").answer
    named = talon("certify", "--policy", "sequoia", "--rule", "rrsw", "--worlds", "20", "--json").answer
    assert (default["rule"], named["rule"]) == ("traversal", "rrsw")
    assert default["certified"] is named["certified"] is True
    assert default["worlds"] == 20
    assert default["counterexample"] is None
    assert default["largest_error"] <= default["tolerance"]


def test_what_is_not_lossless_is_refuted_with_status_1_and_a_world_to_follow(talon):
    ran = talon("certify", "--policy", "chain", "--rule", "typical", "--worlds", "200")
    assert ran.status == 1
    assert ran.out.startswith("REFUTED: policy chain with rule typical")
    for part in ("the world:", "target after 0:", "the laws part after", "emitted", "the round that begins after"):
        assert part in ran.out
    answer = talon("certify", "--policy", "chain", "--rule", "typical", "--worlds", "200", "--json").answer
    assert (answer["certified"], answer["verdict"]) == (False, "refuted")
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
        (["--policy", "talon", "--seed", "-1"], "--seed is -1; it must be 0 or more"),
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
    assert "PASSED: ngram / talon-cost / match: 2 of 2 outputs are identical, 60 tokens compared" in ran.out


def test_any_policy_and_rule_can_be_held_against_generate(talon, model, tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text('"hi"\n{"turns": ["~", "again"]}\n')
    policy = ("--policy", "specinfer:widths=2;1", "--drafter", "ngram")
    answer = talon(
        "certify", "--model", model, *policy, "--prompts", str(file), "--max-new-tokens", "30", "--json"
    ).answer
    assert (answer["passed"], answer["verdict"]) == (True, "passed")
    assert (answer["rule"], answer["policy"], answer["dtype"]) == ("rrs", "specinfer:widths=2;1", "float32")
    assert [one["compared"] for one in answer["prompts"]] == [30, 30]
    assert answer["nodes_verified"] > 60


def test_in_half_precision_a_near_tie_is_no_error(talon, model):
    answer = talon("certify", "--model", model, "--dtype", "bfloat16", "--limit", "1", "--json").answer
    assert answer["dtype"] == "bfloat16"
    assert answer["passed"] is True


def test_a_wrong_output_has_status_1_and_is_called_an_error(talon, model, monkeypatch):
    monkeypatch.setattr(Match, "walk", lambda self, tree, laws, choices: Accepted(np.array([0]), 7))
    monkeypatch.setattr(Match, "follows_argmax", False)  # the target asks no rule otherwise
    ran = talon("certify", "--model", model, "--limit", "1", "--max-new-tokens", "6")
    assert ran.status == 1
    assert "FAILED" in ran.out
    assert "error" in ran.out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--worlds", "5"], "--worlds is for a check without --model; leave it out"),
        (["--dtype", "float64"], "--dtype is 'float64'; it must be one of float32, bfloat16, float16"),
        (["--dtype", ""], "--dtype is ''; it must be one of float32, bfloat16, float16"),
        (["--policy", ""], "no tree policy ''; there are: "),
        (["--drafter", ""], "no drafter ''; there are: "),
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


# Claims and certificates


def test_what_a_plugins_rule_says_of_itself_is_marked_as_its_claim(talon, model, liar, tmp_path):
    arguments = ("generate", "hi-", "--model", model, "--max-new-tokens", "4", "--temperature", "1", "--seed", "1")
    ran = talon(*arguments, "--rule", "takes-all", "--policy", "fixed:budget=2", "--json")
    assert ran.answer["lossless"] == "claimed"
    assert "CLAIMED: " in ran.err
    assert "check it: talon certify --policy fixed:budget=2 --rule takes-all" in ran.err
    file = tmp_path / "prompts.jsonl"
    file.write_text('"hi"\n"-"\n')
    ran = talon("generate", "--prompt-file", str(file), *arguments[2:], "--rule", "takes-all", "--json")
    assert [ran.answer["lossless"], *(one["lossless"] for one in ran.answer["results"])] == ["claimed"] * 3
    assert "CLAIMED" in ran.err
    ran = talon(*arguments, "--policy", "fixed", "--json")
    assert ran.answer["lossless"] is True
    assert "CLAIMED" not in ran.err


def test_a_false_claim_is_refuted(talon, liar):
    answer = talon("certify", "--policy", "chain", "--rule", "takes-all", "--worlds", "100", "--json").answer
    assert (answer["verdict"], answer["certified"], answer["kept"]) == ("refuted", False, None)


def test_a_rule_alone_is_certified_or_refuted_without_a_policy(talon, liar):
    answer = talon("certify", "--policy", "none", "--rule", "honest", "--worlds", "20", "--json").answer
    assert (answer["verdict"], answer["policy"], answer["accepting"]) == ("certified", "none", 0)
    ran = talon("certify", "--policy", "none", "--rule", "match")
    assert (ran.status, ran.out) == (2, "")
    assert "nothing to certify" in ran.err


@pytest.fixture
def at_once(monkeypatch):
    """`certify` tries 20 worlds where it says 2,000."""

    def certified(policy, rule, *, worlds, **options):
        return attrs.evolve(certify(policy, rule, worlds=20, **options), worlds=worlds, unkept=None)

    monkeypatch.setattr(sys.modules["talon_core.certify.trial"], "certify", certified)


def test_a_certificate_is_kept_listed_and_used_until_the_code_changes(talon, model, liar, at_once):
    draws = ("--policy", "draws:often=0.25")
    ran = talon("certify", *draws, "--json")
    kept = ran.answer["kept"]
    assert f"the certificate is kept in '{kept}', for as long as the code stays as it is" in ran.err
    (listed,) = talon("list", "certificates", "--json").answer["certificates"]
    assert (listed["path"], listed["policy"], listed["rule"]) == (kept, "draws:often=0.25", "rrs")
    assert (listed["counts"], listed["why_not"], listed["shipped_by"]) == (True, None, None)
    assert (listed["any_value_of"], listed["worlds"]) == (["budget"], 2000)
    shown = talon("list", "certificates").out
    assert "draws:often=0.25 with rrs  made here" in shown
    assert "any budget" in shown
    arguments = ("generate", "hi-", "--model", model, "--max-new-tokens", "4", "--json")
    assert talon(*arguments, *draws).answer["lossless"] is True
    assert talon(*arguments, "--policy", "draws").answer["lossless"] == "claimed"
    Path(liar.__file__).with_name("helper.py").write_text("FACTOR = 3\n")
    assert talon(*arguments, *draws).answer["lossless"] == "claimed"
    assert "; start Python anew" in " ".join(talon("list", "certificates").out.split())


def test_a_certificate_is_written_for_a_plugin_to_ship(talon, liar, at_once, tmp_path):
    folder = Path(liar.__file__).parent / "talon_certificates"
    folder.mkdir()
    file = folder / "draws.json"
    ran = talon("certify", "--policy", "draws", "--out", str(file), "--json")
    Path(ran.answer["kept"]).unlink()
    (listed,) = talon("list", "certificates", "--json").answer["certificates"]
    assert (listed["path"], listed["shipped_by"], listed["counts"]) == (str(file), "liar", True)
    for more, complaint in [
        (["--worlds", "50"], "--worlds is 50; a certificate in a file is about at least 2000"),
        (["--drafter", "ngram"], "--drafter is 'ngram'; a certificate in a file is about random tables"),
    ]:
        ran = talon("certify", "--policy", "draws", "--out", str(file), *more)
        assert (ran.status, ran.out) == (2, "")
        assert complaint in ran.err
    ran = talon("certify", "--policy", "draws", "--out", str(tmp_path / "nowhere" / "x.json"))
    assert "it must be a file in a folder that exists" in ran.err


def test_what_is_proved_needs_no_certificate(talon, liar, at_once):
    for pair in (["--policy", "chain"], ["--policy", "fixed"], ["--policy", "draws", "--rule", "match"]):
        ran = talon("certify", *pair, "--json")
        assert (ran.answer["proved"], ran.answer["kept"]) == (True, None)
        assert "kept" not in ran.err
    assert "the output has the target's law by construction, and needs no certificate" in ran.err
    assert talon("list", "certificates", "--json").answer["certificates"] == []


def test_a_certificate_that_cannot_be_kept_is_printed_all_the_same(talon, liar, at_once, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TALON_DATA", str(tmp_path / "file"))
    ran = talon("certify", "--policy", "draws")
    assert ran.status == 0
    assert ran.out.startswith("CERTIFIED")
    assert "the certificate cannot be kept in" in ran.err


def test_one_of_few_worlds_is_not_kept_and_says_so(talon, liar):
    ran = talon("certify", "--policy", "draws", "--worlds", "20", "--json")
    assert ran.answer["kept"] is None
    assert "is not kept: it is about 20 worlds; a certificate that is kept is about at least 2000" in ran.err


# A plugin that fails


def test_a_crash_is_no_refutation_and_has_status_3(talon, liar):
    ran = talon("certify", "--policy", "crashes", "--worlds", "50")
    assert ran.status == 3
    assert ran.out.startswith("BROKEN: policy crashes")
    assert "raised KeyError in grow: 'nothing here'" in ran.out
    ran = talon("certify", "--policy", "crashes", "--worlds", "50", "--json")
    assert ran.status == 3
    assert (ran.answer["verdict"], ran.answer["certified"]) == ("broken", False)
    assert any("raised KeyError in grow" in line for line in ran.answer["counterexample"])


def test_a_crash_on_a_model_is_no_refutation_either(talon, model, liar):
    ran = talon("certify", "--model", model, "--policy", "crashes", "--limit", "1", "--json")
    assert ran.status == 3
    assert (ran.answer["verdict"], ran.answer["passed"]) == ("broken", False)
    assert "tree policy 'crashes' (liar.Crashes) raised KeyError" in ran.answer["error"]
    ran = talon("certify", "--model", model, "--policy", "crashes", "--limit", "1")
    assert ran.status == 3
    assert ran.out.startswith("BROKEN: tree policy 'crashes'")


@pytest.mark.parametrize("where", [(), ("--model", "smollm2-135m")])
def test_a_schedule_that_is_another_one_elsewhere_cannot_be_certified(talon, where):
    ran = talon("certify", "--policy", "chain:length=2", "--schedule", "auto", *where, "--json")
    assert ran.refusal == "--schedule is 'auto', which is another one elsewhere; name the schedule that is certified"


def test_the_help_offers_no_schedule_that_is_refused(talon):
    shown = " ".join(talon("certify", "--help").out.split())
    told = shown[shown.index("--schedule") : shown.index("--worlds")]
    assert "auto" not in told.replace("[default: auto]", "")
    assert "adversary" in told


def test_a_schedule_is_certified_and_kept_nowhere(talon):
    ran = talon("certify", "--policy", "chain:length=2", "--schedule", "cached:budget=3", "--worlds", "9", "--json")
    assert ran.status == 0
    assert (ran.answer["verdict"], ran.answer["schedule"]) == ("certified", "cached:budget=3")
    assert ran.answer["kept"] is None
    assert "about a schedule" in ran.answer["unkept"]
