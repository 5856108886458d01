import re

import pytest

import talon_strategies
from talon_core.plugins.registry import load_registry


def test_every_policy_and_rule_is_found_through_the_entry_point():
    registry = load_registry()
    for kind, classes in (
        ("tree policy", talon_strategies.talon_policies()),
        ("rule", talon_strategies.talon_rules()),
        ("schedule", talon_strategies.talon_schedules()),
    ):
        for cls in classes:
            found = registry.get(kind, cls.name)
            assert (found.cls, found.plugin) == (cls, "talon-core:talon-strategies")


def test_every_policy_rule_and_schedule_that_is_exported_is_registered():
    registered = {
        *talon_strategies.talon_policies(),
        *talon_strategies.talon_rules(),
        *talon_strategies.talon_schedules(),
    }
    assert {cls.__name__ for cls in registered} == set(talon_strategies.__all__)


PAPERS = [cls for cls in talon_strategies.talon_policies() if cls.paper]

WITHOUT_A_PLACE = {
    "heuristic": "the source is a library; the docstring names its method",
    "speckv": "what is known of it is of the authors' notebooks, data and code",
    "taps": "its abstract alone is known",
    "talon-gate-only": "an ablation, without a name or number that is known",
    "talon-topk-layers": "likewise",
}
"""Policies of whose source no section, algorithm, equation or theorem is known by its number."""


@pytest.mark.parametrize("cls", PAPERS, ids=lambda cls: cls.name)
def test_a_docstring_names_the_paper_and_the_place_in_it(cls):
    told = cls.__doc__
    assert cls.paper.split()[-1] in told
    place = re.search(r"(section|algorithm|equation|theorem)\s+[0-9]", told)
    assert bool(place) != (cls.name in WITHOUT_A_PLACE)


def test_what_has_no_place_is_a_policy_with_a_paper():
    assert WITHOUT_A_PLACE.keys() <= {cls.name for cls in PAPERS}
