"""The schedule `cached`: prepare for the likely outcomes of a verification."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs.validators import ge

from talon_core.basics.option_checks import whole_number, yes_or_no
from talon_core.drafter import DrafterSpec
from talon_core.schedule import Outcome, Outlook, Schedule
from talon_core.tree import IntArray, TokenTree
from talon_strategies.schedules.fanout import Fanout, Geometric, Likeliest

ALLOCATIONS: Mapping[str, type[Fanout]] = {cls.name: cls for cls in (Likeliest, Geometric)}


def _instant(given: object) -> Any:
    """The option `instant` as a drafter's options; what else it is is left for a validator to refuse."""
    if not isinstance(given, str):
        return given
    from talon_core.plugins.several import made_part

    return made_part("drafter", given, "instant", "a drafter", "ngram[min_match=2]")


def _is_source(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and not isinstance(value, DrafterSpec):
        raise ValueError(f"{field.name} is {value!r}; it must be a drafter's options, such as ngram, or None")


def _is_allocation(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if not isinstance(value, Fanout) and value not in ALLOCATIONS:
        raise ValueError(f"{field.name} is {value!r}; it must be one of {', '.join(ALLOCATIONS)}, or a Fanout")


@attrs.frozen
class Cached(Schedule):
    """Prepares for the likely ways in which a verification may end; what hits begins the next round at once.

    SSD (Saguaro): while `k` of the drafted tokens are accepted and the target says `t` after them, a continuation for
    that very `(k, t)` may be there already. Here an outcome is a node of the tree and a token after it. What is kept
    for it are the drafter's answers, out of which the tree policy makes a tree of any shape. On a miss a tree is
    drafted as always; with `hybrid` or `ngram` that takes no pass of a model where a look-up is sure. Or an instant
    source drafts it, a look-up as a rule, and the target waits for no pass of a model; where that knows nothing, the
    target verifies the root alone while the drafter catches up.

    Attributes:
        budget: outcomes that are prepared for, at least 1.
        beyond: ask the drafter where what was prepared ends, while the target waits; else what is there is verified.
        allocation: how they are chosen: "likeliest" by the drafter's probabilities, "geometric" as SSD does it; in
            Python also a `Fanout`.
        instant: what drafts after a miss, a drafter that reads texts alone, its options in brackets, as in
            `instant=ngram[min_match=2]`; None for the drafter itself.
    """

    name = "cached"
    purpose = "prepare for likely outcomes"
    paper = "arXiv 2603.03251"
    budget: int = attrs.field(default=24, validator=[whole_number, ge(1)])
    beyond: bool = attrs.field(default=False, validator=yes_or_no)
    allocation: Any = attrs.field(default="likeliest", validator=_is_allocation)

    instant: DrafterSpec | None = attrs.field(default=None, converter=_instant, validator=_is_source)

    @property
    def fanout(self) -> Fanout:
        """What chooses the outcomes."""
        return self.allocation if isinstance(self.allocation, Fanout) else ALLOCATIONS[self.allocation]()

    @property
    def width(self) -> int:
        return self.budget

    @property
    def drafts_beyond(self) -> bool:
        return self.beyond

    def nodes(self, tree: TokenTree) -> IntArray:
        return self.fanout.nodes(tree, self.budget)

    def outcomes(self, outlook: Outlook) -> Sequence[Outcome]:
        return self.fanout.outcomes(outlook, self.budget)
