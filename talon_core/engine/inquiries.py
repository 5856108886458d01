"""What drafters ask the target beside their trees, checked, and what it answers."""

from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.drafter import Drafter
from talon_core.engine.checked_policy import MOST_NODES
from talon_core.errors import PluginError, blaming, is_whole, naming, written
from talon_core.inquiry import Inquirer, Inquiry
from talon_core.tree import IntArray, TokenTree


@attrs.frozen(eq=False)
class Asked:
    """A tree with what a drafter asks beside it.

    Attributes:
        tree: the tree that is verified, and behind its nodes those that were added.
        added: how many.
        nodes: after which nodes the target's most likely token is wanted, shape `(asked,)`, int64.
    """

    tree: TokenTree
    added: int
    nodes: IntArray

    def answers(self, logits: Tensor) -> IntArray:
        """What the target says.

        Args:
            logits: at all nodes of the tree, shape `(nodes, vocab)`.

        Returns:
            Its most likely tokens, shape `(asked,)`, int64.
        """
        places = torch.from_numpy(self.nodes).to(logits.device)
        answers: IntArray = logits.index_select(0, places).argmax(dim=-1).cpu().numpy()
        return answers


def most_added(drafter: Drafter, named: object) -> int:
    """Most nodes that a drafter adds to a tree; 0 for one that asks nothing.

    Args:
        drafter: it.
        named: whom errors name.

    Raises:
        PluginError: if what it says is no number of nodes.
    """
    if not isinstance(drafter, Inquirer):
        return 0
    with blaming("drafter", named, "most_added"):
        most: Any = drafter.most_added
    if not is_whole(most) or not 0 <= most <= MOST_NODES:
        raise PluginError(
            f"{naming('drafter', named)} has most_added = {written(most)}; it must be a whole number of nodes, at most "
            f"{MOST_NODES}"
        )
    return int(most)


def inquired(
    drafter: Inquirer, named: object, slot: int, tree: TokenTree, deepest: int, vocab_size: int
) -> Asked | None:
    """Let a drafter ask the target beside a tree, and check what it asks.

    Args:
        drafter: it.
        named: whom errors name.
        slot: of the sequence.
        tree: as it will be verified.
        deepest: depth of the deepest node that may be added.
        vocab_size: the target's.

    Returns:
        None where nothing is asked.

    Raises:
        PluginError: if the drafter fails, or asks what cannot be asked; the message names it.
    """

    def fail(what: str) -> PluginError:
        return PluginError(f"{naming('drafter', named)} {what}")

    most = most_added(drafter, named)
    with blaming("drafter", named, "inquire"):
        given: Any = drafter.inquire(slot, tree.copied(), deepest)
        if given is None:
            return None
        if not isinstance(given, Inquiry):
            raise fail(f"returned {written(given)} from inquire; it must return an Inquiry, or None")
        tokens, parents, nodes = (_whole_numbers(one) for one in (given.tokens, given.parents, given.nodes))
    if tokens is None or parents is None or nodes is None or len(tokens) != len(parents):
        raise fail(
            "returned an Inquiry with something else than three rows of whole numbers, as many parents as tokens"
        )
    if len(tokens) > most:
        raise fail(f"added {len(tokens)} nodes to a tree; its most_added is {most}")
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocab_size):
        wrong = tokens.min() if tokens.min() < 0 else tokens.max()
        raise fail(f"asked about token {wrong}; the vocabulary has ids 0 to {vocab_size - 1}")
    try:
        joined = tree.extend(tokens, parents, np.zeros(len(tokens)))
    except ValueError as error:
        raise fail(f"added nodes that make no tree: {error}") from None
    if len(nodes) and (nodes.min() < 0 or nodes.max() >= len(joined)):
        wrong = nodes.min() if nodes.min() < 0 else nodes.max()
        raise fail(f"asked about node {wrong}; there are nodes 0 to {len(joined) - 1}")
    if joined.depths[len(tree) :].max(initial=0) > deepest:
        raise fail(f"added a node of depth {joined.depths.max()}; the deepest that may be added has depth {deepest}")
    return Asked(joined, len(tokens), nodes)


def _whole_numbers(given: object) -> IntArray | None:
    """A copy of what was given; None if it is not whole numbers in a row."""
    try:
        array = np.asarray(given)
    except ValueError:
        return None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        return None
    return array.astype(np.int64)
