"""Checks that a plugin's author runs on what he wrote, and Hypothesis strategies to write more of them.

Needs the extra `talon-core[testing]`, so nothing else in `talon_core` imports it. Names are imported when first used,
and where the extra is missing, that is when it is said.
"""

from typing import TYPE_CHECKING

from talon_core.basics.lazy import import_on_use

if TYPE_CHECKING:
    from talon_core.certify.certificate import Certificate, CertificationError
    from talon_core.certify.trial import certify
    from talon_core.certify.worlds import World, worlds
    from talon_core.table import TableDrafter
    from talon_core.testing.benchmarks import TalonBenchmark
    from talon_core.testing.contract import check_tree_policy
    from talon_core.testing.drafter_contract import check_drafter
    from talon_core.testing.drawing import drawn_trees
    from talon_core.testing.halfway import candidates, hostile_candidates
    from talon_core.testing.hostile import HostileDrafter, hostile_drafters
    from talon_core.testing.odd_policies import CoinTosser, Erratic, odd_policies
    from talon_core.testing.rule_contract import check_rule
    from talon_core.testing.strategies import draft_limits, draft_trees, laws, table_drafters, untied_drafters
    from talon_core.testing.table import TableLaws

__all__ = [
    "Certificate",
    "CertificationError",
    "CoinTosser",
    "Erratic",
    "HostileDrafter",
    "TableDrafter",
    "TableLaws",
    "TalonBenchmark",
    "World",
    "candidates",
    "certify",
    "check_drafter",
    "check_rule",
    "check_tree_policy",
    "draft_limits",
    "draft_trees",
    "drawn_trees",
    "hostile_candidates",
    "hostile_drafters",
    "laws",
    "odd_policies",
    "table_drafters",
    "untied_drafters",
    "worlds",
]

import_on_use(
    __name__,
    {
        "talon_core.certify.certificate": ["Certificate", "CertificationError"],
        "talon_core.certify.trial": ["certify"],
        ".benchmarks": ["TalonBenchmark"],
        ".contract": ["check_tree_policy"],
        ".drafter_contract": ["check_drafter"],
        ".drawing": ["drawn_trees"],
        ".halfway": ["candidates", "hostile_candidates"],
        ".hostile": ["HostileDrafter", "hostile_drafters"],
        ".odd_policies": ["CoinTosser", "Erratic", "odd_policies"],
        ".rule_contract": ["check_rule"],
        ".strategies": ["draft_limits", "draft_trees", "laws", "table_drafters", "untied_drafters"],
        "talon_core.table": ["TableDrafter"],
        ".table": ["TableLaws"],
        "talon_core.certify.worlds": ["World", "worlds"],
    },
    extras={"hypothesis": "testing"},
)
