"""The schedule `pearl`: draft on behind the draft that is verified."""

from collections.abc import Sequence

import attrs

from talon_core.basics.option_checks import whole_number
from talon_core.schedule import Outcome, Outlook, Schedule
from talon_core.tree import IntArray, TokenTree
from talon_strategies.schedules.fanout import best_path


@attrs.frozen
class Pearl(Schedule):
    """Drafts on behind the end of what is verified, and where that did not help, verifies the root alone meanwhile.

    PEARL's two modes. In *pre-verify* the target sees the last committed token alone, while the drafter goes on behind
    its own best guess of the next one. If the target says the same, what was drafted is verified, and meanwhile, in
    *post-verify*, the drafter goes on behind its end. If all of it is accepted and the target goes on as the drafter
    did, post-verify continues; anything else drops what was prepared, and pre-verify begins again.

    PEARL emits no token of the target's own where all was accepted: the first token of the continuation takes its
    place, and is tested in the next pass. Here the target's own token is emitted, and the continuation is used only if
    it begins with it. That takes no pass more: the law after the last token is known from the pass that has tested it.
    At temperature 0 and with the policy `chain` the passes are PEARL's own. Above, PEARL tests a token that its drafter
    has drawn by p/q, and here the target's own draw must be what the drafter went on from. With other policies trees
    are verified, and drafted behind the likeliest of their deepest nodes, which is ours.

    Attributes:
        guesses: of the next token behind the end, for each of which is drafted; PEARL has 1.
    """

    name = "pearl"
    purpose = "draft behind the draft"
    paper = "arXiv 2408.11850"
    drafts_on_miss = False
    guesses: int = attrs.field(default=1, validator=[whole_number, attrs.validators.ge(1)])

    @property
    def width(self) -> int:
        return self.guesses

    def nodes(self, tree: TokenTree) -> IntArray:
        return best_path(tree)

    def outcomes(self, outlook: Outlook) -> Sequence[Outcome]:
        end = int(best_path(outlook.tree)[-1])
        tokens, _ = outlook.after(end)
        return [Outcome(end, token) for token in tokens[: self.guesses].tolist()]
