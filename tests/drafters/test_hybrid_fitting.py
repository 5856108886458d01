"""The command that says how well `hybrid` mixes: what it counts, and what it refuses."""

import json
import shutil
from math import log
from pathlib import Path

import attrs
import pytest

from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace.folder import read_trace
from talon_drafters.hybrid.calibration import FITTED, Trust
from talon_drafters.hybrid.fitting import Before, Fit, fit_of, fitted, main, told

STORIES = [
    [
        Before(share=0.5, came=True, found=0.8, own=0.5),
        Before(share=0.9, came=False, found=0.9, own=0.0, best=0.6, prob=0.3),
        Before(share=0.0, came=False, found=0.0, own=0.0, best=0.7, prob=0.7),
        Before(share=0.6, came=True, found=0.75, own=0.6, best=0.2, prob=0.0),
    ]
]


def test_what_is_counted_by_hand() -> None:
    trust = Trust()
    trust.learn(0.5, True)
    weight, wrong = trust.beside({0: 0.9}, 0.6), trust.comes(0.9)
    trust.learn(0.9, False)
    last, right = trust.beside({0: 0.6}, 0.2), trust.comes(0.6)
    mixture = log((1 - weight) * 0.3) + log(0.7) + log(last * 0.6 / 0.75)
    expected = Fit(mixture / 3, (log(1 - wrong) + log(right)) / 3)
    assert attrs.astuple(fit_of(STORIES, FITTED)) == pytest.approx(attrs.astuple(expected))


def test_no_single_step_is_better_than_what_is_fitted() -> None:
    found = fitted(STORIES)
    assert fit_of(STORIES, found).total > fit_of(STORIES, FITTED).total
    for name, step in (("slope", 0.025), ("intercept", 0.025), ("beside_intercept", 0.025), ("beside_model", 0.0125)):
        for sign in (1.0, -1.0):
            moved = attrs.evolve(found, **{name: getattr(found, name) + sign * step})
            assert fit_of(STORIES, moved).total <= fit_of(STORIES, found).total + 1e-6


@pytest.mark.parametrize("look_up", ["ngram", "pld", "lookahead:window=0", "hybrid:of=ngram+pld"])
def test_the_command_says_it_of_a_trace(look_up: str, capsys: pytest.CaptureFixture[str]) -> None:
    if look_up.startswith("hybrid"):
        assert main([str(SHIPPED), "--look-up", look_up]) == 2
        assert "which is no Retriever; give ngram, pld or datastore" in capsys.readouterr().err
        return
    assert main([str(SHIPPED), "--look-up", look_up, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == told(read_trace(SHIPPED), look_up)
    assert (found["texts"], found["held_out"], found["tokens_held_out"]) == (4, 1, 14)
    assert found["shipped"]["mixture"] > found["model_alone"] - 0.2
    assert main([str(SHIPPED), "--look-up", look_up]) == 0
    assert f"look-up {look_up}, 4 texts, of which 14 new tokens of 1 are held out" in capsys.readouterr().out


def test_what_it_cannot_use_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_texts = tmp_path / "of_texts"
    shutil.copytree(SHIPPED, of_texts)
    manifest = json.loads((of_texts / "manifest.json").read_text())
    manifest["drafter"]["reads_texts"] = True
    (of_texts / "manifest.json").write_text(json.dumps(manifest))
    for arguments, sentence in (
        ([of_texts], "which reads texts alone; give one of a drafter with a model"),
        ([SHIPPED, "--look-up", "eagle3"], "which needs a model; give one that reads texts alone"),
        ([SHIPPED, "--look-up", "nonsense"], "nonsense"),
        ([tmp_path], "is no folder of talon trace record"),
    ):
        assert main([str(one) for one in arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert sentence in error


def test_a_trace_whose_rows_were_changed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(SHIPPED, tmp_path, dirs_exist_ok=True)
    trace = read_trace(tmp_path)
    text = next(iter(trace))
    trace.save(text)  # with the checksums that the shipped trace lacks
    file, likely = trace.file(text.set, text.prompt), text.recorded.logp[:1].tobytes()
    data = file.read_bytes()
    assert likely in data
    file.write_bytes(data.replace(likely, (text.recorded.logp[:1] * 0.99).tobytes()))
    assert main([str(tmp_path)]) == 2
    assert "a row of the trace is not what was recorded" in capsys.readouterr().err
