"""What policies cost and what they bring. The aim is a `grow` under 60 microseconds near 60 nodes; it is not asserted.

`--talon-policy my-policy:depth=4` puts another policy beside the built-in ones.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from talon_core.choices import SeededChoices
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.policy import Growth
from talon_core.testing.benchmarks import VOCAB, likely_drafter, made_policy
from talon_strategies import Eagle2, StaticTree

BINARY_OF_59 = [tuple(map(int, f"{node:b}"[1:])) for node in range(2, 61)]
POLICIES = {
    "bastion": "bastion",
    "caddtree": "caddtree",
    "talon-cost": "talon-cost",
    "chain": "chain:length=59",
    "ddtree": "ddtree",
    "eagle2": "eagle2",
    "opt-tree": "opt-tree:delta=0.1",
    "static": StaticTree(shape=BINARY_OF_59),
    "talon": "talon",
    "talon-absolute": "talon-absolute:threshold=1e-3",
    "talon-gate-only": "talon-gate-only",
    "talon-local": "talon-local",
    "talon-topk-layers": "talon-topk-layers",
    "svip": "svip:h=9",
    "adaedl": "adaedl:length=40,threshold=0",
    "ddd": "ddd:threshold=0",
    "gammatune": "gammatune:length=40,start=40",
    "gammatune-plus": "gammatune-plus:length=40,start=40,tau=0",
    "specdec-plus-plus": "specdec-plus-plus:length=40,h=1",
    "heuristic": "heuristic:length=40,start=40",
    "sps": "sps:length=40,start=1",
    "bandit": "bandit:of=talon+chain[length=59]",
    "speckv": "speckv:gammas=40",
    "taps": "taps:of=talon",
}
COMPARED = ("eagle2", "talon")
"""For what takes longer."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The policies of every test that takes one: the built-in ones, and those of `--talon-policy`."""
    if "policy" in metafunc.fixturenames:
        names = COMPARED if metafunc.function is test_rounds else [*POLICIES]
        others = metafunc.config.getoption("--talon-policy")
        policies = [*(POLICIES[name] for name in names), *others]
        metafunc.parametrize("policy", policies, ids=[*names, *others])


@pytest.mark.parametrize("layer", ["widest", "last"])
def test_grow(talon_benchmark, policy, layer):
    assert isinstance(talon_benchmark.grow(policy, layer), Growth)


def test_rounds(talon_benchmark, policy):
    assert talon_benchmark.rounds(policy).stats.mean_accepted_tokens > 1


def test_replay(talon_benchmark, policy):
    if made_policy(policy).children != "deterministic":
        pytest.skip("it draws from whole laws, which the shipped trace does not hold")
    assert talon_benchmark.replay(policy).mean_accepted_tokens > 1


@pytest.fixture
def pytest_with(forked_python: str) -> Callable[..., tuple[int, str]]:
    """Runs one of these tests with options; the exit status and what was said."""

    def run(test: str, *options: str) -> tuple[int, str]:
        how = ("-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore:Module already imported")  # by the fork
        command = [forked_python, "-m", "pytest", "-q", *how, *options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        done = subprocess.run(
            [*command, f"{__file__}::{test}"],
            cwd=Path(__file__).parents[2],
            env={**environment, "COLUMNS": "300"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_policy_of_one_s_own_is_measured_beside_the_others(pytest_with):
    status, said = pytest_with("test_replay[chain:length=3]", "--talon-policy", "chain:length=3")
    assert (status, "1 passed" in said) == (0, True), said
    assert "benchmark 'replay, the shipped trace': 1 tests" in said  # and timed


def test_one_that_draws_is_not_replayed_on_a_trace_without_laws(pytest_with):
    status, said = pytest_with("test_replay[sampled-chain:length=3]", "--talon-policy", "sampled-chain:length=3", "-rs")
    assert (status, "1 skipped" in said, "it draws from whole laws" in said) == (0, True, True), said


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("talon:bugdet=3", "tree policy 'talon' has no option 'bugdet'; did you mean 'budget'"),
        ("tallon", "no tree policy 'tallon'; did you mean 'talon'"),
    ],
)
def test_a_policy_that_there_is_not_is_a_sentence(pytest_with, spec, why):
    status, said = pytest_with("test_replay", "--talon-policy", spec)
    (sentence,) = [line for line in said.splitlines() if line.strip()]
    assert status == pytest.ExitCode.USAGE_ERROR
    assert sentence.startswith(f"ERROR: --talon-policy {spec}: {why}")


def test_finish_of_eagle2(benchmark):
    limits = DraftLimits(VOCAB, max_depth=100)
    drafted = draft_tree(Eagle2(), likely_drafter(), 0, limits, SeededChoices(0)).drafted
    tree = benchmark.pedantic(Eagle2().finish, args=(drafted,), rounds=200, iterations=5, warmup_rounds=5)
    assert len(tree) == 60
    benchmark.extra_info.update(nodes=len(drafted))
