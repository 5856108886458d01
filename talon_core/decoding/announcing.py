"""What the logger `talon_core` tells of a decoder that is made: its parts, and a warning of trees that take minutes."""

import logging
from typing import Any

from talon_core.plugins.chosen import Chosen
from talon_core.policy import TreePolicy

MANY_NODES = 1024
"""Budgets above this are warned of.

A round verifies its nodes in one pass, whose work is that of reading a prompt of as many tokens: 2.5 seconds of a
CPU's core with 840 nodes and 135 million parameters, against 0.1 with 13 nodes. On a GPU some two hundred nodes cost as
little as one, and from there on each costs its share, too. Either way a round brings two to four tokens, so that an
answer takes minutes.
"""

MANY_DRAFTED = 16 * MANY_NODES
"""Draft budgets above this are warned of: drafting a node costs a small part of what verifying it does."""

_log = logging.getLogger("talon_core")


def announce(
    target: Any, drafter: object, policy: TreePolicy | None, rule: object, without_graphs: str | None = None
) -> None:
    """Tell, one line each, what was chosen to decode with.

    Args:
        target: an `HFTarget`.
        drafter: a spec, None without a policy.
        policy: None without drafting.
        rule: the acceptance rule.
        without_graphs: why passes over trees are not recorded as CUDA graphs, None if they are; told on a GPU.
    """
    if policy is not None:
        _log.info("drafter '%s' drafts for tree policy '%s'", _name(drafter), _name(policy))
    _log.info("rule '%s' accepts", _name(rule))
    accelerator = f"accelerator '{_name(target.accelerator)}'" if target.accelerator is not None else "no accelerator"
    _log.info("attention backend '%s' and %s compute on %s", _name(target.attention), accelerator, target.device)
    if target.device.type == "cuda":
        why = f"not recorded as CUDA graphs: {without_graphs}" if without_graphs else "recorded as CUDA graphs"
        _log.info("passes over trees are %s", why)
    if policy is not None:
        _warn_of_size(policy, target.context_length)


def announce_schedule(chosen: Chosen) -> None:
    """Tell which schedule of a preset is taken, and why; a warning where it has one that is not taken."""
    if chosen.dropped:
        _log.warning("drafting and verifying take turns: %s", chosen.why)
    elif chosen.preset is not None:
        _log.info("schedule '%s': %s", chosen.schedule, chosen.why)


def _warn_of_size(policy: TreePolicy, context_length: int | None) -> None:
    if policy.budget > MANY_NODES:
        against = f", where the model's context holds {context_length} tokens" if context_length is not None else ""
        _log.warning(
            "tree policy '%s' may verify %d nodes in each round, which is the work of reading a prompt of %d tokens%s, "
            "and brings a few tokens: an answer may take minutes; most budgets that pay are below 100",
            _name(policy),
            policy.budget,
            policy.budget,
            against,
        )
    elif policy.draft_budget > MANY_DRAFTED:
        _log.warning(
            "tree policy '%s' may draft %d nodes in each round: an answer may take minutes; most draft budgets that "
            "pay are below 1000",
            _name(policy),
            policy.draft_budget,
        )


def _name(part: object) -> str:
    return str(getattr(part, "name", type(part).__name__))
