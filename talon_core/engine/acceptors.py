"""Who accepts the tokens of a sequence: the target by itself, on its device, or the rule, on the host."""

from functools import partial

import attrs
import numpy as np

from talon_core.choices import Choices, Foreseen
from talon_core.drawn import DrawnLater
from talon_core.engine.processors import prefix_free
from talon_core.errors import naming, written
from talon_core.request import Request
from talon_core.rule import AcceptanceRule, Accepted, DrawnOrder
from talon_core.sampling import Processor
from talon_core.target import DrawnTests, NodeDraws, Target, numbers_of_chain
from talon_core.tree import FloatArray, TokenTree

NOT_WALKED = "the target left the tree to the rule: texts beside it end with other tokens, or a processor failed"
"""Why a path is chosen on the host that the target was asked to choose."""


@attrs.frozen(eq=False)
class Offered:
    """Of which trees of a pass the target may choose the path by itself, as `Target.verify` is told.

    Attributes:
        greedy: by slot, the tokens that end the text.
        drawn: by slot, how other tokens are taken.
    """

    greedy: dict[int, frozenset[int]] = attrs.field(factory=dict)
    drawn: dict[int, NodeDraws] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class Acceptor:
    """Who accepts the tokens of one sequence: here the rule does, on the host.

    Attributes:
        any_tree: whether the text is the same whatever tree is verified.
        on_host: why the rule is asked where it is asked, as `Round.on_host`.
    """

    any_tree: bool
    on_host: str | None

    @property
    def foreseen(self) -> bool:
        """Whether the target may go through rounds by itself whose trees are known before."""
        return False

    @property
    def tests_chains(self) -> bool:
        """Likewise, where these trees are chains whose tokens are drawn."""
        return False

    def offer(self, slot: int, tree: TokenTree, offered: Offered) -> None:
        """Offer the target to choose the path through a tree by itself; it may still leave it to the rule.

        Args:
            slot: of the sequence.
            tree: what the target runs.
            offered: gets the slot; where the target is never asked it gets nothing.
        """

    def used(self, accepted: Accepted) -> None:
        """The target has chosen this by itself: the numbers that it has drawn with are used."""


@attrs.frozen(eq=False)
class MostLikely(Acceptor):
    """The target takes its most likely tokens.

    Attributes:
        ends: token ids that end the text.
    """

    ends: frozenset[int]

    @property
    def foreseen(self) -> bool:
        return True

    def offer(self, slot: int, tree: TokenTree, offered: Offered) -> None:
        offered.greedy[slot] = self.ends


@attrs.frozen(eq=False)
class MostLikelyWarped(Acceptor):
    """The target takes the tokens that are most likely by warped scores.

    Attributes:
        draws: how, at any node.
    """

    draws: NodeDraws

    def offer(self, slot: int, tree: TokenTree, offered: Offered) -> None:
        offered.drawn[slot] = self.draws


@attrs.frozen(eq=False)
class Draws(Acceptor):
    """The target draws tokens, so that the path is the one that the rule would choose.

    A node is drawn for with the number that the rule would use there: the first at the root, the second at each node of
    depth 1, and so on, as a path has one node of each depth. So the text of a seed does not depend on who draws, and a
    token and those before it on its path are drawn with different numbers.

    Attributes:
        warpers: as for `NodeDraws`.
        ends: likewise.
        choices: the rule's randomness; numbers are used when the target has taken tokens with them.
    """

    warpers: tuple[Processor, ...]
    ends: frozenset[int]
    choices: Foreseen

    @property
    def foreseen(self) -> bool:
        return True

    def offer(self, slot: int, tree: TokenTree, offered: Offered) -> None:
        numbers = told_numbers(self.choices, int(tree.depths.max()) + 1)
        ahead = partial(told_numbers, self.choices)
        offered.drawn[slot] = NodeDraws(self.warpers, self.ends, numbers[tree.depths], ahead=ahead)

    def used(self, accepted: Accepted) -> None:
        self.choices.used(len(accepted.path))


@attrs.frozen(eq=False)
class DrawsAndTests(Draws):
    """The target draws tokens, and tests the drawn children of chains whose passes it has run ahead.

    It draws with the numbers with which the rule would draw after fixed children, one after the other. Other trees with
    drawn children are left to the rule.
    """

    @property
    def tests_chains(self) -> bool:
        return True

    def offer(self, slot: int, tree: TokenTree, offered: Offered) -> None:
        if not tree.drawn:
            super().offer(slot, tree, offered)
        elif isinstance(tree.drawn, DrawnLater):  # a chain
            numbers = told_numbers(self.choices, numbers_of_chain(len(tree) - 1))
            offered.drawn[slot] = NodeDraws(self.warpers, self.ends, numbers, DrawnTests("in-turn", tree))

    def used(self, accepted: Accepted) -> None:
        self.choices.used(accepted.numbers or len(accepted.path))


@attrs.frozen(eq=False)
class ChildrenTested(Acceptor):
    """The target tests drawn children, so that the path is the one that the rule would choose.

    Attributes:
        order: as `AcceptanceRule.tests`.
        warpers: as for `NodeDraws`.
        ends: likewise.
        choices: the rule's randomness; numbers are used when the target has made tests and draws with them.
    """

    order: DrawnOrder
    warpers: tuple[Processor, ...]
    ends: frozenset[int]
    choices: Foreseen

    def offer(self, slot: int, tree: TokenTree, offered: Offered) -> None:
        tests = DrawnTests(self.order, tree)
        offered.drawn[slot] = NodeDraws(self.warpers, self.ends, told_numbers(self.choices, tests.most_numbers), tests)

    def used(self, accepted: Accepted) -> None:
        self.choices.used(accepted.numbers)


class Acceptors:
    """Who accepts, as far as rule and target decide it; what they say of themselves is asked here, and never again.

    Args:
        rule: the acceptance rule.
        target: whose text it is.
    """

    def __init__(self, rule: AcceptanceRule, target: Target) -> None:
        self._walks = rule.follows_argmax and target.can_walk
        self._can_draw, self._draws = target.can_draw, target.draws
        self._follows_warped = rule.follows_argmax
        self._follows_draws = rule.follows_argmax and rule.follows_target
        self._tests: DrawnOrder | None = rule.tests
        self._any_tree = rule.follows_target
        self._any_greedy_tree = rule.follows_argmax and not rule.lossy
        self._does_more = f"{naming('rule', rule)} does more than follow the target's tokens and test drawn ones"

    def of(self, request: Request, choices: Choices) -> Acceptor:
        """Who accepts the tokens of a sequence.

        Args:
            request: what is decoded.
            choices: the rule's randomness.
        """
        any_tree = self._any_tree or (self._any_greedy_tree and request.greedy)
        if request.greedy and self._walks:
            return MostLikely(any_tree, NOT_WALKED if self._can_draw else None, request.eos)
        drawing = request.sampling.do_sample
        if not self._can_draw:
            own = self._drawn_by_some(request, choices) if drawing else None
            return own if own is not None else Acceptor(any_tree, None)
        if not (self._follows_draws or self._tests if drawing else self._follows_warped):
            return Acceptor(any_tree, self._does_more)
        warpers = prefix_free(request.sampling.processors)
        if isinstance(warpers, str):
            return Acceptor(any_tree, f"logits processor '{warpers}' may look at more than the scores")
        if not drawing:
            return MostLikelyWarped(any_tree, NOT_WALKED, NodeDraws(warpers, request.eos, None))
        if not isinstance(choices, Foreseen):
            return Acceptor(any_tree, f"what {type(choices).__name__} will draw with is not known beforehand")
        if self._tests is not None:
            return ChildrenTested(any_tree, NOT_WALKED, self._tests, warpers, request.eos, choices)
        return Draws(any_tree, NOT_WALKED, warpers, request.eos, choices)

    def _drawn_by_some(self, request: Request, choices: Choices) -> Acceptor | None:
        """Who draws the tokens of a sequence where the target draws some; None for the rule."""
        tests = self._follows_warped and self._tests == "in-turn"
        if not (self._follows_draws or tests):
            return None
        warpers = prefix_free(request.sampling.processors)
        if isinstance(warpers, str) or not isinstance(choices, Foreseen) or not self._draws(warpers):
            return None
        if self._follows_draws:
            return Draws(self._any_tree, NOT_WALKED, warpers, request.eos, choices)
        return DrawsAndTests(self._any_tree, None, warpers, request.eos, choices)


def told_numbers(choices: Foreseen, count: int) -> FloatArray:
    """The numbers of the next draws.

    Raises:
        ValueError: if they are not what `Foreseen.ahead` is to tell.
    """
    told = np.array(choices.ahead(count))  # of its own, row by row: C reads it
    if told.shape != (count,) or told.dtype != np.float64 or not ((told >= 0) & (told < 1)).all():
        raise ValueError(
            f"{type(choices).__name__}.ahead({count}) told {written(told)}; "
            f"it must be {count} numbers in [0, 1), float64"
        )
    return told
