"""Block verification: a chain is accepted or not as a whole, and accepts more than token by token."""

import attrs
import numpy as np

from talon_core.choices import Choices
from talon_core.laws import Laws
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.tree import FloatArray, TokenTree
from talon_strategies.rules.descent import ended, ends_text, excess, ratio, staying


@attrs.frozen
class Block(AcceptanceRule):
    """Accepts a prefix of one sampled chain (Block Verification, arXiv 2403.10444, algorithm 2).

    With the chain x_1, x_2, ..., the target's laws p_1, p_2, ... and the drafter's q_1, q_2, ... at its nodes:

        P_0 = 1,  P_i = min(1, P_(i-1) p_i(x_i) / q_i(x_i))
        g_i = (P_i p_(i+1) - q_(i+1))+,  s_i = sum of g_i
        h_i = s_i / (s_i + 1 - P_i),  at the chain's end h_i = P_i
        keep the longest prefix i for which a coin of h_i shows heads;  emit a draw from norm(g_i), at the end from p

    A weak token may be accepted because of the strong ones after it, so the laws of all nodes are needed: a logits
    processor sees prefixes that are rejected in the end.
    """

    name = "block"
    purpose = "drawn children"
    paper = "arXiv 2403.10444"
    exact_for = frozenset({"sampled-chain"})
    follows_argmax = True
    tests = "leaves-first"
    looks_ahead = True

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        path, kept = [0], [1.0]  # nodes, and P_i of each
        rest: list[FloatArray] = []  # g_i of each node but the last
        while kept[-1] > 0 and (drawn := tree.drawn.get(path[-1])) is not None and not ends_text(tree, laws, path[-1]):
            x, p = int(drawn.tokens[0]), laws.at(path[-1])
            rest.append(excess(p, drawn.law, kept[-1]))
            kept.append(ratio(kept[-1] * p[x], drawn.law[x]))
            child = tree.child(path[-1], x)
            assert child is not None
            path.append(child)
        if choices.coin(kept[-1]):
            if ends_text(tree, laws, path[-1]):
                return ended(tree, path)
            return Accepted(np.array(path, dtype=np.int64), laws.draw(path[-1], choices))
        for i in reversed(range(len(rest))):
            s = float(rest[i].sum())
            if choices.coin(staying(kept[i], s)):
                law = rest[i] / s if s > 0 else laws.at(path[i])  # nothing is left by rounding alone
                return Accepted(np.array(path[: i + 1], dtype=np.int64), choices.pick(law))
        raise AssertionError("the root is always accepted")
