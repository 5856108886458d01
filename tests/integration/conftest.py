"""Fixtures of the tests on models."""

from typing import Any

import pytest

from talon_tests.plain_law import TOKENS, TOP_K, Texts, beginning, plain_law


@pytest.fixture(scope="session")
def ids(smollm: tuple[Any, Any]) -> list[int]:
    """The text of which `law` has the next tokens."""
    return beginning(*smollm)


@pytest.fixture(scope="session")
def law(smollm: tuple[Any, Any], ids: list[int], answers: Any) -> Texts:
    """The exact law of SmolLM2's next tokens; computed once in a run."""
    found = answers.of(("plain law", ids, TOKENS, TOP_K), lambda: [*plain_law(smollm[0], ids).items()])
    return {tuple(tokens): prob for tokens, prob in found}
