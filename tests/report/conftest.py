"""Runs and reports of a tiny model: decoded for real, in a second or two."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talon_core.bench.methods import parse_methods
from talon_core.bench.prompts import read_sets
from talon_core.bench.results import Results
from talon_core.bench.run import Bench
from talon_core.bench.schedule import Plan
from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry
from talon_core.report.efficiency import oracle_of
from talon_core.report.figures import Report
from talon_core.report.gather import Besides, report_of
from talon_core.report.page import page_of
from talon_core.report.steps import read_questions
from talon_core.report.texts import Texts
from talon_core.trace.folder import Trace
from talon_core.trace.record import Recorder, TracePlan
from talon_tests.tiny_models import of_words, two_sets

DRAFTER = "draft-model:skip=2"
METHODS = (
    f"{DRAFTER}/talon:budget=8",
    f"{DRAFTER}/eagle2:budget=6,depth=3,top_k=2",
    "ngram/chain:length=3",
    "generate",
)
TOKENS = 24


@pytest.fixture(scope="session")
def tiny() -> tuple[Any, Any]:
    """A tiny Llama of 97 tokens, and a tokenizer of words."""
    return of_words()


@pytest.fixture(scope="session")
def prompt_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets, of three prompts and of one."""
    return two_sets(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(scope="session")
def decoded(
    tiny: tuple[Any, Any], prompt_files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Results]:
    """Runs methods on the prompts; the same run once."""
    known: dict[str, Results] = {}

    def run(specs: tuple[str, ...] = METHODS, **options: Any) -> Results:
        question = repr((specs, sorted(options.items())))
        if question not in known:
            settings = {"max_new_tokens": TOKENS, "warmup": 0, "rounds": True, **options}
            plan = Plan("tiny", tuple(parse_methods(specs)), tuple(read_sets(prompt_files)), **settings)
            known[question] = Bench(plan, *tiny).run(tmp_path_factory.mktemp("run"))
        return known[question]

    return run


@pytest.fixture(scope="session")
def results(decoded: Callable[..., Results]) -> Results:
    """A run of all methods, with its rounds."""
    return decoded()


@pytest.fixture(scope="session")
def recorded(tiny: tuple[Any, Any], prompt_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A trace of the same prompts."""
    plan = TracePlan("tiny", tuple(read_sets(prompt_files)), max_new_tokens=TOKENS, depth=8)
    drafter = built(load_registry(), "drafter", DRAFTER)
    return Recorder(plan, *tiny, drafter, DRAFTER).run(tmp_path_factory.mktemp("trace")).trace


@pytest.fixture(scope="session")
def report(results: Results, recorded: Trace, tiny: tuple[Any, Any], prompt_files: Path) -> Report:
    """Everything that can be known of the run."""
    questions = read_questions(prompt_files, results)
    return report_of(results, besides=Besides(Texts(tiny[1]), questions, oracle_of(recorded, results)))


@pytest.fixture(scope="session")
def page_file(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report as a file."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(page_of(report), encoding="utf-8")
    return file
