"""Letting an acceptance rule walk a verified tree, and checking what it says."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from talon_core.choices import Choices
from talon_core.errors import PluginError, blaming, is_whole, naming, written
from talon_core.laws import Laws
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.tree import TokenTree


def checked_walk(rule: AcceptanceRule, accepted: object, tree: TokenTree, vocab_size: int) -> Accepted:
    """What a rule's `walk` has returned, as a copy: the rule may keep its own.

    Args:
        rule: the acceptance rule.
        accepted: what it returned.
        tree: the verified tree.
        vocab_size: the target's.

    Raises:
        PluginError: if it is no path from the root and no token; the message names the rule.
    """

    def fail(what: str) -> PluginError:
        return PluginError(f"{naming('rule', rule)} {what}")

    if not isinstance(accepted, Accepted):
        raise fail(f"returned {type(accepted).__name__} from walk; it must return an Accepted")
    with blaming("rule", rule, "walk"):
        given, token = accepted.path, accepted.token
    path = np.asarray(given) if isinstance(given, np.ndarray) else None  # of no subclass
    if path is None or path.ndim != 1 or path.dtype.kind not in "iu":
        raise fail(f"accepted the path {written(given)}; a path is an array of node indices")
    path = path.astype(np.int64)
    nodes, parents = path.tolist(), tree.parents.tolist()
    below = all(0 < node < len(parents) and parents[node] == above for above, node in pairwise(nodes))
    if nodes[:1] != [0] or not below:
        raise fail(
            f"accepted the path {nodes}; a path begins with the root, 0, and each node is the parent of the next"
        )
    if not is_whole(token) or not 0 <= token < vocab_size:
        raise fail(f"emitted token {written(token)}; the vocabulary has ids 0 to {vocab_size - 1}")
    return Accepted(path, int(token))


def walked(
    rule: AcceptanceRule,
    tree: TokenTree,
    laws: Laws,
    choices: Choices,
    vocab_size: int,
    failures: Sequence[BaseException] = (),
) -> Accepted:
    """Let a rule walk a verified tree, and check what it says.

    Args:
        rule: the acceptance rule.
        tree: the verified tree.
        laws: the target's laws at its nodes.
        choices: the rule's randomness.
        vocab_size: the target's.
        failures: what was raised while laws were computed, none of it the rule's error; see `SequenceLaws`.

    Raises:
        PluginError: if the rule breaks its contract; the message names it.
    """
    try:
        with blaming("rule", rule, "walk"):
            accepted = rule.walk(tree.copied(), laws, choices)
    finally:
        if failures:  # also where the rule has gone on without the law that it could not get
            raise failures[-1] from None
    return checked_walk(rule, accepted, tree, vocab_size)
