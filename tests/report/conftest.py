"""Runs and reports of a tiny model: decoded for real, in a second or two."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

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
def repeating() -> tuple[Any, Any]:
    """A tiny Llama that says the same token again, so that whatever reads the text drafts it."""
    model, tokenizer = of_words(tie_word_embeddings=True)
    with torch.no_grad():
        for layer in model.model.layers:  # they compute something, and change nothing much
            layer.self_attn.o_proj.weight.mul_(0.01)
            layer.mlp.down_proj.weight.mul_(0.01)
    return model, tokenizer


@pytest.fixture(scope="session")
def prompt_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets, of three prompts and of one."""
    return two_sets(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(scope="session")
def decoded(
    tiny: tuple[Any, Any], prompt_files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Results]:
    """Runs methods on the prompts, with the tiny model or another one; the same run once."""
    known: dict[str, Results] = {}

    def run(specs: tuple[str, ...] = METHODS, model: tuple[Any, Any] = tiny, **options: Any) -> Results:
        question = repr((specs, id(model[0]), sorted(options.items())))
        if question not in known:
            settings = {"max_new_tokens": TOKENS, "warmup": 0, "rounds": True, **options}
            plan = Plan("tiny", tuple(parse_methods(specs)), tuple(read_sets(prompt_files)), **settings)
            known[question] = Bench(plan, *model).run(tmp_path_factory.mktemp("run"))
        return known[question]

    return run


@pytest.fixture(scope="session")
def results(decoded: Callable[..., Results]) -> Results:
    """A run of all methods, with its rounds."""
    return decoded()


@pytest.fixture(scope="session")
def traced(tiny: tuple[Any, Any], prompt_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trace]:
    """Records a trace of the same prompts, of the tiny model or another one."""

    def record(drafter: str = DRAFTER, model: tuple[Any, Any] = tiny, **options: Any) -> Trace:
        plan = TracePlan("tiny", tuple(read_sets(prompt_files)), **{"max_new_tokens": TOKENS, **options})
        spec = built(load_registry(), "drafter", drafter)
        return Recorder(plan, *model, spec, drafter).run(tmp_path_factory.mktemp("trace")).trace

    return record


@pytest.fixture(scope="session")
def recorded(traced: Callable[..., Trace]) -> Trace:
    """A trace of the same prompts."""
    return traced(depth=8)


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
