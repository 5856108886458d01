"""From a drafter and a schedule to the drafter that the engine asks."""

from collections.abc import Callable
from time import perf_counter

from talon_core.drafter import Drafter, DrafterSpec
from talon_core.engine.ahead.drafter import AheadDrafter
from talon_core.engine.ahead.inquirer import AheadInquirer
from talon_core.engine.ahead.instant import opened_instant
from talon_core.engine.ahead.worker import Worker
from talon_core.engine.checked_drafter import checked_depth
from talon_core.errors import naming, written
from talon_core.inquiry import Inquirer
from talon_core.schedule import Schedule
from talon_core.target import Target


def check_drafting(asked: object, policy: object, drafter: object) -> None:
    """Refuse a schedule where nothing is drafted.

    Args:
        asked: for as the schedule; None for none.
        policy: the tree policy; None if there is none.
        drafter: likewise.

    Raises:
        ValueError: if one of them is missing where there is a schedule.
    """
    for part, remedy, given in (("tree policy", "a policy", policy), ("drafter", "a drafter", drafter)):
        if asked is not None and given is None:
            raise ValueError(
                f"the schedule is {written(asked)}, and there is no {part}, so that nothing is drafted; name {remedy}, "
                "or leave the schedule out"
            )


def goes_ahead(
    drafter: Drafter,
    spec: DrafterSpec | None,
    schedule: Schedule,
    worker: Callable[[Drafter], Worker],
    target: Target,
    now: Callable[[], float] = perf_counter,
) -> Drafter:
    """The drafter that the engine asks: the real one, where the schedule prepares nothing.

    Args:
        drafter: the real one.
        spec: its options; None where it was given opened.
        schedule: says what is prepared.
        worker: makes who prepares, for the drafter.
        target: whose text it is.
        now: the engine's clock, in seconds.

    Raises:
        ValueError: if the drafter cannot draft before the target is done, or the schedule's instant source reads more
            than texts.
    """
    if not schedule.prepares:
        return drafter
    named = spec if spec is not None else drafter
    depth = checked_depth(named, drafter)
    if depth is not None and depth < 2:
        raise ValueError(
            f"{naming('drafter', named)} drafts {depth} token{'s' * (depth != 1)} a round, and nothing below what is "
            f"verified, so {naming('schedule', schedule)} can prepare nothing; take the schedule sync"
        )
    if drafter.uses_target:
        raise ValueError(
            f"{naming('drafter', named)} drafts with the target's own layers, which are busy while the target "
            f"verifies; take the schedule sync in the place of {naming('schedule', schedule)}, or another drafter"
        )
    wrapped = AheadInquirer if isinstance(drafter, Inquirer) else AheadDrafter
    prepares = worker(drafter)
    prepares.now = now
    return wrapped(schedule, prepares, named, target.vocab_size, opened_instant(schedule, target))
