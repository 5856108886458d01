"""Traces of a tiny model and a draft model that is a part of it: recorded in a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talon_core.bench.prompts import read_sets
from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry
from talon_core.trace.folder import Trace
from talon_core.trace.record import Recorder, TracePlan
from talon_tests.tiny_models import of_words, two_sets

DRAFTER = "draft-model:skip=2"


@pytest.fixture(scope="session")
def tiny() -> tuple[Any, Any]:
    """A tiny Llama of 97 tokens."""
    return of_words()


@pytest.fixture(scope="session")
def small() -> tuple[Any, Any]:
    """A tiny Llama of 11 tokens: all that may come in three steps can be recorded."""
    return of_words(vocab_size=11)


@pytest.fixture(scope="session")
def prompt_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets, of three prompts and of one."""
    return two_sets(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(scope="session")
def recorder(prompt_files: Path) -> Callable[..., Recorder]:
    """Makes what records a model and a drafter; the same one once."""
    known: dict[str, Recorder] = {}

    def make(model: tuple[Any, Any], drafter: str = DRAFTER, prompts: Path = prompt_files, **options: Any) -> Recorder:
        question = repr((id(model[0]), drafter, str(prompts), sorted(options.items())))
        if question not in known:
            settings = {"model": "tiny", "sets": tuple(read_sets(prompts)), "max_new_tokens": 24, "depth": 8, **options}
            known[question] = Recorder(
                TracePlan(**settings), *model, built(load_registry(), "drafter", drafter), drafter
            )
        return known[question]

    return make


@pytest.fixture(scope="session")
def recorded(recorder: Callable[..., Recorder], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trace]:
    """Records a trace; arguments as for `recorder`. The same one is recorded once."""
    known: dict[str, Trace] = {}

    def record(model: tuple[Any, Any], drafter: str = DRAFTER, **options: Any) -> Trace:
        question = repr((id(model[0]), drafter, sorted(options.items())))
        if question not in known:
            known[question] = recorder(model, drafter, **options).run(tmp_path_factory.mktemp("trace")).trace
        return known[question]

    return record
