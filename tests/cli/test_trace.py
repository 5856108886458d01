"""`talon trace`, with a real model that takes milliseconds."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talon_core.basics import paths
from talon_core.basics.paths import LOCK
from talon_core.cli import output
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace import record as recording

SENTENCE = "hi-🙂é~\n"
PARROT = "draft-model:skip=1"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A set of two prompts, and one of a single text."""
    folder = tmp_path / "prompts"
    folder.mkdir()
    lines = [json.dumps({"turns": [SENTENCE * (number + 1), "hi"]}) for number in range(2)]
    (folder / "talk.jsonl").write_text("\n".join(lines))
    (folder / "word.txt").write_text(SENTENCE, encoding="utf-8")
    return folder


@pytest.fixture
def record(talon: Callable[..., Any], model: str, prompts: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs `talon trace record`."""

    def run(*arguments: str, drafter: str = PARROT, out: Path = tmp_path / "out") -> Any:
        sizes = ("--max-new-tokens", "12", "--nodes", "6", "--depth", "5", "--width", "8")
        where = ("--prompts", str(prompts), "--model", model, "--out", str(out), "--drafter", drafter)
        return talon("trace", "record", *where, *sizes, *arguments)

    return run


def test_a_policy_is_tried_on_what_was_recorded(record: Any, talon: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    ran = record("--json")
    assert ran.status == 0, ran.err
    answer = ran.answer
    assert (answer["folder"], answer["texts"], answer["positions"]) == (out, 3, 36)
    assert answer["bytes"] == sum(file.stat().st_size for file in (tmp_path / "out" / "texts").iterdir())
    assert answer["seconds"] > 0

    tried = talon("trace", "replay", out, "none", "chain:length=3", "ngram/chain:length=3", "--json")
    assert tried.status == 0, tried.err
    found = tried.answer
    assert [one["method"] for one in found["methods"]] == ["none", "chain:length=3", "ngram/chain:length=3"]
    plain, chain, ngram = found["methods"]
    assert (plain["mean_accepted_tokens"], plain["target_passes"], plain["nodes_verified"]) == (1.0, 36, 36)
    for one in (chain, ngram):
        assert one["new_tokens"] == 36
        assert one["mean_accepted_tokens"] == 36 / one["target_passes"]
        assert one["largest_tree"] <= 4
        assert one["oracle"]["in_hindsight"] >= one["mean_accepted_tokens"]
        assert one["outside"] == 0
    assert found["oracle"]["mean_accepted_tokens"] >= chain["oracle"]["in_hindsight"]
    assert (found["texts"], plain["oracle"]["nodes"]) == (3, 1)
    assert ngram["draft_passes"] == 0
    assert chain["draft_passes"] > 0


REPLAY = """
import os, sys
from talon_core.cli import main
from talon_core.trace import run

def noted(work):
    def text(*arguments):
        print(os.getpid(), file=sys.stderr)
        return work(*arguments)
    return text

run.tried_on = noted(run.tried_on)
status = main(["trace", "replay", *sys.argv[1:], "--json"])
assert "torch" not in sys.modules
sys.exit(status)
"""


def test_one_process_says_what_several_say(record: Any, process: Any, tmp_path: Path) -> None:
    record()
    answers, processes = [], []
    for jobs in ("1", "3"):
        status, out, err = process(REPLAY, str(tmp_path / "out"), "talon:budget=8", "ngram/chain", "--jobs", jobs)
        assert status == 0, err
        answers.append({key: value for key, value in json.loads(out).items() if key != "seconds"})
        processes.append(len({line for line in err.splitlines() if line.isdecimal()}))
    assert answers[0] == answers[1]
    assert processes[0] == 1 < processes[1]


def test_a_failure_in_one_of_several_processes_is_told(record: Any, process: Any, tmp_path: Path) -> None:
    record()
    broken = "from talon_strategies import Chain\nChain.grow = lambda *_: None\n"
    status, out, _ = process(broken + REPLAY, str(tmp_path / "out"), "chain", "--jobs", "3")
    assert status == 2
    assert "tree policy 'chain' (talon_strategies.chain.Chain) returned NoneType" in json.loads(out)["error"]


def test_people_get_a_table(record: Any, talon: Any, tmp_path: Path) -> None:
    ran = record()
    assert ran.out == f"{tmp_path / 'out'}\n"
    assert "3 texts, 36 positions in" in ran.err
    shown = talon("trace", "replay", str(tmp_path / "out"), "none", "taps:of=chain[length=2]")
    assert shown.status == 0
    assert "none" in shown.out
    assert "taps:of=chain[length=2]" in shown.out
    assert "MAT" in shown.out
    assert record().err.endswith("everything was there already\n")


def test_a_process_that_dies_is_told(record: Any, process: Any, tmp_path: Path) -> None:
    record()
    dies = "import os\nfrom talon_strategies import Chain\nChain.grow = lambda *_: os._exit(3)\n"
    status, out, _ = process(dies + REPLAY, str(tmp_path / "out"), "chain", "--jobs", "2")
    assert status == 2
    assert "a process has died twice at" in json.loads(out)["error"]


def test_methods_are_refused_before_anything_is_recorded(record: Any, tmp_path: Path) -> None:
    for asked, why in (
        (("talon", "talon"), "the method 'talon' is given twice"),
        (("sampled-chain",), "its policy draws from whole laws of the drafter, and the trace has none"),
        (("medusa/talon",), "and 'medusa' needs the model"),
    ):
        ran = record(*(part for one in asked for part in ("--try", one)))
        assert why in ran.refusal
        assert not (tmp_path / "out").exists()


def test_the_oracle_of_a_drafter_of_texts_is_as_deep_as_the_methods(record: Any, talon: Any, tmp_path: Path) -> None:
    record("--raw", drafter="ngram", out=tmp_path / "texts")
    found = talon("trace", "replay", str(tmp_path / "texts"), "chain:length=11", "--json").answer
    (chain,) = found["methods"]
    assert chain["mean_accepted_tokens"] > 3
    assert chain["oracle"]["in_hindsight"] >= chain["mean_accepted_tokens"]
    assert chain["oracle"]["by_the_laws"] <= found["oracle"]["mean_accepted_tokens"]


def test_one_command_goes_from_a_drafter_to_a_table(record: Any, talon: Any, tmp_path: Path) -> None:
    asked = ("--try", "chain:length=3", "--try", "talon:budget=8")
    found = record(*asked, "--json").answer
    alone = talon("trace", "replay", str(tmp_path / "out"), *asked[1::2], "--json").answer
    assert found["replay"]["methods"] == alone["methods"]
    assert "talon:budget=8" in record(*asked).out
    assert "did you mean 'talon'?" in record("--try", "talom", out=tmp_path / "other").refusal
    assert not (tmp_path / "other").exists()


def test_what_the_trace_does_not_answer_is_told(record: Any, talon: Any, tmp_path: Path) -> None:
    record("--nodes", "1", "--depth", "2", "--width", "1")
    ran = talon("trace", "replay", str(tmp_path / "out"), "talon:budget=30", "--json")
    assert ran.answer["methods"][0]["outside"] > 0
    assert "does not answer all that was asked by talon:budget=30; record with more" in ran.err


def test_a_width_beyond_the_vocabulary_is_told(record: Any, talon: Any, tmp_path: Path) -> None:
    wide, known = record("--width", "100000"), record("--width", "8", out=tmp_path / "other")
    assert re.search(r"--width is 100000; no more than the vocabulary's \d+ tokens are kept of each node", wide.err)
    assert "--width" not in known.err
    tried = talon("trace", "replay", str(tmp_path / "out"), "talon:budget=8", "--json")
    assert tried.answer["methods"][0]["outside"] == 0


def test_who_names_no_method_is_told_what_one_is(record: Any, talon: Any, tmp_path: Path) -> None:
    record()
    said = talon("trace", "replay", str(tmp_path / "out")).refusal
    assert said.startswith("Missing argument 'METHOD...': Policies, as talon:budget=12, with a rule behind a slash")
    assert said.endswith("(see 'talon trace replay --help')")


def test_who_asked_for_prices_that_nobody_gave_is_told(record: Any, talon: Any, tmp_path: Path) -> None:
    record()
    ran = talon("trace", "replay", str(tmp_path / "out"), "talon-cost", "talon:budget=8", "none", "caddtree", "--json")
    assert "what is assumed is followed by talon-cost, caddtree; talon trace replay --profile tells" in ran.err
    assert "assumed" not in talon("trace", "replay", str(tmp_path / "out"), "talon:budget=8", "none", "--json").err
    assert "what is assumed is followed by talon-cost;" in record("--try", "talon-cost", "--json").err


@pytest.mark.parametrize(("width", "priced"), [(120, False), (120, True), (80, False), (80, True)])
def test_a_table_shows_all_of_its_columns(
    talon: Any, monkeypatch: pytest.MonkeyPatch, width: int, priced: bool
) -> None:
    monkeypatch.setattr(output, "WIDTH", width)
    profile = ("--profile", "h100-llama-3.1-8b", "--other-machine") if priced else ()
    method = "talon:budget=48,mu=0.03/match"
    shown = talon("trace", "replay", str(SHIPPED), method, "--jobs", "1", *profile).out.splitlines()
    rows = [line for line in shown if line.startswith("│")]
    of_all = 11 if priced and width == 80 else 13 if priced else 9  # lines between columns, and at both ends
    assert [row.count("│") for row in rows] == [of_all] * len(rows)
    assert max(map(len, shown)) <= width
    assert ("timed" in "".join(shown)) == priced
    if priced:
        untimed = talon("trace", "replay", str(SHIPPED), method, "--jobs", "1", *profile, "--untimed").out
        assert "timed" not in untimed
        assert {line.count("│") for line in untimed.splitlines() if line.startswith("│")} == {of_all - 1}


def test_an_unfinished_trace_is_tried_as_far_as_it_goes(
    record: Any, talon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = recording.Recorder.text

    def until_the_second(self: Any, name: str, prompt: int, laws: Any) -> Any:
        if (name, prompt) == ("word", 0):
            raise KeyboardInterrupt
        return own(self, name, prompt, laws)

    with monkeypatch.context() as patch:
        patch.setattr(recording.Recorder, "text", until_the_second)
        ran = record("--json")
    assert ran.status == 130
    assert f"interrupted; the same command with --out '{tmp_path / 'out'}' goes on from here" in ran.err
    tried = talon("trace", "replay", str(tmp_path / "out"), "none", "--json")
    assert tried.answer["texts"] == 1
    assert tried.answer["missing"] == 2
    assert "left out, as the trace does not have them yet: 2 texts; talon trace record goes on" in tried.err
    assert record("--json").answer["texts"] == 2


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("talom", "method 'talom': no tree policy 'talom'; did you mean 'talon'?"),
        ("talon:budgt=3", "method 'talon:budgt=3': "),
        ("a/b/c/d", "is written policy, policy/rule, drafter/policy or drafter/policy/rule"),
        ("auto/talon/match", "the trace's own drafter is taken where none is named: write 'talon/match'"),
        ("auto/talom", "did you mean 'talon'?"),
        ("ngram", "'ngram' is a drafter, and a policy stands behind it: write 'ngram/default'"),
        ("chain@cached", "a schedule, as behind an @ of talon bench, is tried by talon trace simulate --schedule"),
        ("ngram/talom", "no tree policy 'talom'; did you mean 'talon'?"),
        ("auto/talon", "the trace's own drafter is taken where none is named: write 'talon'"),
        ("", "method '' is written policy"),
        ("medusa/talon", "the trace is of the drafter 'draft-model:skip=1', and 'medusa' needs the model"),
        ("sequoia", "its policy draws from whole laws of the drafter, and the trace has none; record with --laws"),
        ("talon/typical", "rule 'typical'"),
        ("talon/rrs", "method 'talon/rrs': "),
    ],
)
def test_a_method_that_cannot_be_tried_is_refused(
    record: Any, talon: Any, tmp_path: Path, method: str, why: str
) -> None:
    record()
    assert why in talon("trace", "replay", str(tmp_path / "out"), method).refusal


def test_a_rule_that_tests_probabilities_needs_them(record: Any, talon: Any, tmp_path: Path) -> None:
    record("--temperature", "0.8", "--seed", "1")
    out = str(tmp_path / "out")
    assert talon("trace", "replay", out, "talon:budget=8", "--json").status == 0
    why = talon("trace", "replay", out, "ngram/sampled-chain:length=2/rrs").refusal
    assert "rule 'rrs' tests the target's probabilities, and the trace has none; take the rule match" in why


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--width", "0"), "--width is 0; it must be at least 1"),
        (("--nodes", "-3"), "--nodes is -3; it must be at least 1"),
        (("--limit", "0"), "--limit is 0; it must be at least 1"),
        (("--temperature", "-1"), "--temperature is -1"),
        (("--max-new-tokens", "0"), "--max-new-tokens is 0"),
        (("--drafter", "eagel3"), "eagle3"),
        (("--model", "smolm2-135m"), "did you mean 'smollm2-135m'"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
    record: Any, tmp_path: Path, arguments: tuple[str, ...], why: str
) -> None:
    assert why in record(*arguments, "--json").refusal
    assert not (tmp_path / "out").exists()


def test_folders_that_are_no_traces_are_refused(record: Any, talon: Any, tmp_path: Path) -> None:
    assert "there is no manifest.json in" in talon("trace", "replay", str(tmp_path / "none"), "talon").refusal
    assert "is no folder of talon trace record" in talon("trace", "replay", str(tmp_path), "talon").refusal
    assert "is no folder of talon trace record" in record(out=tmp_path).refusal
    record()
    assert "settings: max_new_tokens was 12 and is 13" in record("--max-new-tokens", "13").refusal
    assert "--jobs is 0" in talon("trace", "replay", str(tmp_path / "out"), "talon", "--jobs", "0").refusal
    text = next((tmp_path / "out" / "texts").iterdir())
    text.write_bytes(text.read_bytes()[:-10])
    refusal = talon("trace", "replay", str(tmp_path / "out"), "none").refusal
    assert "is no text of a trace, or not a whole one: " in refusal
    assert refusal.endswith("; delete it and record what is missing")
    text.unlink()
    assert record().status == 0
    assert talon("trace", "replay", str(tmp_path / "out"), "none").status == 0


def test_prompts_that_were_changed_are_not_gone_on_with(record: Any, prompts: Path, tmp_path: Path) -> None:
    record()
    there = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*.*")}
    (prompts / "word.txt").write_text(f"{SENTENCE}{SENTENCE}", encoding="utf-8")  # as many prompts of the same name
    refusal = record("--json").refusal
    told = r"[0-9a-f]{8}"
    sets = rf"talk \(2 prompts, ({told})\), word \(1 prompts, ({told})\)"
    found = re.search(rf"is another one, give another folder: settings: sets was {sets} and is {sets}$", refusal)
    assert found is not None, refusal
    assert found[1] == found[3]
    assert found[2] != found[4]
    assert {file: file.read_bytes() for file in (tmp_path / "out").rglob("*.*")} == there


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(("place", "left"), [(0, []), (2, ["000-00000.safetensors", "manifest.json"])])
def test_a_full_disk_names_the_file_and_leaves_nothing_half_written(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, left: list[str]
) -> None:
    make, made = paths.NamedTemporaryFile, []

    def full(**options: Any) -> Any:
        file = make(**options)
        if len(made) == place:  # from here on the operating system refuses every byte
            with Path("/dev/full").open("wb") as nowhere:
                os.dup2(nowhere.fileno(), file.fileno())
        made.append(file.name)
        return file

    monkeypatch.setattr(paths, "NamedTemporaryFile", full)
    name = ("manifest.json", "texts/000-00000.safetensors", "texts/001-00000.safetensors")[place]
    ran = record("--json")
    assert ran.status == 2
    assert ran.answer == {"error": f"No space left on device: '{tmp_path / 'out' / name}'"}
    there = {file.name for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert sorted(there - {LOCK}) == left
    monkeypatch.undo()
    assert record("--json").answer["texts"] == 3 - max(0, len(left) - 1)


def test_a_policy_that_fails_is_named(record: Any, talon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from talon_strategies import Chain

    record()
    monkeypatch.setattr(Chain, "grow", lambda *_: None)
    why = talon("trace", "replay", str(tmp_path / "out"), "chain").refusal
    assert "tree policy 'chain' (talon_strategies.chain.Chain) returned NoneType from grow" in why


def test_what_a_profile_is_compared_with_is_found_out_without_loading_torch_here(process: Any) -> None:
    script = """
import sys
from talon_core.cli.costs import _machine
from talon_core.trace.processes import apart

assert apart(_machine)["threads"] > 0
assert "torch" not in sys.modules
"""
    status, _, err = process(script)
    assert status == 0, err
