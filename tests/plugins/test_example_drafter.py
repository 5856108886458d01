"""The manual's example drafter, installed as a user would install it: a trained head of which TALON knows nothing."""

import ast
import re

import pytest

from talon_tests.installed import DOCS, copied, environment_with

PROMPT = "Explain how a bridge carries its load."
SOURCES = DOCS / "example-drafter" / "src" / "talon_last_state"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return copied("example-drafter", tmp_path_factory)


@pytest.fixture(scope="module")
def environment(tmp_path_factory, folder, forked_python):
    return environment_with(folder, tmp_path_factory, forked_python)


def test_it_is_listed_with_its_distribution_and_without_loading_torch(environment):
    listed = environment.json("list", "drafters")
    (own,) = [drafter for drafter in listed["drafters"] if drafter["name"] == "last-state"]
    assert own["plugin"] == "talon-last-state:talon-last-state"
    assert [option["name"] for option in own["options"]] == ["path"]
    assert not listed["failures"]
    loaded = environment.python("-c", "import sys, talon_last_state; print(*sys.modules)").stdout.split()
    assert "talon_last_state" in loaded
    assert "torch" not in loaded


def test_it_generates_by_name_what_the_model_alone_generates_in_fewer_passes(environment):
    def generated(*options):
        return environment.generated(PROMPT, "--model", "smollm2-135m", "--max-new-tokens", "24", *options)

    drafted = generated("--drafter", "last-state", "--policy", "talon:budget=12")
    assert drafted["token_ids"] == generated("--policy", "none")["token_ids"]
    assert len(drafted["token_ids"]) / drafted["stats"]["target_passes"] > 1.3


def test_its_own_tests_pass_where_it_is_installed(environment, folder):
    done = environment.own_tests(folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_running_side_needs_the_kit_and_the_contracts_alone():
    code = "\n".join((SOURCES / name).read_text() for name in ("__init__.py", "drafter.py", "network.py"))
    modules = {str(node.module) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module.startswith(("talon_", "transformers"))} == {
        *("talon_core", "talon_core.runtime", "talon_last_state.drafter", "talon_last_state.network"),
    }


@pytest.mark.parametrize(
    ("file", "name"),
    [
        *(("network.py", name) for name in ("Head", "_normed", "_turned")),
        *(("drafter.py", name) for name in ("Slot", "LastStateDrafter")),
        *(("__init__.py", name) for name in ("LastState", "talon_drafters")),
    ],
)
def test_the_manual_shows_the_code_as_it_is_installed(file, name):
    source = (SOURCES / file).read_text()
    (node,) = [one for one in ast.parse(source).body if getattr(one, "name", None) == name]
    page = (DOCS / "writing-a-drafter.md").read_text()
    assert str(ast.get_source_segment(source, node)) in page


def test_the_weights_are_small_and_its_prompts_are_not_those_that_it_is_measured_on():
    assert (SOURCES / "smollm2-135m.safetensors").stat().st_size < 2_000_000
    folder = DOCS / "example-drafter"
    known = (folder / "prompts.txt").read_text().splitlines()
    measured = re.findall(r'"turns": \["(.*)"\]', (folder / "held-out.jsonl").read_text())
    assert len(measured) == 8
    assert not {*known} & {*measured}
