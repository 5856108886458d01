"""Checks that a plugin's author runs on what he wrote, and Hypothesis strategies to write more of them.

Needs the extra `talon-core[testing]`; nothing in `talon_core` imports it.
"""

from talon_core.testing.contract import check_tree_policy
from talon_core.testing.strategies import draft_limits, draft_trees, laws, table_drafters, untied_drafters
from talon_core.testing.table import TableDrafter

__all__ = [
    "TableDrafter",
    "check_tree_policy",
    "draft_limits",
    "draft_trees",
    "laws",
    "table_drafters",
    "untied_drafters",
]
