"""Options and fixtures of the whole suite."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
    # Without a GPU, Triton's kernels are tested by its interpreter; it is chosen when triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

OWN_PROMPTS = Path(__file__).parent / "prompts.jsonl"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--prompts` brings prompt sets in, `--matrix` runs every combination."""
    parser.addoption("--prompts", metavar="DIR", help="also decode the prompts of every *.jsonl file in DIR")
    parser.addoption("--prompts-limit", type=int, default=0, metavar="N", help="only the first N prompts of each file")
    parser.addoption("--matrix", action="store_true", help="run the whole matrix of combinations")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `--matrix`, tests marked so are skipped, visibly."""
    if not config.getoption("--matrix"):
        skip = pytest.mark.skip(reason="part of the whole matrix: run with --matrix")
        for item in items:
            if "matrix" in item.keywords:
                item.add_marker(skip)


def read_prompts(file: Path, limit: int = 0) -> list[str]:
    """The first turns of a file in Spec-Bench form: one JSON object a line, with `turns`."""
    prompts = [json.loads(line)["turns"][0] for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return prompts[:limit] if limit else prompts


@pytest.fixture
def unshrunk() -> Iterator[None]:
    """Hypothesis takes the first failure as it comes: what is tested is that there is one, not how small it gets."""
    from hypothesis import Phase, settings

    before = settings.get_current_profile_name()
    settings.register_profile("unshrunk", phases=[Phase.generate], derandomize=True)
    settings.load_profile("unshrunk")
    yield
    settings.load_profile(before)


@pytest.fixture(scope="session")
def prompts(request: pytest.FixtureRequest) -> list[str]:
    """The suite's own prompts, and those of `--prompts DIR`."""
    found = read_prompts(OWN_PROMPTS)
    folder = request.config.getoption("--prompts")
    if folder:
        files = sorted(Path(folder).glob("*.jsonl"))
        if not files:
            raise pytest.UsageError(f"--prompts {folder}: there are no *.jsonl files in it")
        for file in files:
            found += read_prompts(file, request.config.getoption("--prompts-limit"))
    return found


def _embedded(name: str) -> tuple[Any, Any]:
    from talon_core.loading import load_model
    from talon_core.models import is_cached

    if not is_cached(name):
        missing = f"{name} is not in the cache; fetch it with: talon models fetch {name}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return load_model(name)


@pytest.fixture(scope="session")
def smollm() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct and its tokenizer, float32."""
    return _embedded("smollm2-135m")


@pytest.fixture(scope="session")
def gemma() -> tuple[Any, Any]:
    """Gemma 3 270M and its tokenizer, float32."""
    return _embedded("gemma3-270m")
