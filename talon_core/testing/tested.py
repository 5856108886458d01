"""Where drawn children lead that are tested as a device tests them."""

import numpy as np
import torch

from talon_core.choices import Foreseen
from talon_core.rule import Accepted, DrawnOrder
from talon_core.runtime.tested import TESTED
from talon_core.runtime.tested_trees import sent_trees
from talon_core.target import DrawnTests, NodeDraws
from talon_core.tree import FloatArray, TokenTree


def where_tests_lead(
    order: DrawnOrder, tree: TokenTree, laws: FloatArray, choices: Foreseen, ends: frozenset[int]
) -> Accepted:
    """Walk through a tree as a target does by itself for a rule that says how it tests (`AcceptanceRule.tests`).

    Args:
        order: what the rule says.
        tree: with what its children were drawn from.
        laws: the target's, after each node, shape `(nodes, vocab)`, float64.
        choices: the rule's randomness; no number is used.
        ends: token ids that end the text.

    Returns:
        The path, the token after it, and how many numbers it took.
    """
    tests = DrawnTests(order, tree)
    draws = NodeDraws((), ends, choices.ahead(tests.most_numbers), tests)
    trees = sent_trees({0: draws}, np.array([0, len(tree)]), torch.device("cpu"))
    taken = TESTED[order](trees, lambda places: torch.from_numpy(laws)[trees.rows[places]])
    tokens, within = taken.tokens.tolist(), taken.within.tolist()
    path = [0]
    while True:
        token = tokens[path[-1]]
        child = tree.child(path[-1], token)
        if child is None or token in ends or not within[child]:
            return Accepted(np.array(path), token, numbers=int(taken.numbers))
        path.append(child)
