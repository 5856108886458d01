"""Chains two tokens longer after full acceptance, and one shorter after any other round."""

import attrs
from attrs.validators import ge

from talon_core.basics.option_checks import whole_number
from talon_core.searching import searched
from talon_strategies.stopping import PlannedChain


@attrs.define
class NextLength:
    """What is learnt of one text.

    Attributes:
        tokens: that the next chain may have.
    """

    tokens: int


@attrs.frozen
class Heuristic(PlannedChain):
    """Drafts two tokens more after full acceptance, else one fewer: the schedule "heuristic" of transformers.

    Read in `AssistedCandidateGenerator.update_candidate_strategy` of transformers 5.23; there a chain has 1 token or
    more, and no upper limit. The number begins anew with each text, as in their "heuristic_transient". They begin with
    `num_assistant_tokens`, now 20 with a schedule of constant length as the default; 5 was theirs as long as this
    schedule was. `length` is ours, and so is that a round without any drafted token changes nothing.

    Attributes:
        length: most drafted tokens, at least 1; one draft pass each.
        start: drafted tokens of the first round, at least 1; `length` if that is less.
    """

    name = "heuristic"
    paper = "transformers 5.23"
    length: int = attrs.field(default=20, validator=[whole_number, ge(1)], metadata=searched(4, 20))
    start: int = attrs.field(default=5, validator=[whole_number, ge(1)], metadata=searched(1, 8))
    learnt: NextLength = attrs.field(
        init=False,
        eq=False,
        repr=False,
        default=attrs.Factory(lambda self: NextLength(self.start), takes_self=True),
    )

    @property
    def planned(self) -> int:
        return min(self.learnt.tokens, self.length)

    def learn(self, drafted: int, accepted: int) -> None:
        moved = self.planned + 2 if accepted == drafted else self.planned - 1
        self.learnt.tokens = min(max(moved, 1), self.length)
