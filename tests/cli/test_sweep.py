"""`talon trace sweep` on the trace that ships, in one process, in several and on a local cluster of Ray."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.cli import output
from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry
from talon_core.policy import Growth, TreePolicy
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace import code, sweep
from talon_core.trace.replay import Method, Totals
from talon_core.trace.sweep import RESULTS, Summary
from talon_core.tree import TokenTree

METHODS = ("chain:length={2,4}", "talon:budget=16", "none")

SWEEP = """
import sys
from pathlib import Path
from talon_core.cli import main
from talon_core.trace import on_ray, processes

def dies_once(work, unit, own=processes.answered, flag=sys.argv.pop(1)):
    import os
    from pathlib import Path
    if unit.texts[0][1] == 1 and not Path(flag).exists():
        Path(flag).touch()
        os._exit(9)
    return own(work, unit)

processes.answered = on_ray.answered = dies_once
status = main(["trace", "sweep", *sys.argv[1:], "--json"])
assert "torch" not in sys.modules
sys.exit(status)
"""


def lines(folder: Path) -> list[str]:
    return sorted((folder / RESULTS).read_text().splitlines())


@pytest.fixture
def swept(talon: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Runs `talon trace sweep` on the shipped trace."""

    def run(*arguments: str, out: Path = tmp_path / "out", trace: Path = SHIPPED) -> Any:
        return talon("trace", "sweep", *arguments, "--trace", str(trace), "--out", str(out))

    return run


def test_it_says_what_a_replay_says_and_of_each_set(swept: Any, talon: Any) -> None:
    ran = swept(*METHODS, "--json")
    assert ran.status == 0, ran.err
    replayed = talon("trace", "replay", str(SHIPPED), "chain:length=2", "chain:length=4", *METHODS[1:], "--json").answer
    rows = {(row["method"], row["set"]): row for row in ran.answer["rows"]}
    assert len(rows) == 8
    for one in replayed["methods"]:
        whole, of_set = rows[one["method"], None], rows[one["method"], "prompts"]
        for name in ("mean_accepted_tokens", "target_passes", "draft_passes", "nodes_verified", "outside"):
            assert whole[name] == of_set[name] == one[name]
        assert whole["texts"] == 4
        if one["largest_tree"] == one["oracle"]["nodes"] == {"chain:length=4": 5, "none": 1}.get(one["method"]):
            assert whole["oracle"]["in_hindsight"] == one["oracle"]["in_hindsight"]
    assert rows["none", None]["oracle"] == {"in_hindsight": 1.0, "by_the_laws": 1.0, "share": None}
    talon_row = rows["talon:budget=16", None]
    most = talon_row["oracle"]["in_hindsight"]
    assert talon_row["oracle"]["share"] == (talon_row["mean_accepted_tokens"] - 1) / (most - 1)


def test_people_get_a_table_and_see_what_is_missing(swept: Any, tmp_path: Path) -> None:
    ran = swept("talon:budget=16")
    assert ran.status == 0, ran.err
    assert "talon:budget=16" in ran.out
    assert "MAT" in ran.out
    assert ran.out.endswith(f"{tmp_path / 'out'}\n")
    assert "left out" not in ran.err
    part = shutil.copytree(SHIPPED, tmp_path / "part")
    next(iter(sorted((part / "texts").iterdir()))).unlink()
    ran = swept("talon:budget=16", trace=part, out=tmp_path / "other")
    assert f"left out, as the trace in '{part}' does not have them yet: 1 text" in ran.err
    assert len(lines(tmp_path / "other")) == 3


def test_a_line_is_of_the_code_of_the_drafter_of_its_own_trace(
    swept: Any, talon: Callable[..., Any], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method without a drafter is one of texts where the trace is, and has its code; other traces have none of it."""
    (tmp_path / "one.txt").write_text("hi-")
    texts = str(tmp_path / "texts")
    record = ("trace", "record", "--prompts", str(tmp_path / "one.txt"), "--model", model, "--drafter", "ngram")
    assert talon(*record, "--raw", "--max-new-tokens", "6", "--out", texts).status == 0
    asked: list[sweep.Unit] = []
    work = sweep.Work.__call__
    monkeypatch.setattr(sweep.Work, "__call__", lambda self, unit: asked.append(unit) or work(self, unit))
    assert swept("chain:length=2").status == 0
    asked.clear()
    for more in (("--trace", texts), ()):
        assert swept("chain:length=2", *more).status == 0
        assert {str(unit.folder) for unit in asked} == ({texts} if more else set())
        asked.clear()
    code_of = code.code_of
    monkeypatch.setattr(sweep, "code_of", lambda part: code_of(part) + ("changed" if part.name == "ngram" else ""))
    assert swept("chain:length=2", "--trace", texts).status == 0
    assert {str(unit.folder) for unit in asked} == {texts}


@pytest.mark.parametrize("begun", [False, True])
def test_what_a_killed_sweep_has_left_is_taken_away(swept: Any, tmp_path: Path, begun: bool) -> None:
    out = tmp_path / "out"
    if begun:
        assert swept("none").status == 0
    else:  # before the manifest was there
        out.mkdir()
    (out / "tmp123.unfinished").write_text("{")
    assert swept("none").status == 0
    assert len(lines(out)) == 4
    assert not [*out.glob("*.unfinished")]


@pytest.mark.parametrize("how", [["--jobs", "2"], ["--ray"]], ids=["processes", "ray"])
def test_a_killed_worker_loses_nothing_and_all_is_as_in_one_process(
    swept: Any, process: Any, tmp_path: Path, how: list[str]
) -> None:
    if how == ["--ray"]:
        pytest.importorskip("ray")
    assert swept(*METHODS, out=tmp_path / "alone").status == 0
    given = [str(tmp_path / "killed"), *METHODS, "--trace", str(SHIPPED), "--out", str(tmp_path / "out"), *how]
    status, out, err = process(SWEEP, *given)
    assert status == 0, err
    assert json.loads(out)["lines"] == 16
    assert (tmp_path / "killed").exists()
    assert lines(tmp_path / "out") == lines(tmp_path / "alone")


def test_it_makes_no_difference_how_many_texts_are_tried_together(
    swept: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = (*METHODS, "talon-cost")
    assert swept(*methods, out=tmp_path / "one").status == 0
    monkeypatch.setattr(sweep, "UNITS", 1)
    assert swept(*methods, out=tmp_path / "four").status == 0
    assert lines(tmp_path / "four") == lines(tmp_path / "one")


def test_what_is_there_is_not_worked_out_again(swept: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[sweep.Unit] = []
    work = sweep.Work.__call__
    monkeypatch.setattr(sweep.Work, "__call__", lambda self, unit: asked.append(unit) or work(self, unit))
    swept("chain:length=2")
    assert [unit.methods for unit in asked] == [("chain:length=2",)] * 4
    results = tmp_path / "out" / RESULTS
    *whole, last, _ = results.read_text().split("\n")
    results.write_text("\n".join([*whole, last[:30]]))  # as a killed command leaves it
    asked.clear()
    assert swept("chain:length={2,3}").status == 0
    assert sorted(len(unit.methods) for unit in asked) == [1, 1, 1, 2]
    assert len(lines(tmp_path / "out")) == 8
    asked.clear()
    found = swept("chain:length=3", "chain:length=2", "--json").answer
    assert not asked
    assert [row["method"] for row in found["rows"] if row["set"] is None] == ["chain:length=3", "chain:length=2"]


def test_lines_of_other_code_do_not_count(swept: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept("chain")
    monkeypatch.setattr(code, "digest", lambda where: "another")
    swept("chain")
    assert len(lines(tmp_path / "out")) == 8


@attrs.frozen(repr=False)
class Plain(TreePolicy):
    """What Python prints of it is where in the memory it is."""

    name = "plain"
    budget = 2

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(np.array([0]))


def test_a_method_is_known_again_by_its_options_and_not_by_what_python_prints() -> None:
    rule = built(load_registry(), "rule", "match")
    both = [Method("plain", Plain(), rule) for _ in range(2)]
    one, other = (sweep._code_of(method) for method in both)
    assert one == other


def test_code_in_a_package_without_an_init_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, codes = built(load_registry(), "rule", "match"), []
    monkeypatch.syspath_prepend(str(tmp_path))
    for text in ("budget = 2", "budget = 3"):
        file = tmp_path / "of_several" / "mine" / "__init__.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"class Mine:\n    name = 'mine'\n    {text}\n")
        mine = importlib.import_module("of_several.mine").Mine
        codes.append(sweep._code_of(Method("mine", mine(), rule)))
    assert codes[0] != codes[1]
    for name in ("of_several.mine", "of_several"):
        monkeypatch.delitem(sys.modules, name)


def test_ctrl_c_leaves_what_was_worked_out(swept: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = sweep.Work.__call__

    def until_the_third(self: sweep.Work, unit: sweep.Unit) -> Any:
        if unit.texts[0][1] == 2:
            raise KeyboardInterrupt
        return work(self, unit)

    with monkeypatch.context() as patch:
        patch.setattr(sweep.Work, "__call__", until_the_third)
        ran = swept("chain")
    assert ran.status == 130
    assert f"interrupted; the same command with --out '{tmp_path / 'out'}' goes on from here" in ran.err
    assert len(lines(tmp_path / "out")) == 2
    assert swept("chain").status == 0
    assert len(lines(tmp_path / "out")) == 4


def test_a_table_of_many_columns_has_no_space_around_them(swept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "chain", "--profile", "h100-llama-3.1-8b", "--other-machine"
    roomy = swept(*told).out
    monkeypatch.setattr(output, "WIDTH", 75)
    crammed = swept(*told).out
    assert "│ chain " in roomy
    assert "│chain " in crammed
    assert crammed.count("│") == roomy.count("│") == 9  # lines between columns, and at both ends


@pytest.mark.parametrize(("width", "tables"), [(120, 1), (80, 2)])
def test_sets_without_room_are_a_table_of_their_own(
    width: int, tables: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "WIDTH", width)
    totals = Totals(64, 32, 90, 120, 12, 0, 1.25, 0.01, 3)
    sets = "alpaca", "gsm8k", "humaneval", "mt_bench", "qa", "sum"
    found = [Summary("0", "talon:budget=12", name, 8, totals, 3.0, 2.5, 70.0, 60.0) for name in (None, *sets)]
    importlib.import_module("talon_core.cli.sweep")._show("folder: eagle3", found)
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*sets, "MAT", "best by laws", "timed"))
    rows = [line for line in shown.splitlines() if "talon:budget=12" in line]
    assert len(rows) == tables
    assert "".join(rows).count("2.000") == 1 + len(sets)
    assert max(map(len, shown.splitlines())) <= width


def test_with_a_profile_the_oracle_is_that_of_a_replay(swept: Any, talon: Any, tmp_path: Path) -> None:
    told = "--profile", "h100-llama-3.1-8b", "--other-machine", "--json"
    rows = {(row["method"], row["set"]): row["oracle"] for row in swept("chain", "ngram/chain", *told).answer["rows"]}
    replayed = talon("trace", "replay", str(SHIPPED), "chain", "ngram/chain", *told, "--jobs", "1").answer
    for one in replayed["methods"]:
        for name in ("tokens_per_second", "by_the_laws_tokens_per_second"):
            assert rows[one["method"], None][name] == pytest.approx(one["oracle"][name], rel=1e-12)
            assert rows[one["method"], "prompts"][name] == rows[one["method"], None][name]
    before, results = lines(tmp_path / "out"), tmp_path / "out" / RESULTS
    older = [json.loads(line) for line in before]
    for line in older:  # as a version has kept it that knew of no seconds of the oracle
        del line["oracle"]["seconds"], line["oracle"]["by_the_laws_seconds"]
    results.write_text("".join(json.dumps(line) + "\n" for line in older))
    again = {(row["method"], row["set"]): row["oracle"] for row in swept("chain", "ngram/chain", *told).answer["rows"]}
    assert again == rows
    assert len(lines(tmp_path / "out")) == 2 * len(before)


def test_with_a_profile_speed_is_predicted(swept: Any) -> None:
    ran = swept("chain", "none", "--profile", "h100-llama-3.1-8b", "--other-machine", "--json")
    assert ran.status == 0, ran.err
    assert all(row["predicted_tokens_per_second"] > 0 for row in ran.answer["rows"])
    assert {row["timed_texts"] for row in ran.answer["rows"]} == {row["texts"] for row in ran.answer["rows"]}
    untimed = swept("chain", "none", "--profile", "h100-llama-3.1-8b", "--other-machine", "--untimed", "--json")
    assert {(row["policy_seconds"], row["timed_texts"]) for row in untimed.answer["rows"]} == {(None, 0)}
    shown = swept("chain", "none", "--profile", "h100-llama-3.1-8b", "--other-machine").out
    assert all(name in shown for name in ("timed", "best by laws", " best "))
    assert all(
        name in " ".join(shown.split()) for name in ("tokens/s: predicted by the profile", "timed: texts on which")
    )
    shown = swept("chain", "none", "--profile", "h100-llama-3.1-8b", "--other-machine", "--untimed").out
    assert "best by laws" in shown
    assert "timed" not in shown
    assert all("predicted_seconds" not in row for row in swept("chain", "none", "--json").answer["rows"])
    assert "is of another" in swept("chain", "--profile", "h100-llama-3.1-8b").refusal


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["chain:length={2,3"], "method 'chain:length={2,3' has a brace without its other"),
        (["chain:length={2,,3}"], "has a brace with an empty value; several values are written {16,32}"),
        (["chain:length={2,2}"], "the method 'chain:length=2' is given twice"),
        (["talom"], "method 'talom': no tree policy 'talom'; did you mean 'talon'?"),
        (["sequoia"], "its policy draws from whole laws of the drafter, and the trace has none"),
        (["chain", "--jobs", "0"], "--jobs is 0; it must be at least 1"),
        (["chain", "--jobs", "2", "--ray"], "--jobs is 2 and --ray is given"),
        (["chain", "--trace", str(SHIPPED)], "are the same trace; give one"),
        (["chain", "--profile", "nowhere"], "no profile 'nowhere'"),
        (["chain", "--time-all"], "--time-all is given without --profile"),
        (["chain", "--other-machine"], "--other-machine is given without --profile; it says that a profile of another"),
        (["chain", "--untimed"], "--untimed is given without --profile; the time of policies is only taken with one"),
        (["chain", "--profile", "x", "--untimed", "--time-all"], "--time-all and --untimed are given; give one"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_is_written(
    swept: Any, tmp_path: Path, given: list[str], why: str
) -> None:
    assert why in swept(*given, "--json").refusal
    assert not (tmp_path / "out").exists()


def test_folders_of_something_else_are_refused(swept: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Dear")
    assert "is no folder of talon trace sweep: it has no manifest.json" in swept("chain", out=tmp_path / "mine").refusal
    assert "it must be 'talon sweep' and 1" in swept("chain", out=SHIPPED).refusal
    assert "there is no manifest.json in" in swept("chain", trace=tmp_path / "none").refusal
    swept("chain")
    results = tmp_path / "out" / RESULTS
    results.write_text(results.read_text().replace('"target_passes"', '"passes"', 1))
    assert "line 1 of" in (why := swept("chain").refusal)
    assert "is none of a sweep of this version" in why
    results.unlink()
    results.mkdir()
    assert "is no file; the lines of a sweep must be there" in swept("chain").refusal


def test_without_ray_the_command_says_what_to_install(swept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    refusal = swept("chain", "--ray").refusal
    assert refusal.startswith("--ray needs ray, which cannot be imported (")
    assert refusal.endswith("install it with: pip install 'talon-core[ray]'")


ORPHANS = """
import os, sys, time
from talon_core.trace.processes import in_processes

def work(thing):
    os.write(1, f"{os.getpid()}\\n".encode())  # in one piece, as others write there too
    time.sleep(60)

list(in_processes(2)(work, [1, 2]))
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_processes_end_with_the_one_that_waits_for_them(how: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        workers = [int(waiting.stdout.readline()) for _ in range(2)]
        waiting.send_signal(how)
        waiting.wait(timeout=20)
        try:
            waiting.communicate(timeout=20)  # ends when no process holds the pipe any more
        except subprocess.TimeoutExpired:
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            raise


def test_a_plugin_that_interrupts_its_process_leaves_no_traceback(process: Any, tmp_path: Path) -> None:
    script = SWEEP.replace("os._exit(9)", "raise KeyboardInterrupt")
    given = [str(tmp_path / "flag"), "chain", "--trace", str(SHIPPED), "--out", str(tmp_path / "out"), "--jobs", "2"]
    status, _, err = process(script, *given)
    assert status == 0
    assert "Traceback" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_names_the_file(swept: Any, tmp_path: Path) -> None:
    swept("chain:length=2")
    results = tmp_path / "out" / RESULTS
    kept = results.read_bytes()

    def full(file: Any, data: bytes) -> None:
        Path("/dev/full").write_bytes(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "_write", full)
        assert swept("chain:length=3").refusal == f"No space left on device: '{results}'"
    assert results.read_bytes() == kept
    assert swept("chain:length=3").status == 0


def test_what_a_trace_does_not_answer_is_told(swept: Any) -> None:
    ran = swept("talon:budget=200,top_k=60,mu=0.0001", "--json")
    assert ran.answer["rows"][0]["outside"] > 0
    assert "budget=200,top_k=60,mu=0.0001; record with more --nodes, --depth or --width" in ran.err


def test_who_asked_for_prices_that_nobody_gave_is_told(swept: Any) -> None:
    says = "what is assumed is followed by talon-cost; talon trace sweep --profile tells them"
    assert says in swept("talon-cost", "none", "--json").err
    assert "assumed" not in swept("chain", "none", "--json").err
    assert "assumed" not in swept("talon-cost", "--profile", "h100-llama-3.1-8b", "--other-machine", "--json").err
