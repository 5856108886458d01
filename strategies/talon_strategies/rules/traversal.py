"""Traversal verification: a tree is tested from its leaves to its root."""

import attrs
import numpy as np

from talon_core.choices import Choices
from talon_core.drawn import without
from talon_core.laws import Laws
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.tree import FloatArray, TokenTree
from talon_strategies.rules.descent import ended, ends_text, excess, ratio, staying

UNASKED: FloatArray = np.empty(0)


@attrs.frozen
class Traversal(AcceptanceRule):
    """Tests leaves first, in a tree whose children were drawn without replacement (arXiv 2505.12398).

    A node is visited with the probability P of accepting something in its sub-tree, the target's law p there and the
    law q of its children. The children come in the order of their draws:

        visit(node, P):
            for t in children:
                visit(t, min(1, P p(t) / q(t)));  done if that accepted
                g = (P p - q)+,  s = sum of g
                P = s / (s + 1 - P),  p = g / s;  q(t) = 0,  q = norm(q)
            with probability P:  accept the node, emit a draw from p

    The root is visited with P = 1 and accepts always. For a chain it is `block`. The paper's text was not at hand:
    the rule is rebuilt from its idea and was found exact by enumeration. As `block`, it needs the laws of nodes that it
    rejects in the end.
    """

    name = "traversal"
    purpose = "drawn children"
    paper = "arXiv 2505.12398"
    exact_for = frozenset({"without-replacement", "sampled-chain"})
    follows_argmax = True
    tests = "leaves-first"
    looks_ahead = True

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        visits = [_visit(tree, laws, 0, 1.0)]  # from the root down to the node that is visited
        while True:
            visit = visits[-1]
            if visit.prob > 0 and visit.waiting:
                child = tree.child(visit.node, visit.waiting[0])
                assert child is not None
                visits.append(_visit(tree, laws, child, visit.reaching(visit.waiting[0])))
            elif choices.coin(visit.prob):
                break
            else:
                visits.pop()
                visits[-1].reject()
        path = [one.node for one in visits]
        if visit.finished:
            return ended(tree, path)
        return Accepted(
            np.array(path, dtype=np.int64), choices.pick(visit.p) if len(visit.p) else laws.draw(visit.node, choices)
        )


@attrs.define
class _Visit:
    """A node that is tested, less what its rejected children took.

    Attributes:
        node: its index.
        prob: P.
        finished: whether the text ends with it.
        waiting: drawn children that are not rejected yet, the next one first.
        p: the target's law, shape `(vocab,)`; empty for a leaf, whose law is asked for when the leaf is accepted.
        q: the law of the next child, shape `(vocab,)`; empty for a leaf.
    """

    node: int
    prob: float
    finished: bool
    waiting: list[int] = attrs.field(factory=list)
    p: FloatArray = UNASKED
    q: FloatArray = UNASKED

    def reaching(self, t: int) -> float:
        """The probability with which child t is visited."""
        return ratio(self.prob * self.p[t], self.q[t])

    def reject(self) -> None:
        """Nothing under the next child was accepted."""
        g = excess(self.p, self.q, self.prob)
        s = float(g.sum())
        self.prob = staying(self.prob, s)
        if s > 0:  # otherwise P is 0, or 1 and rounding alone has come here
            g /= s
            self.p = g
        self.q = without(self.q, self.waiting.pop(0))


def _visit(tree: TokenTree, laws: Laws, node: int, prob: float) -> _Visit:
    over = ends_text(tree, laws, node)
    drawn = tree.drawn.get(node)
    if over or prob <= 0 or drawn is None:
        return _Visit(node, prob, over)
    return _Visit(node, prob, over, drawn.tokens.tolist(), laws.at(node), drawn.law)
