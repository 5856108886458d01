"""The superset tree that is recorded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talon_core.trace.folder import Trace
from talon_core.trace.record import Recorder


def test_a_text_that_ends_above_the_deepest_layers_is_recorded(
    tiny: Any,
    recorder: Callable[..., Recorder],
    recorded: Callable[..., Trace],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    whole = next(iter(recorded(tiny)))
    monkeypatch.setattr(tiny[0].generation_config, "eos_token_id", int(whole.ids[whole.prompt_tokens + 5]))
    text = next(iter(recorder(tiny).run(tmp_path / "trace").trace))
    assert text.finish_reason == "eos"
    assert 0 < text.positions <= 6
    assert text.ids.tolist() == whole.ids[: len(text.ids)].tolist()
