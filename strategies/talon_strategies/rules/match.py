"""Sample and match: the rule for trees of any kind."""

import attrs

from talon_core.choices import Choices
from talon_core.laws import Laws
from talon_core.rule import AcceptanceRule, Accepted, descend
from talon_core.tree import TokenTree


@attrs.frozen
class Match(AcceptanceRule):
    """Draws each token from the target's law and follows the tree for as long as it holds what was drawn.

    Every emitted token is the target's own draw at its true prefix, so the output has the target's law for any tree,
    however it was made, as long as the draws know nothing of it. At temperature 0 the walk accepts the longest path of
    argmax tokens. EAGLE-2's test of its children one after the other, with the drafter's probability taken as 1, has
    the same law and accepts as much.

        y ~ p(. | node);  go to the child that holds y, or emit y and stop
    """

    name = "match"
    purpose = "children of any kind"
    exact_for = frozenset({"any"})
    follows_argmax = True
    follows_target = True

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        return descend(tree, laws, lambda node: laws.draw(node, choices))
