"""The trap of drawn trees: a policy that is wrong and looks right, for tests of whatever has to find it out."""

import attrs

from talon_core.candidates import Candidates
from talon_core.drawn import Drawn
from talon_core.policy import Growth, TreePolicy
from talon_core.tree import TokenTree


@attrs.frozen
class KeepsTheLikelier(TreePolicy):
    """Draws two children, keeps the one that the drafter likes more, and says it was drawn.

    What it keeps does not follow the law that it writes down: a likely token has had two draws to come out.
    """

    name = "keeps-the-likelier"
    children = "without-replacement"
    suits = "rrsw"
    budget: int = 3

    def grow(self, tree: TokenTree, candidates: Candidates) -> Growth:
        two = candidates.draw(0, 2)
        likelier = int(two.tokens[two.law[two.tokens].argmax()])
        return Growth(candidates.best(0), drawn={0: Drawn([likelier], two.law)})
