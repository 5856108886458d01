"""The leaderboard's script: what it tries, and what it writes of what came out."""

import importlib.util
import sys
from pathlib import Path

import pytest

from talon_core.plugins.registry import load_registry

SCRIPT = Path(__file__).with_name("leaderboard.py")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("leaderboard", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def policies(methods):
    return {method.partition("/")[0].partition(":")[0] for method in methods}


def test_every_policy_is_tried_and_what_draws_with_every_rule_that_is_exact_for_its_trees(script):
    registry = load_registry()
    drawing = {name for name, one in registry.entries["tree policy"].items() if one.cls.children != "deterministic"}
    fixed = script.methods_of(registry, laws=False)
    assert policies(fixed) - {"none"} == set(registry.entries["tree policy"]) - drawing
    assert not any("/" in method for method in fixed)
    drawn = script.methods_of(registry, laws=True)
    assert policies(drawn) == drawing
    assert {"sequoia/rrsw", "sequoia/traversal", "talon-sampled/hybrid", "sampled-chain:length=2/block"} <= {*drawn}
    assert len({*fixed, *drawn}) == len(fixed) + len(drawn)


FIGURES = {
    "temperatures": {
        "0": {
            "compared": {
                "none": {"tokens_per_second": 20.0, "to_plain": None, "mean_accepted_tokens": 1.0},
                "eagle3/talon": {
                    "tokens_per_second": 25.0,
                    "to_plain": {"median": 1.26, "low": 1.2, "high": 1.31},
                    "mean_accepted_tokens": 2.5,
                },
            },
            "replayed": [
                {
                    "drafter": "eagle3",
                    "laws": False,
                    "method": "talon",
                    "mean_accepted_tokens": 2.5,
                    "target_passes": 10,
                    "draft_passes": 30,
                    "nodes_verified": 80,
                    "outside": 1,
                    "oracle": {"in_hindsight": 5.0},
                    "predicted_tokens_per_second": 24.4,
                }
            ],
        }
    }
}


def test_tables_go_into_a_page_between_its_two_lines_in_the_place_of_what_was_there(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Words.\n\n<!-- tables -->\nold\n<!-- end -->\n\nMore words.\n")
    for _ in range(2):
        script.write_page(page, script.tables(FIGURES))
        text = page.read_text()
        assert text.startswith("Words.\n\n<!-- tables -->\n")
        assert text.endswith("\n<!-- end -->\n\nMore words.\n")
        rows = [line for line in text.splitlines() if line.startswith("| `")]
        assert rows == [
            "| `eagle3/talon` | 25.0 | 1.26x | 1.20 to 1.31 | 2.50 |",
            "| `none` | 20.0 |  |  | 1.00 |",
            "| `eagle3` | `talon` | 2.50* | 50% | 3.0 | 8.0 | 24.4 |",
        ]
        assert "old" not in text


def test_a_page_without_a_place_for_them_is_left_alone(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Words.\n<!-- tables -->\n")
    with pytest.raises(SystemExit, match="no lines '<!-- tables -->' and '<!-- end -->'"):
        script.write_page(page, "new")
    assert page.read_text() == "Words.\n<!-- tables -->\n"
