"""Fixed children and one that is drawn, tested first."""

import attrs

from talon_core.choices import Choices
from talon_core.laws import Laws
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.tree import TokenTree
from talon_strategies.rules.descent import reject_in_turn


@attrs.frozen
class Hybrid(AcceptanceRule):
    """Tests the drawn child, then lets the target draw from what is left, which may hit a fixed child.

    The drawn child comes from q, the drafter's law without the fixed children. What the target has more than q is all
    that it has of the fixed children and some of the rest, so rejecting the drawn child loses none of the fixed ones.
    The idea of keeping top tokens beside one draw is from "Towards Optimal Multi-draft Speculative Decoding" (arXiv
    2502.18779); the order of the tests is derived in docs/losslessness.md. Without a drawn child it is `match`. One
    draw is one test, so the walk is that of `rrs`.

        y, the drawn child:  with probability min(1, p(y) / q(y)) go to y
        else draw from norm((p - q)+):  go to the fixed child that holds it, or emit it and stop
    """

    name = "hybrid"
    purpose = "drawn children"
    paper = "arXiv 2502.18779"
    exact_for = frozenset({"hybrid", "deterministic", "sampled", "sampled-chain"})
    follows_argmax = True
    tests = "in-turn"

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        return reject_in_turn(tree, laws, choices)
