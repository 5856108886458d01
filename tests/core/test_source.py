"""A process beside loads the target's model as it was loaded here: by its name, and with the user's options."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import talon_core
from talon_core.cli import main
from talon_core.decoding.hosting import Opening, _opened
from talon_core.decoding.source import Source
from talon_core.models.loading import load_model
from talon_tests.tiny_models import of_words

DRAFTER = "draft-model:skip=1"
"""Reads more than texts: it runs layers of the target, of which a process beside has a copy."""

PARTS: dict[str, Any] = {"drafter": DRAFTER, "policy": "chain", "schedule": "cached:budget=8", "draft_on": "cpu:1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model and a tokenizer of words, as files."""
    where = tmp_path_factory.mktemp("tiny")
    for part in of_words():
        part.save_pretrained(where)
    return str(where)


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[Opening]:
    """What processes would be told first, as it comes to them; none is started."""
    told: list[Opening] = []

    def started(_command: object, opening: Opening, *_: object) -> None:
        told.append(pickle.loads(pickle.dumps(opening)))
        raise ValueError("none is started")

    monkeypatch.setattr("talon_core.decoding.hosting.ProcessWorker", started)
    for user in ("engine.ahead.place", "profiles.beside"):
        monkeypatch.setattr(f"talon_core.{user}.usable_cores", lambda: 3)
    return told


def test_it_is_given_what_load_was_given(folder: str, openings: list[Opening], monkeypatch: pytest.MonkeyPatch) -> None:
    """But for where it is: the process has a place of its own. Its numbers have the format that they have here."""
    options = {"trust_remote_code": True, "revision": "v2", "dequantize": True}
    with pytest.raises(ValueError, match="none is started"):
        talon_core.load(folder, **PARTS, **options, device_map="cpu", dtype="bfloat16")
    (opening,) = openings
    assert opening.source == Source(folder, options)
    loaded: list[tuple[str, dict[str, Any]]] = []

    def noted(name: str, **given: Any) -> Any:
        loaded.append((name, given))
        return load_model(name, **given)

    monkeypatch.setattr("talon_core.models.loading.load_model", noted)
    monkeypatch.setattr("talon_core.models.loading.hide_bars", lambda: None)
    monkeypatch.setattr("talon_core.decoding.hosting.take_cores", lambda _: None)
    _opened(opening)
    assert loaded == [(folder, {**options, "dtype": torch.bfloat16})]


def test_what_reads_texts_alone_is_given_none_of_it(folder: str, openings: list[Opening]) -> None:
    with pytest.raises(ValueError, match="none is started"):
        talon_core.load(folder, **{**PARTS, "drafter": "ngram"}, trust_remote_code=True)
    assert [opening.source for opening in openings] == [None]


COMMANDS = {
    "generate": ("generate", "t5", "--drafter", DRAFTER, "--policy", "chain", "--schedule", "cached:budget=8"),
    "bench": ("bench", "run", f"{DRAFTER}/chain@cached:budget=8", "--prompts", "prompts.txt", "--out", "out"),
    "profile": ("profile", "beside", "--drafter", DRAFTER),
}


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("command", COMMANDS)
def test_code_that_a_command_may_run_may_be_run_there_and_no_other(
    command: str, trusted: bool, folder: str, openings: list[Opening], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("t5\n")
    where = ["--model", folder, "--draft-on", "cpu:1", *(["--trust-remote-code"] if trusted else [])]
    assert main([*COMMANDS[command], *where]) == 2
    assert [opening.source for opening in openings] == [Source(folder, {"trust_remote_code": trusted})]
