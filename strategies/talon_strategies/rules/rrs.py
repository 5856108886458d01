"""Recursive rejection sampling, for children drawn independently."""

import attrs

from talon_core.choices import Choices
from talon_core.laws import Laws
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.tree import TokenTree
from talon_strategies.rules.descent import reject_in_turn


@attrs.frozen
class RecursiveRejection(AcceptanceRule):
    """Tests i.i.d. children in the order of their draws (SpecInfer, arXiv 2305.09781, section 4.3).

        r = p(. | node)
        for c in children, as drawn from q:
            with probability min(1, r(c) / q(c)):  go to c
            r = norm((r - q)+)
        emit a draw from r

    A token that was drawn twice is tested twice.
    """

    name = "rrs"
    purpose = "drawn children"
    paper = "arXiv 2305.09781"
    exact_for = frozenset({"iid", "sampled-chain"})
    follows_argmax = True
    tests = "in-turn"

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        return reject_in_turn(tree, laws, choices)
