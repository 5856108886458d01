"""The fixture `talon_benchmark`: what it measures, what it refuses, and what pytest-benchmark makes of it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import attrs
import pytest

from talon_core import Growth, PluginError, TreePolicy
from talon_core.plugins.registry import load_registry
from talon_core.testing.benchmarks import LAYERS, SHIPPED, layers_of, made_policy
from talon_core.trace.folder import read_trace
from talon_core.trace.methods import parse_method
from talon_core.trace.run import replayed
from talon_strategies import Chain

COMPARED = ["talon", "eagle2", "chain"]


@attrs.frozen
class Widest(TreePolicy):
    name = "widest"
    budget: int = 12

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(min(4, self.budget - len(tree))))


@attrs.frozen
class Needy(Widest):
    name = "needy"
    depth: int = attrs.field(kw_only=True)


@attrs.frozen
class InOrder(Widest):
    """Remembers the layers of its tree, and insists on their order."""

    name = "in-order"
    layers: list = attrs.field(init=False, eq=False, factory=list)

    def grow(self, tree, candidates, choices):
        layer = int(tree.depths.max())
        if not layer:
            self.layers.clear()
        self.layers.append(layer)
        assert self.layers == [*range(layer + 1)]
        return super().grow(tree, candidates, choices)


@attrs.frozen
class TooMany(Widest):
    name = "too-many"

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(self.budget + 1))

    def width(self, tree):
        return self.budget + 1


def test_the_shipped_trace_is_small_and_made_from_the_prompts_beside_it():
    files = [file for file in SHIPPED.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".json", ".jsonl", ".md", ".safetensors"}
    assert sum(file.stat().st_size for file in files) < 1_500_000
    trace = read_trace(SHIPPED)
    (prompts,) = trace["settings"]["sets"]
    assert hashlib.sha256((SHIPPED / "prompts.jsonl").read_bytes()).hexdigest() == prompts["sha256"]
    assert trace.texts() == trace.planned()
    assert [text.positions for text in trace] == [15, 15, 15, 15]


def test_the_command_that_made_the_trace_is_told():
    (command,) = [line for line in (SHIPPED / "README.md").read_text().splitlines() if line.startswith("talon ")]
    settings = read_trace(SHIPPED)["settings"]
    for name in ("max_new_tokens", "width", "depth", "nodes", "least"):
        assert f"--{name.replace('_', '-')} {settings[name]} " in command


@pytest.mark.parametrize("policy", COMPARED)
def test_the_shipped_trace_answers_all_that_is_asked_by_default(talon_benchmark, policy):
    totals = talon_benchmark.replay(policy)
    assert totals.outside == 0
    assert totals.mean_accepted_tokens > 2


@pytest.mark.parametrize("policy", ["chain:length=3", Chain, Chain(length=7)])
def test_a_replay_is_that_of_the_command_line(talon_benchmark, policy):
    totals = talon_benchmark.replay(policy)
    trace = read_trace(SHIPPED)
    spec = {"chain:length=3": "chain:length=3", Chain: "chain"}.get(policy, "chain:length=7")
    (one,) = replayed(trace, [parse_method(spec, trace, load_registry())], jobs=1).tried
    assert totals == one.totals
    assert talon_benchmark.benchmark.group == "replay, the shipped trace"
    assert talon_benchmark.benchmark.extra_info == {
        "policy": spec,
        "mean_accepted_tokens": totals.mean_accepted_tokens,
        "target_passes": totals.target_passes,
        "draft_passes": totals.draft_passes,
        "nodes_verified": totals.nodes_verified,
        "outside": 0,
    }


def test_a_replay_of_another_trace_is_a_group_of_its_own(talon_benchmark, tmp_path):
    own = shutil.copytree(SHIPPED, tmp_path / "mine")
    (own / "texts" / "000-00003.safetensors").unlink()
    assert talon_benchmark.replay("chain", trace=str(own)).new_tokens == 45
    assert talon_benchmark.benchmark.group == "replay, mine"


@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
def test_a_trace_whose_drafter_looks_things_up_in_other_files_now_is_not_replayed(talon_benchmark, tmp_path):
    own = shutil.copytree(SHIPPED, tmp_path / "mine")
    manifest = json.loads((own / "manifest.json").read_text())
    manifest["drafter"] |= {"spec": "ngram", "reads_texts": True}  # with another hash
    (own / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="the files of 'ngram' are not those that the trace was recorded with"):
        talon_benchmark.replay("chain", own)


@pytest.mark.benchmark(group="ours")
def test_a_test_may_name_its_group(talon_benchmark):
    talon_benchmark.grow(Widest)
    assert talon_benchmark.benchmark.group == "ours"


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("policy", sorted({*load_registry().names("tree policy")} - {"none"}))
def test_grow_is_timed_for_every_policy(talon_benchmark, policy, layer):
    assert isinstance(talon_benchmark.grow(policy, layer), Growth)
    assert talon_benchmark.benchmark.extra_info["layers"] == len(layers_of(made_policy(policy)))


def test_grow_is_asked_layer_by_layer_however_often_it_is_timed(talon_benchmark):
    grown = talon_benchmark.grow(InOrder)
    assert talon_benchmark.benchmark.extra_info == {"policy": "in-order", "layers": 3, "nodes": 9, "candidates": 12}
    assert len(grown.chosen) == 3


@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
@pytest.mark.parametrize("layer", LAYERS)
def test_a_policy_that_drafts_nothing_at_first_has_no_layer_to_time(talon_benchmark, layer):
    class Waits(Widest):
        name = "waits"

        def width(self, tree):
            return 0

    with pytest.raises(ValueError, match=r"tree policy 'waits' .*drafts nothing in its first round: there is no layer"):
        talon_benchmark.grow(Waits, layer)


def test_rounds_are_those_of_a_whole_text(talon_benchmark):
    result = talon_benchmark.rounds(Widest(budget=6))
    info = talon_benchmark.benchmark.extra_info
    assert len(result.token_ids) == 64
    assert info["policy"] == "widest:budget=6"
    assert info["target_passes"] == result.stats.rounds
    assert info["mean_accepted_tokens"] == 64 / result.stats.rounds > 1


def test_a_policy_that_changes_the_text_is_told(talon_benchmark, liar):
    @attrs.frozen
    class Lying(Widest):
        name = "lying"
        default_rule = "takes-all"

    with pytest.raises(AssertionError, match=r"tree policy 'lying' .* changed what comes out: \["):
        talon_benchmark.rounds(Lying)


@pytest.mark.parametrize("measure", ["grow", "rounds", "replay"])
@pytest.mark.parametrize(
    ("policy", "error", "said"),
    [
        (3, ValueError, "the tree policy is 3; it must be a spec"),
        (dict, ValueError, r"the tree policy is <class 'dict'>; it must be a spec"),
        (Needy, ValueError, r"tree policy 'needy' \(.*Needy\) cannot be made without options: .*depth"),
        ("talon:bugdet=3", ValueError, "tree policy 'talon' has no option 'bugdet'; did you mean 'budget'"),
        ("tallon", LookupError, "no tree policy 'tallon'"),
        (TooMany, PluginError, r"tree policy 'too-many' .* grew its tree to 14 nodes"),
    ],
)
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
def test_what_cannot_be_measured_is_a_sentence(talon_benchmark, measure, policy, error, said):
    with pytest.raises(error, match=said):
        getattr(talon_benchmark, measure)(policy)


@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
def test_so_is_a_layer_or_a_trace_that_there_is_not(talon_benchmark, tmp_path):
    with pytest.raises(ValueError, match="layer is 'first'; it must be one of last, widest"):
        talon_benchmark.grow(Widest, "first")
    with pytest.raises(ValueError, match=r"there is no manifest.json in '.*'; give a folder of talon trace record"):
        talon_benchmark.replay(Widest, tmp_path)
    with pytest.raises(ValueError, match=r"method 'sampled-chain': its policy draws .* record with --laws"):
        talon_benchmark.replay("sampled-chain")


TESTS = """
import pytest

@pytest.mark.parametrize("policy", ["talon:budget=8", "eagle2:budget=8"])
def test_its_speed(talon_benchmark, policy):
    talon_benchmark.replay(policy)

def test_other():
    assert True
"""
QUICK = ("--benchmark-max-time=0.01", "--benchmark-min-rounds=1")


@pytest.fixture
def pytest_in(forked_python, tmp_path):
    """Runs pytest in a folder with `TESTS`, or another module, and gives what it prints."""
    (tmp_path / "test_some.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}

    def run(*words, module="pytest"):
        done = subprocess.run(
            [forked_python, "-m", module, *words],
            cwd=tmp_path,
            env={**environment, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def run_tests(*words):
        return run("-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words)

    run_tests.other = run
    return run_tests


def test_what_is_stored_is_compared(pytest_in, tmp_path):
    for _ in range(2):
        said = pytest_in("--benchmark-only", "--benchmark-autosave", *QUICK)
        assert "2 passed, 1 skipped" in said
    assert said.count("test_its_speed[talon:budget=8]") == 2  # once with the times, once with the rest
    assert "mean accepted tokens" in said
    first, second = sorted(tmp_path.glob(".benchmarks/*/*.json"))
    stored = {one["param"]: one for one in json.loads(first.read_text())["benchmarks"]}
    assert set(stored) == {"talon:budget=8", "eagle2:budget=8"}
    talon = stored["talon:budget=8"]
    assert talon["group"] == "replay, the shipped trace"
    assert talon["extra_info"]["policy"] == "talon:budget=8"
    assert talon["extra_info"]["mean_accepted_tokens"] > 1
    assert talon["stats"]["median"] > 0

    compare = ("compare", "--columns=median", str(first), str(second))
    said = pytest_in.other(*compare, module="pytest_benchmark")
    assert "benchmark 'replay, the shipped trace': 4 tests" in said
    assert said.count("test_its_speed[eagle2:budget=8]") == 2
    said = pytest_in.other(*compare, "--group-by=param:policy", module="pytest_benchmark")
    assert said.count(": 2 tests") == 2


def test_without_benchmarks_each_measurement_is_made_once(pytest_in):
    said = pytest_in("--benchmark-disable")
    assert "3 passed" in said
    assert "mean accepted tokens" not in said
    assert "1 passed, 2 skipped" in pytest_in("--benchmark-skip")


def test_without_pytest_benchmark_the_fixture_says_what_to_install(pytest_in):
    said = pytest_in("-p", "no:benchmark")
    assert "1 passed" in said
    assert "2 errors" in said
    assert "fixture 'talon_benchmark' needs pytest-benchmark: pip install 'talon-core[testing]'" in said


def test_the_kit_without_hypothesis_measures_too(tmp_path):
    code = "import sys; sys.modules['hypothesis'] = None; import talon_core.testing.benchmarks"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
