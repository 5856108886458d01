"""Policies and rules that look right, run, and are wrong, for tests of whatever has to find that out."""

import attrs

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drawn import Drawn
from talon_core.laws import Laws
from talon_core.policy import Growth, TreePolicy
from talon_core.rule import AcceptanceRule, Accepted, descend
from talon_core.tree import TokenTree


@attrs.frozen
class KeepsTheLikelier(TreePolicy):
    """The trap of drawn trees: draws two children, keeps the one that the drafter likes more, and says it was drawn.

    What it keeps does not follow the law that it writes down: a likely token has had two draws to come out.
    """

    name = "keeps-the-likelier"
    children = "without-replacement"
    default_rule = "rrsw"
    budget: int = 3

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        two = candidates.draw(choices, 0, 2)
        likelier = int(two.tokens[two.law[two.tokens].argmax()])
        return Growth(candidates.best(0), drawn={0: Drawn([likelier], two.law)})


@attrs.frozen
class BonusOffByOne(AcceptanceRule):
    """Draws the token after a leaf from the law of the leaf's parent."""

    name = "bonus-off-by-one"
    exact_for = frozenset({"any"})

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        def draw(node: int) -> int:
            leaf = node > 0 and node not in tree.parents
            return laws.draw(int(tree.parents[node]) if leaf else node, choices)

        return descend(tree, laws, draw)


@attrs.frozen
class NoLeftover(AcceptanceRule):
    """Tests a drawn child rightly, and after rejecting it draws as if nothing had been tested."""

    name = "no-leftover"
    exact_for = frozenset({"sampled-chain", "hybrid"})

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        def draw(node: int) -> int:
            drawn = tree.drawn.get(node)
            if drawn is not None:
                token = int(drawn.tokens[0])
                p, q = float(laws.at(node)[token]), float(drawn.law[token])
                if choices.coin(1.0 if p >= q else p / q):
                    return token
            return laws.draw(node, choices)

        return descend(tree, laws, draw)
