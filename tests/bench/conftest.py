"""Folders of results, written by hand."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from talon_core.bench.measurement import Measurement
from talon_core.bench.methods import parse_methods
from talon_core.bench.prompts import Prompt, PromptSet
from talon_core.bench.results import Results, append, open_folder
from talon_core.bench.schedule import Plan
from talon_core.rounds import Stats

ENVIRONMENT = {"dtype": "float32", "torch": "2", "threads": 1}
SESSION = {"started": "now", "commit": None}


def _measurement(method: str = "none", prompt: int = 0, seconds: float = 1.0, **changes: Any) -> Measurement:
    """A line of ten tokens, with whatever is to be different."""
    tokens = changes.pop("token_ids", list(range(10)))
    figures: dict[str, Any] = dict.fromkeys((field.name for field in attrs.fields(Stats)), 0)
    passes = changes.pop("target_passes", len(tokens))
    figures.update(new_tokens=len(tokens), seconds=seconds, rounds=passes, target_passes=passes)
    figures.update(changes.pop("stats", {}))
    fields: dict[str, Any] = {
        "set": "qa",
        "prompt": prompt,
        "turn": 0,
        "question_id": None,
        "method": method,
        "repetition": 0,
        "order": 0,
        "seed": None,
        "prompt_tokens": 3,
        "token_ids": tokens,
        "finish_reason": "length",
        "identical": True,
        "first_difference": None,
        "logit_gap": None,
        "stats": figures,
        "acceptance_by_depth": [],
    }
    return Measurement(**{**fields, **changes})


def _plan(specs: Sequence[str] = ("ngram",), sets: Mapping[str, int] | None = None, **changes: Any) -> Plan:
    """A plan over sets of so many prompts; lossy rules are allowed."""
    made = (
        PromptSet(name, f"{name}.jsonl", "0" * 64, tuple(Prompt((f"{name} {i}",)) for i in range(size)), size)
        for name, size in (sets or {"qa": 4}).items()
    )
    return Plan("tiny", tuple(parse_methods(specs, lossy=True)), tuple(made), **changes)


@pytest.fixture(scope="session")
def measurement() -> Callable[..., Measurement]:
    """Makes a line; test modules cannot import from here."""
    return _measurement


@pytest.fixture(scope="session")
def plan() -> Callable[..., Plan]:
    """Makes a plan."""
    return _plan


@pytest.fixture
def reopened() -> Callable[..., Results]:
    """Opens a folder again, with whatever is to be different."""

    def again(folder: Path, environment: Mapping[str, Any] | None = None, **changes: Any) -> Results:
        return open_folder(folder, _plan(**changes).settings(), {**ENVIRONMENT, **(environment or {})}, SESSION)

    return again


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder of these lines, of a plan."""

    def write(
        lines: Sequence[Measurement],
        name: str = "results",
        environment: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Path:
        folder = tmp_path / name
        open_folder(folder, _plan(**changes).settings(), {**ENVIRONMENT, **(environment or {})}, SESSION)
        append(folder, lines)
        return folder

    return write
