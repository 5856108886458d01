"""What a schedule has answered, checked: whatever is wrong is an error that names the schedule."""

from typing import Any

import numpy as np

from talon_core.errors import PluginError, blaming, is_whole, naming, written
from talon_core.schedule import Outcome, Outlook, Schedule
from talon_core.tree import TokenTree

MOST_OUTCOMES = 1024
"""That are prepared for at a time: far beyond what pays."""


def checked_width(schedule: Schedule) -> int:
    """How many next tokens a schedule wants to know at each node.

    Raises:
        PluginError: if it is no such number.
    """
    with blaming("schedule", schedule, "width"):
        width: Any = schedule.width
    if not is_whole(width) or width < 1:
        raise PluginError(
            f"{naming('schedule', schedule)} has a width of {written(width)}; it must be a whole number of at least 1"
        )
    return int(width)


def checked_flag(schedule: Schedule, which: str) -> bool:
    """A schedule's `drafts_beyond` or `drafts_on_miss`.

    Raises:
        PluginError: if it is neither True nor False.
    """
    with blaming("schedule", schedule, which):
        flag: Any = getattr(schedule, which)
    if not isinstance(flag, bool):
        raise PluginError(f"{naming('schedule', schedule)} has a {which} of {written(flag)}; it must be True or False")
    return flag


def checked_nodes(schedule: Schedule, tree: TokenTree) -> list[int]:
    """The nodes whose next tokens a schedule wants to know.

    Raises:
        PluginError: if they are none of the tree's.
    """
    with blaming("schedule", schedule, "nodes"):
        given: Any = schedule.nodes(tree.copied())
        nodes = np.asarray(given)
    if nodes.ndim != 1 or (nodes.size and nodes.dtype.kind not in "iu"):
        raise PluginError(
            f"{naming('schedule', schedule)} returned {written(given)} from nodes; it must be a row of whole numbers"
        )
    wrong = [node for node in nodes.tolist() if not 0 <= node < len(tree)]
    if wrong:
        raise PluginError(
            f"{naming('schedule', schedule)} wants to know of node {wrong[0]}; the tree has nodes 0 to {len(tree) - 1}"
        )
    return [int(node) for node in nodes.tolist()]


def checked_outcomes(schedule: Schedule, outlook: Outlook, vocab_size: int) -> list[tuple[int, int]]:
    """The outcomes to prepare for, as nodes and tokens.

    Raises:
        PluginError: if something among them is none.
    """
    with blaming("schedule", schedule, "outcomes"):
        given = [*schedule.outcomes(outlook)][:MOST_OUTCOMES]
    found = []
    for outcome in given:
        if not isinstance(outcome, Outcome) or not is_whole(outcome.node) or not is_whole(outcome.token):
            raise PluginError(
                f"{naming('schedule', schedule)} returned {written(outcome)} among its outcomes; they must be "
                "Outcomes, of a node and a token"
            )
        if not 0 <= outcome.node < len(outlook.tree) or not 0 <= outcome.token < vocab_size:
            raise PluginError(
                f"{naming('schedule', schedule)} returned {written(outcome)}; the tree has nodes 0 to "
                f"{len(outlook.tree) - 1}, and the vocabulary tokens 0 to {vocab_size - 1}"
            )
        found.append((int(outcome.node), int(outcome.token)))
    return found
