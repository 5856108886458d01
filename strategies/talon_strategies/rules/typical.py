"""Medusa's typical acceptance, which changes the output's law."""

import attrs
import numpy as np
from attrs.validators import gt, lt

from talon_core.basics.option_checks import number
from talon_core.choices import Choices
from talon_core.laws import Laws
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.tree import FloatArray, TokenTree
from talon_strategies.rules.descent import ended, ends_text


@attrs.frozen
class Typical(AcceptanceRule):
    """LOSSY. Accepts every token that the target finds typical (Medusa, arXiv 2401.10774, section 2.3.1).

    A child is typical if its probability under the target, at the temperature of the request, is above a threshold
    that falls with the entropy H of the target's law:

        p(c) > min(epsilon, delta exp(-H(p)))

    The longest path of typical tokens is kept, the likelier one of two that are as long, and the token after it is
    drawn from the target. The output's law is not the target's: unlikely tokens come too seldom, and what the drafter
    likes comes too often. At temperature 0 it accepts what `match` does.

    Attributes:
        epsilon: the highest threshold, above 0 and below 1.
        delta: what the threshold would be where the target is sure (H = 0), above 0 and below 1.
    """

    name = "typical"
    purpose = "another law than the target's"
    paper = "arXiv 2401.10774"
    exact_for = frozenset()
    lossy = True
    follows_argmax = True
    looks_ahead = True
    epsilon: float = attrs.field(default=0.09, validator=[number, gt(0), lt(1)])
    delta: float = attrs.field(default=0.3, validator=[number, gt(0), lt(1)])

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        best: tuple[int, float, list[int]] = (1, 0.0, [0])  # nodes, the path's log-probability, the path
        waiting: list[tuple[int, float, list[int]]] = [best]
        while waiting:
            depth, logp, path = waiting.pop()
            best = max(best, (depth, logp, path))
            if ends_text(tree, laws, path[-1]):
                continue
            children = np.flatnonzero(tree.parents == path[-1])
            if len(children):
                p = laws.at(path[-1])
                threshold = min(self.epsilon, self.delta * np.exp(-_entropy(p)))
                for child in children.tolist():
                    prob = p[tree.tokens[child]]
                    if prob > threshold:
                        waiting.append((depth + 1, logp + float(np.log(prob)), [*path, child]))
        path = best[2]
        if ends_text(tree, laws, path[-1]):
            return ended(tree, path)
        return Accepted(np.array(path, dtype=np.int64), laws.draw(path[-1], choices))


def _entropy(p: FloatArray) -> float:
    some = p[p > 0]
    return float(-(some * np.log(some)).sum())
