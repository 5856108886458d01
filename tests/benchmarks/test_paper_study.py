"""The paper's study goes through on a model of milliseconds; docs/study.md has what it says of a real one."""

import importlib
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from talon_core import Drafter
from talon_core.candidates import Candidates, NoLaws
from talon_core.choices import SeededChoices
from talon_core.drafter import Proposed
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.plugins.registry import load_registry
from talon_core.profiles.store import find_profile
from talon_core.trace import record
from talon_core.trace.folder import read_trace
from talon_core.trace.methods import parse_methods
from talon_core.trace.run import replayed
from talon_core.trace.superset import Superset
from talon_strategies import Talon
from talon_tests.tiny_models import of_words

SCRIPT = Path(__file__).with_name("paper_study.py")


@pytest.fixture(autouse=True)
def _beside(monkeypatch):
    """Python finds what lies beside a script that it runs."""
    monkeypatch.syspath_prepend(SCRIPT.parent)


def of_set(study, trace, method, name, nodes):
    """The share of a method on one set, by its tokens a pass in the table and the trees in hindsight of its texts."""
    rows = study["rows"][study["profiles"][0]["name"]][str(trace["settings"]["temperature"])]
    (own,) = (row["mean_accepted_tokens"] for row in rows if (row["method"], row["set"]) == (method, name))
    along = [text.along for text in trace if text.set == name]
    most = sum(map(len, along)) / sum(one.in_hindsight(nodes) for one in along) - 1
    return (own - 1) / most if most else None


def check_shares(study, folder, profile):
    """Every policy that does not draw is told a share, once, which is that of `talon trace replay`."""
    registry, trace = load_registry(), read_trace(folder)
    fixed = {name for name, one in registry.entries["tree policy"].items() if one.cls.children == "deterministic"}
    rows = {row["method"]: row for row in study["shares"][str(trace["settings"]["temperature"])]}
    assert {name for name in rows if ":" not in name} == fixed
    assert {name.partition(":")[0] for name in rows} == fixed
    assert {"eagle2:budget=16", "talon:budget=16"} < {*rows}
    methods = parse_methods([*rows], trace, registry)
    for one in replayed(trace, methods, jobs=1, costs=find_profile(profile), timed=False).tried:
        name, totals, most = one.method.name, one.totals, one.oracle.in_hindsight - 1
        row = rows[name]
        assert row["share"] == ((totals.mean_accepted_tokens - 1) / most if most else None)
        assert (row["mat"], row["largest"]) == (totals.mean_accepted_tokens, totals.largest_tree)
        assert (row["nodes"], row["outside"]) == (totals.nodes_verified / totals.target_passes, totals.outside)
        assert row["sets"] == {each: of_set(study, trace, name, each, row["largest"]) for each in row["sets"]}
    told = [row["share"] or 0.0 for row in rows.values()]
    assert told == sorted(told, reverse=True)
    return rows


@pytest.mark.slow
def test_the_script_goes_from_prompts_to_tables_and_pictures(tmp_path, monkeypatch):
    model, tokenizer = of_words()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "sets").mkdir()
    for name, turns in (("one", ["t5 t6 t7", "t8 t9"]), ("two", ["t3 t3", "t4 t4"])):
        lines = [json.dumps({"turns": [turn]}) for turn in turns]
        (tmp_path / "sets" / f"{name}.jsonl").write_text("\n".join(lines))
    where = ["--prompts", str(tmp_path / "sets"), "--model", str(tmp_path / "model"), "--out", str(tmp_path / "out")]
    sizes = ["--drafter", "draft-model:skip=2", "--limit", "1", "--max-new-tokens", "6"]
    profiles = [part for gpu in ("h200", "a100") for part in ("--profile", f"{gpu}-llama-3.1-8b")]
    given = [str(SCRIPT), *where, *sizes, *profiles, "--figures", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(ValueError, match="is of another machine, model or drafter"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    monkeypatch.setattr(sys, "argv", [*given, "--other-machine"])
    runpy.run_path(str(SCRIPT), run_name="__main__")

    study = json.loads((tmp_path / "out" / "study.json").read_text())
    assert set(study["rows"]) == {"h200-llama-3.1-8b", "a100-llama-3.1-8b"}
    of_each = [{row["method"] for row in study["rows"][name]["0.0"]} for name in study["rows"]]
    assert "talon-cost" in of_each[0] - of_each[1]  # what it drafts depends on the profile
    for temperature in ("0", "1"):
        rows = check_shares(study, tmp_path / "out" / f"trace-{temperature}", "h200-llama-3.1-8b")
        assert all({*row["sets"]} == {"one", "two"} for row in rows.values())
    (plain,) = [
        row for row in study["rows"]["h200-llama-3.1-8b"]["0.0"] if (row["method"], row["set"]) == ("none", None)
    ]
    assert (plain["texts"], plain["mean_accepted_tokens"]) == (2, 1.0)
    tables = (tmp_path / "out" / "study.md").read_text()
    assert tables.count("### Temperature") == 2
    assert "`h200-llama-3.1-8b`" in tables
    assert b"<svg" in (tmp_path / "study.svg").read_bytes()

    monkeypatch.setattr(record.Recorder, "text", None)  # nothing is recorded a second time
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_a_profile_that_is_not_there_is_refused_before_anything_is_recorded(tmp_path, monkeypatch):
    given = ["--prompts", str(tmp_path), "--out", str(tmp_path / "out"), "--profile", "h200-llama-3.1-8b"]
    monkeypatch.setattr(record, "Recorder", lambda *_: pytest.fail("nothing is to be recorded"))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *given, "--profile", "nowhere"])
    with pytest.raises(LookupError, match="no profile 'nowhere'"):
        runpy.run_path(str(SCRIPT), run_name="__main__")


def test_a_policy_that_cannot_be_made_is_refused_before_anything_is_recorded(tmp_path, monkeypatch):
    """As one of a plugin that has an option without a default."""
    monkeypatch.setattr(record, "Recorder", lambda *_: pytest.fail("nothing is to be recorded"))
    monkeypatch.setattr(importlib.import_module("leaderboard"), "policies_of", lambda *_, **__: ["talon:budget=0"])
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--prompts", str(tmp_path), "--out", str(tmp_path / "out")])
    with pytest.raises(ValueError, match="budget"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert not (tmp_path / "out").exists()


class Unsure(Drafter):
    """Has a law for each path, and hardly prefers a token; notes how many candidates it is asked for after each."""

    def __init__(self):
        self.asked = {}

    def open(self, slot, prompt, room):
        pass

    def propose(self, frontiers):
        (frontier,) = frontiers
        tree, width = frontier.tree, frontier.width
        tokens, logp = (np.empty((len(frontier.nodes), width), kind) for kind in (np.int64, np.float64))
        for row, node in enumerate(frontier.nodes.tolist()):
            path = tuple(tree.tokens[tree.path(node)].tolist())
            self.asked[path] = width
            random = np.random.default_rng(path)
            law = np.exp(random.normal(scale=random.uniform(1.0, 3.0), size=200))
            tokens[row] = np.argsort(-law)[:width]
            logp[row] = np.log(law[tokens[row]] / law.sum())
        path_logp = tree.path_logp[frontier.nodes][:, None] + logp
        return Proposed([Candidates(frontier.nodes, tokens, logp, path_logp, NoLaws())], 1)

    def commit(self, committed):
        pass

    def close(self, slot):
        pass


def asked(policy, root):
    drafter = Unsure()
    draft_tree(policy, drafter, root, DraftLimits(200, 6), SeededChoices(0))
    return drafter.asked


def test_what_is_recorded_holds_what_trees_of_all_sizes_ask_an_unsure_drafter():
    study = runpy.run_path(str(SCRIPT))
    sizes = study["SUPERSET"]
    superset = Superset(sizes["width"], sizes["depth"], sizes["nodes"])
    for root in range(4):
        held = asked(superset, root)
        for nodes in study["BUDGETS"]:
            assert all(held.get(path, 0) >= width for path, width in asked(Talon(budget=nodes), root).items())
