"""The own time of policies, where it is taken on some of the texts alone."""

from collections.abc import Sequence
from typing import TypeVar

from talon_core.trace.replay import Totals, sum_of_known

Text = TypeVar("Text")
"""However a text is named."""

ONE_IN, FEWEST = 16, 2
"""On which texts the time is taken: one in so many, and at least so many."""


def to_be_timed(texts: Sequence[Text]) -> list[Text]:
    """The texts on which the time is taken, of some in the order of `Trace.texts`: the same ones at any time.

    They stand almost evenly among these, each one place farther than that: so they are of different sets, and in
    different shards.
    """
    count = min(max(FEWEST, -(-len(texts) // ONE_IN)), len(texts))
    apart = len(texts) / max(1, count)
    return [texts[int(place * apart) + place % int(apart)] for place in range(count)]


def with_own_time(totals: Sequence[Totals]) -> list[Totals]:
    """What a method did, text by text, with the policy's own time on each of them, and a drafter's that is asked here.

    Where it was not taken, each round takes what one of the other texts took in the mean.

    Args:
        totals: of the texts; none is changed where the time was taken on none, or on all.
    """
    timed = [one for one in totals if one.policy_seconds is not None]
    if not timed:
        return [*totals]
    rounds = sum(one.target_passes for one in timed)
    policy = sum(one.policy_seconds or 0.0 for one in timed) / rounds
    known = sum_of_known([one.drafter_seconds for one in timed])
    drafter = None if known is None else known / rounds

    def of(one: Totals) -> Totals:
        return one.taking(policy * one.target_passes, None if drafter is None else drafter * one.target_passes)

    return [one if one.policy_seconds is not None else of(one) for one in totals]
