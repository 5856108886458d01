"""A command looks for plugins once, whatever it makes with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talon_core import testing
from talon_core.engine.ahead.place import usable_cores
from talon_core.plugins import registry

SMALL = ("--nodes", "1,2", "--contexts", "16", "--batches", "1", "--rows", "1", "--widths", "2", "--repetitions", "1")
TRACE = Path(testing.__file__).parent / "trace"
"""Of several texts."""

COMMANDS = {
    "trace record": (
        "--prompts",
        "{texts}",
        "--out",
        "{out}",
        "--max-new-tokens",
        "4",
        "--nodes",
        "4",
        "--depth",
        "3",
        "--try",
        "chain:length=2",
    ),
    "profile measure": ("mine", *SMALL),
    "profile beside": ("--repetitions", "1", "--nodes", "3", "--rows", "2"),
    "generate": ("hi", "--max-new-tokens", "4"),
}


DRAFTERS = ("auto", "ngram", "hybrid:of=ngram+pld")
OF_LAYERS = ("draft-model:skip=1", "hybrid:of=draft-model[skip=1]+ngram")
"""Drafters of the target's own layers, which cannot work beside it."""


def scans_of(command: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gets the command each time that plugins are looked for."""
    find, scans = registry._installed_plugins, list[str]()

    def counted() -> Any:
        scans.append(command)
        return find()

    monkeypatch.setattr(registry, "_installed_plugins", counted)
    return scans


@pytest.mark.parametrize(
    ("command", "drafter"),
    [
        *((command, drafter) for command in COMMANDS for drafter in DRAFTERS),
        *((command, drafter) for command in COMMANDS if command != "profile beside" for drafter in OF_LAYERS),
    ],
)
def test_a_command_looks_for_plugins_once(
    command: str,
    drafter: str,
    talon: Callable[..., Any],
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scans = scans_of(command, monkeypatch)
    if command == "profile beside" and usable_cores() < 2:
        pytest.skip("one core, on which nothing works at the same time")
    monkeypatch.setenv("TALON_DATA", str(tmp_path / "data"))
    texts = tmp_path / "texts.txt"
    texts.write_text("hi\n")
    arguments = [one.format(texts=texts, out=tmp_path / "out") for one in COMMANDS[command]]
    ran = talon(*command.split(), *arguments, "--model", model, "--drafter", drafter)
    assert ran.status == 0, ran.err
    assert scans == [command]


@pytest.mark.parametrize("command", ["trace replay {trace}", "trace sweep --trace {trace} --out {out}"])
def test_so_does_one_that_tries_methods_on_a_trace(
    command: str, talon: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = scans_of(command, monkeypatch)
    own = [one.format(trace=TRACE, out=tmp_path / "out") for one in command.split()]
    ran = talon(*own, "chain:length=1", "chain:length=2", "--jobs", "1")
    assert ran.status == 0, ran.err
    assert scans == [command]
