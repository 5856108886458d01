"""The script that times passes goes through on a model of milliseconds; docs have what it says of a real one."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from talon_kernels.native import load, unavailable
from talon_tests.tiny_gguf import write_gguf

SCRIPT = Path(__file__).with_name("pass_speed.py")


def test_the_script_times_passes_in_all_eight_ways(tmp_path, monkeypatch):
    model = write_gguf(tmp_path / "tiny.gguf", "Q4_1")
    out = tmp_path / "figures.json"
    sizes = ["--repetitions", "1", "--nodes", "1", "3", "--context", "20"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--model", str(model), *sizes, "--out", str(out)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    figures = json.loads(out.read_text())
    assert [row["nodes"] for row in figures["milliseconds"]] == [1, 3]
    assert len(figures["milliseconds"][0]) == 9
    assert all(time > 0 for row in figures["milliseconds"] for time in row.values())
    assert all(0 < found["outside"] < found["milliseconds"] for found in figures["rounds"].values())
    assert figures["bytes"]["blocks"] < figures["bytes"]["float32"] / 3
    assert figures["context"] == 20
    assert figures["not_recorded"] == {"float32": None, "blocks": None}


def test_all_recorded_passes_count_while_they_are_timed(monkeypatch):
    script = runpy.run_path(str(SCRIPT), run_name="pass_speed")
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    one, several, chains = (
        lambda took, spent=spent: now.__setitem__(0, now[0] + spent * took) for spent in (1.0, 10.0, 100.0)
    )
    library = SimpleNamespace(walk=one, walk_on=several, walk_chains=chains)
    with script["passes_timed"](library) as inside:
        library.walk(2)
        now[0] += 1000.0
        library.walk_on(3)
        library.walk_chains(4)
    assert inside == [432.0]
    assert (library.walk, library.walk_on, library.walk_chains) == (one, several, chains)


def test_there_are_no_recorded_passes_but_those_that_are_timed():
    library = load()
    if library is None:
        pytest.skip(f"no native kernels here: {unavailable()}")
    walked = runpy.run_path(str(SCRIPT), run_name="pass_speed")["WALKED"]
    assert {name for name in vars(library) if name.startswith("walk")} == {*walked}


def test_a_sample_is_the_least_of_as_many_passes_each_way(monkeypatch):
    script = runpy.run_path(str(SCRIPT), run_name="pass_speed")
    tree, found = SimpleNamespace(tokens=[5]), {}
    for recorded, logits in script["WAYS"].values():
        now, taken = [0.0], iter([0.1, *range(20, 0, -1)])  # the first one is quick, and warms up
        target = MagicMock()
        timed = target.runner.run if logits is None else target.runner.walk
        timed.side_effect = lambda *_, now=now, taken=taken, **more: now.__setitem__(0, now[0] + next(taken))
        monkeypatch.setattr("time.perf_counter", lambda now=now: now[0])
        target.vocab_size = 100
        found[recorded, logits] = script["_pass"](target, tree, 7, recorded, logits), timed.call_count
        assert target.runner.commit.call_count == (timed.call_count if logits is None else 0)
    assert len(found) == 4
    assert len({*found.values()}) == 1
    assert found[True, False][0] >= 1


def test_a_pass_behind_nothing_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--context", "0"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "--context is 0; it must be at least 1" in capsys.readouterr().err
