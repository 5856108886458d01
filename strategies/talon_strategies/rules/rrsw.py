"""Recursive rejection sampling, for children drawn without replacement."""

import attrs

from talon_core.choices import Choices
from talon_core.drawn import without
from talon_core.laws import Laws
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.tree import TokenTree
from talon_strategies.rules.descent import reject_in_turn


@attrs.frozen
class RejectionWithoutReplacement(AcceptanceRule):
    """Tests children drawn without replacement, in the order of their draws (Sequoia, arXiv 2402.12374, section 3.2).

        r = p(. | node)
        for c in children, as drawn from q:
            with probability min(1, r(c) / q(c)):  go to c
            r = norm((r - q)+);  q(c) = 0;  q = norm(q)
        emit a draw from r

    What is left of q is what the next child was drawn from.
    """

    name = "rrsw"
    purpose = "drawn children"
    paper = "arXiv 2402.12374"
    exact_for = frozenset({"without-replacement", "sampled-chain"})
    follows_argmax = True
    tests = "in-turn"

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        return reject_in_turn(tree, laws, choices, without)
