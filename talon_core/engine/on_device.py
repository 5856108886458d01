"""Whose tokens a target can draw by itself, on its device, and why those of others are drawn on the host."""

import numpy as np

from talon_core.choices import Choices, Foreseen
from talon_core.engine.processors import prefix_free
from talon_core.errors import naming, written
from talon_core.request import Request
from talon_core.rule import AcceptanceRule
from talon_core.target import NodeDraws
from talon_core.tree import FloatArray, TokenTree

NOT_WALKED = "the target left the tree to the rule: texts beside it end with other tokens, or a processor failed"
"""Why a path is chosen on the host that the target was asked to choose."""


def node_draws(rule: AcceptanceRule, request: Request, choices: Choices, tree: TokenTree) -> NodeDraws | str:
    """How a target takes the tokens after the nodes of a tree, so that the path is the one that the rule would choose.

    A node is drawn for with the number that the rule would use there: the first at the root, the second at each node of
    depth 1, and so on, as a path has one node of each depth. So the text of a seed does not depend on who draws, and a
    token and those before it on its path are drawn with different numbers.

    Args:
        rule: the acceptance rule.
        request: of the text.
        choices: the rule's randomness, of which nothing is used.
        tree: what the target runs.

    Returns:
        How they are taken; or why the rule must be asked on the host, as a clause.
    """
    drawing = request.sampling.do_sample
    if not rule.follows_argmax or (drawing and not rule.follows_target):
        return f"{naming('rule', rule)} does not simply follow the target's tokens"
    warpers = prefix_free(request.sampling.processors)
    if isinstance(warpers, str):
        return f"logits processor '{warpers}' may look at more than the scores"
    if not drawing:
        return NodeDraws(warpers, request.eos, None)
    if not isinstance(choices, Foreseen):
        return f"what {type(choices).__name__} will draw with is not known beforehand"
    return NodeDraws(warpers, request.eos, _told(choices, int(tree.depths.max()) + 1)[tree.depths])


def _told(choices: Foreseen, count: int) -> FloatArray:
    """The numbers of the next draws.

    Raises:
        ValueError: if they are not what `Foreseen.ahead` is to tell.
    """
    told = np.asarray(choices.ahead(count))
    if told.shape != (count,) or told.dtype != np.float64 or not ((told >= 0) & (told < 1)).all():
        raise ValueError(
            f"{type(choices).__name__}.ahead({count}) told {written(told)}; "
            f"it must be {count} numbers in [0, 1), float64"
        )
    return told
