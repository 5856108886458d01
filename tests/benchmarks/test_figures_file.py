"""Scripts that measure say at once what their work would end at."""

import json
import runpy
import sys
from pathlib import Path

import pytest

COUNTS = {
    "batch_speed": ["repetitions"],
    "cpu_speed": ["repetitions"],
    "gpu_speed": [],
    "pass_speed": ["repetitions"],
    "prompt_speed": ["repetitions"],
    "schedule_speed": ["repetitions"],
    "trace_speed": ["repetitions", "replays"],
}
ALWAYS = {"gpu_speed": ["--smoke"]}
"""What a script is given besides, so that nothing else is refused."""


def refused(script, arguments, monkeypatch, capsys):
    """What a script says that is to end before a model is loaded."""
    from talon_core.models import loading

    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("nothing is to be begun"))
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *ALWAYS.get(script, []), *arguments])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(Path(__file__).with_name(f"{script}.py")), run_name="__main__")
    return capsys.readouterr().err


@pytest.mark.parametrize("script", COUNTS)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(script, tmp_path, monkeypatch, capsys):
    if script == "gpu_speed":
        pytest.importorskip("triton")
    out = tmp_path / "nowhere" / "figures.json"
    said = refused(script, ["--out", str(out)], monkeypatch, capsys)
    assert f"--out is '{out}'; it must be a file in a folder that exists" in said


@pytest.mark.parametrize(("script", "count"), [(script, name) for script, names in COUNTS.items() for name in names])
def test_measuring_nothing_is_refused(script, count, monkeypatch, capsys):
    assert f"--{count} is 0; it must be at least 1" in refused(script, [f"--{count}", "0"], monkeypatch, capsys)


def test_figures_are_there_as_a_whole_or_not_at_all(tmp_path):
    from figures_file import write_figures

    write_figures(None, {})
    out = tmp_path / "figures.json"
    write_figures(out, {"seconds": 1.5})
    assert json.loads(out.read_text()) == {"seconds": 1.5}
    with pytest.raises(TypeError):
        write_figures(out, {"seconds": object()})
    assert json.loads(out.read_text()) == {"seconds": 1.5}
