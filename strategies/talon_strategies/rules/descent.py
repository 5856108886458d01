"""What the rules share: tests of drawn children, and what a rejection leaves of the laws."""

from collections.abc import Callable

import numpy as np

from talon_core.choices import Choices
from talon_core.laws import Laws
from talon_core.rule import Accepted, descend
from talon_core.tree import FloatArray, TokenTree


def unchanged(q: FloatArray, token: int) -> FloatArray:
    """The law of the next draw, where each is from q: q itself."""
    return q


def reject_in_turn(
    tree: TokenTree, laws: Laws, choices: Choices, after: Callable[[FloatArray, int], FloatArray] = unchanged
) -> Accepted:
    """Test the drawn children of a node in the order of their draws; draw from what is left if none is accepted.

    This is recursive rejection sampling: r is the target's law at first, and loses what each rejected child had.

        for c in children, as drawn from q:
            with probability min(1, r(c) / q(c)):  go to c
            r = norm((r - q)+);  q = after(q, c)
        draw from r

    Args:
        tree: the verified tree.
        laws: the target's laws.
        choices: the only randomness.
        after: the law of the next draw, from that of a draw, shape `(vocab,)`, and what came out of it.
    """

    def draw(node: int) -> int:
        drawn = tree.drawn.get(node)
        if drawn is None:
            return laws.draw(node, choices)
        r, q = laws.at(node), drawn.law
        for c in drawn.tokens.tolist():
            if choices.coin(ratio(float(r[c]), float(q[c]))):
                return int(c)
            r, q = leftover(r, q), after(q, c)
        return choices.pick(r)

    return descend(tree, laws, draw)


def ends_text(tree: TokenTree, laws: Laws, node: int) -> bool:
    """Whether the text ends with a node's token, so that nothing below it matters."""
    return node > 0 and laws.ends(int(tree.tokens[node]))


def ended(tree: TokenTree, path: list[int]) -> Accepted:
    """A path whose last node ends the text: its token is the last one that is emitted."""
    return Accepted(np.array(path[:-1], dtype=np.int64), int(tree.tokens[path[-1]]))


def leftover(p: FloatArray, q: FloatArray) -> FloatArray:
    """What p has more than q, as a law: (p - q)+ by its sum. Shapes `(vocab,)`.

    Where p and q agree to the last digit nothing is left. That is reached with the probability of a rounding error
    alone; p is returned, which is as good as any law.
    """
    rest = excess(p, q)
    total = rest.sum()
    if not total > 0:
        return p
    rest /= total
    return rest


def excess(p: FloatArray, q: FloatArray, prob: float = 1.0) -> FloatArray:
    """(prob p - q)+, in memory of its own, shapes `(vocab,)`; new memory of that size takes longer than the numbers."""
    rest: FloatArray = prob * p
    np.subtract(rest, q, out=rest)
    np.maximum(rest, 0.0, out=rest)
    return rest


def ratio(p: float, q: float) -> float:
    """min(1, p/q), for a token that was drawn, so that q > 0."""
    return 1.0 if p >= q else p / q  # a division could overflow where q is hardly more than 0


def staying(prob: float, left: float) -> float:
    """s / (s + 1 - P): with which probability a node is accepted after its child was rejected.

    Args:
        prob: P, the probability of accepting something in the node's sub-tree, before its child was tested.
        left: s, the sum of (P p - q)+.

    Returns:
        The probability; 1 where P is 1, also if rounding has left nothing of s.
    """
    return 1.0 if prob >= 1.0 else left / (left + (1.0 - prob))
