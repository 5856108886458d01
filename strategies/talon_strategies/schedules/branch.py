"""The schedule `branch`: prepare other ways on from the one place that is most uncertain."""

from collections.abc import Sequence

import attrs
from attrs.validators import ge

from talon_core.basics.option_checks import whole_number
from talon_core.schedule import Outcome, Outlook, Schedule
from talon_core.tree import IntArray, TokenTree
from talon_strategies.schedules.fanout import best_path, path_ends


@attrs.frozen
class Branch(Schedule):
    """Prepares for the likeliest other tokens at the most uncertain node of the likeliest path, and for its end.

    SpecBranch forks its draft where it is unsure of it, and keeps the branch that the verification leaves standing. Its
    release chooses among branches by the target's probabilities, which changes the law of the text; here the target's
    own draw decides, as everywhere. That makes it a special case of `cached`: the outcomes are those at one node, the
    most uncertain one, where the probability that the path ends there is greatest. One outcome, the likeliest token
    behind the end of the path, is for where all is accepted.

    Attributes:
        budget: outcomes that are prepared for, at least 2.
    """

    name = "branch"
    purpose = "prepare for likely outcomes"
    paper = "arXiv 2506.01979"
    budget: int = attrs.field(default=8, validator=[whole_number, ge(2)])

    @property
    def width(self) -> int:
        return self.budget

    def nodes(self, tree: TokenTree) -> IntArray:
        return best_path(tree)

    def outcomes(self, outlook: Outlook) -> Sequence[Outcome]:
        path = best_path(outlook.tree).tolist()
        ends = {node: outlook.after(node) for node in path}
        forks = [node for node in path if len(ends[node][0])]
        if not forks:
            return ()
        fork = max(forks, key=path_ends(outlook.tree).item)
        found = [Outcome(fork, token) for token in ends[fork][0][: self.budget].tolist()]
        last = path[-1]
        if fork != last and len(ends[last][0]):
            found = [found[0], Outcome(last, int(ends[last][0][0])), *found[1 : self.budget - 1]]
        return found
