"""What tests of scripts share: modules beside them, as Python finds them, and how much of prompts is read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from talon_core.tree import IntArray


@pytest.fixture(autouse=True)
def beside_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python looks for modules beside a script that it runs, and `runpy` does not."""
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens targets have read of each prompt, in their order; a list that grows."""
    from talon_core.hf.target import HFTarget

    lengths: list[int] = []
    reads = HFTarget.read

    def noted(target: HFTarget, parts: Mapping[int, IntArray]) -> Any:
        lengths.extend(map(len, parts.values()))
        return reads(target, parts)

    monkeypatch.setattr(HFTarget, "read", noted)
    return lengths
