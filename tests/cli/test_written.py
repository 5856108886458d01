"""Files and folders that a command is to write are looked at before its work, and Ctrl-C is always answered."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talon_core.testing.benchmarks import SHIPPED

NOWHERE = ("--model", "no such model")
"""So that whoever loads a model first says something else."""


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which nothing can be made, whoever runs the tests."""

    def refuse(dir: Path) -> None:
        assert dir == tmp_path or dir in tmp_path.parents
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hi")
    monkeypatch.setattr("talon_core.basics.paths.TemporaryFile", refuse)
    monkeypatch.setenv("TALON_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "option", "name"),
    [
        (("generate", "hi", *NOWHERE), "--timeline", "x.html"),
        (("generate", "hi", *NOWHERE), "--tree-svg", "x.svg"),
        (("certify", "--policy", "chain"), "--out", "x.json"),
        (("trace", "simulate", SHIPPED, "chain", "--profile", "h100-llama-3.1-8b"), "--picture", "x.html"),
        (("tune", SHIPPED, "chain", "--profile", "h100-llama-3.1-8b"), "--picture", "x.png"),
        (("tune", SHIPPED, "chain", "--profile", "h100-llama-3.1-8b"), "--save", "x.json"),
        (("trace", "sweep", "chain", "--trace", SHIPPED), "--out", "x"),
        (("trace", "record", "--prompts", "{folder}/prompts.txt", *NOWHERE), "--out", "x"),
        (("bench", "run", "ngram", "--prompts", "{folder}/prompts.txt", *NOWHERE), "--out", "x"),
        (("bench", "compare", "{folder}"), "--out", "x.json"),
        (("train", "eagle3", "--self-written", "1", *NOWHERE), "--out", "x"),
        (("datastore", "build", "{folder}/prompts.txt", *NOWHERE), "--out", "x"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(
    talon: Callable[..., Any], read_only: Path, command: tuple[Any, ...], option: str, name: str
) -> None:
    file = str(read_only / name)
    words = [str(word).format(folder=read_only) for word in command]
    assert (
        talon(*words, option, file, "--json").refusal
        == f"{option} is '{file}', which cannot be written: Read-only file system"
    )


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("profile", "measure", "mine", *NOWHERE), "profiles"),
        (("tune", str(SHIPPED), "chain", "--profile", "h100-llama-3.1-8b", "--save", "mine"), "presets"),
    ],
)
def test_what_is_kept_by_name_is_looked_at_too(
    talon: Callable[..., Any], read_only: Path, command: tuple[str, ...], what: str
) -> None:
    folder = read_only / "data" / what
    refusal = talon(*command, "--json").refusal
    assert refusal == f"the folder of {what} is '{folder}', which cannot be written: Read-only file system"


@pytest.mark.parametrize(
    ("command", "where", "left"),
    [
        (("profile", "beside", "--drafter", "ngram"), "profiles.beside.drafting_beside", "; nothing is kept"),
        (("profile", "measure", "mine"), "profiles.measure.Measuring", "; nothing is kept"),
        (
            ("trace", "simulate", str(SHIPPED), "chain", "--profile", "h100-llama-3.1-8b", "--other-machine"),
            "trace.schedules.promises",
            "; nothing is written",
        ),
        (("trace", "replay", str(SHIPPED), "chain"), "trace.run.replayed", "; the trace is as it was"),
        (("certify", "--policy", "chain"), "certify.trial.certify", "; there is no certificate"),
        (("doctor",), "cli.doctor.resolve", ""),
    ],
)
def test_ctrl_c_is_answered_with_what_there_is_then(
    talon: Callable[..., Any],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: tuple[str, ...],
    where: str,
    left: str,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("TALON_DATA", str(tmp_path))
    monkeypatch.setattr(f"talon_core.{where}", interrupted)
    own = ("--model", model) if command[0] == "profile" else ()
    ran = talon(*command, *own, "--json")
    assert (ran.status, ran.answer) == (130, {"error": "interrupted"})
    assert ran.err.endswith(f"talon: interrupted{left}\n")
