"""A worker that does its worst: it delays, reorders and drops what is prepared, and brings what is out of date."""

from collections.abc import Sequence
from random import Random

import attrs

from talon_core.drafter import Drafter
from talon_core.engine.ahead.prepared import Continuation, Prepared
from talon_core.engine.ahead.preparing import Job, Preparing
from talon_core.engine.ahead.worker import Stopped, Worker
from talon_core.schedule import Outcome, Outlook, Schedule
from talon_core.table import path_number
from talon_core.tree import IntArray, TokenTree

CALLS = (0, 1, 2, 3, 5, None)
"""After how many calls of the drafter preparing ends; None for when all is there."""


class Adversary(Worker):
    """Decides by a hash of what it sees when preparing ends, in which order it is done, and what of it is lost.

    What it sees is the text, the tree that is verified and what was prepared: all that a timing can hang on. It does
    the same whenever these are the same, so that every outcome can be enumerated. Some of what it brings was prepared
    for a tree before: that must be dropped, whoever brings it.

    Args:
        drafter: likewise.
        seed: another one does its worst in another way.
    """

    def __init__(self, drafter: Drafter, seed: int = 0) -> None:
        self.drafter = drafter
        self._seed = seed
        self._jobs: Sequence[Job] = ()
        self._schedule: Schedule | None = None
        self._late: dict[int, Prepared] = {}  # by slot, of a tree before

    def prepare(self, schedule: Schedule, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._schedule = _Shuffled(schedule, self._random(jobs))

    def _random(self, jobs: Sequence[Job]) -> Random:
        seen = [self._seed]
        for job in jobs:
            seen += [job.slot, job.base.length, *job.drafted.tokens.tolist(), *job.drafted.parents.tolist()]
        return Random(path_number(seen))

    def stop(self) -> Stopped:
        jobs, schedule = self._jobs, self._schedule
        if schedule is None:
            return Stopped()
        self._jobs, self._schedule = (), None
        random = self._random(jobs)
        preparing, calls = Preparing(self.drafter, schedule, jobs), random.choice(CALLS)
        while calls is None or calls > 0:
            if not preparing.step():
                break
            calls = None if calls is None else calls - 1
        found = {slot: _some(one, random) for slot, one in preparing.prepared().items()}
        brought = {slot: self._brought(slot, one, random) for slot, one in found.items()}
        self._late = found
        return Stopped(brought, faults=preparing.faults)

    def _brought(self, slot: int, prepared: Prepared, random: Random) -> Prepared:
        """What was prepared now, or what should have come before."""
        late = self._late.get(slot)
        if late is None or late.base.opening != prepared.base.opening:
            return prepared
        return late if random.random() < 0.2 else prepared


def _some(prepared: Prepared, random: Random) -> Prepared:
    """What is left of what was prepared: of outcomes, and of places below them."""
    below: dict[tuple[int, int], Continuation] = {}
    for outcome, rows in prepared.below.items():
        if random.random() < 0.8:
            below[outcome] = {path: row for path, row in rows.items() if random.random() < 0.85}
    return Prepared(prepared.base, below)


@attrs.frozen
class _Shuffled(Schedule):
    """Another schedule, whose outcomes come in another order."""

    name = "shuffled"
    schedule: Schedule
    random: Random = attrs.field(eq=False)

    @property
    def width(self) -> int:
        return self.schedule.width

    def nodes(self, tree: TokenTree) -> IntArray:
        return self.schedule.nodes(tree)

    def outcomes(self, outlook: Outlook) -> Sequence[Outcome]:
        found = [*self.schedule.outcomes(outlook)]
        self.random.shuffle(found)
        return found
