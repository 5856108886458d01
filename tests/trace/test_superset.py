"""The superset tree that is recorded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talon_core.cli.trace import record
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


@pytest.mark.parametrize("least", [-0.1, 1.5, float("nan")])
def test_a_share_of_the_likeliest_is_between_0_and_1(prompt_files: Path, tmp_path: Path, least: float) -> None:
    with pytest.raises(ValueError, match=f"--least is {least}; it must be between 0 and 1"):
        record(prompt_files, tmp_path / "trace", least=least)
    assert not (tmp_path / "trace").exists()
