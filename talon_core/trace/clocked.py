"""Time that passes by costs: a drafter whose calls take it, and who prepares with one while a target works."""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from talon_core.costs import Costs
from talon_core.drafter import Committed, Drafter, Frontier, Proposed
from talon_core.engine.ahead.preparing import Job, Preparing
from talon_core.engine.ahead.whole import Whole, sent
from talon_core.engine.ahead.worker import Stopped, Worker
from talon_core.rounds import Span
from talon_core.schedule import Schedule
from talon_core.trace.machines import Machines
from talon_core.trace.prices import Untold
from talon_core.tree import IntArray


class Clock:
    """Seconds that pass where somebody says so.

    Attributes:
        seconds: that have passed.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        """The time."""
        return self.seconds

    def spend(self, seconds: float | None) -> None:
        """So many pass; what nobody knows takes none."""
        self.seconds += seconds or 0.0

    def reach(self, seconds: float) -> None:
        """It is at least so late."""
        self.seconds = max(self.seconds, seconds)


class Clocked(Drafter):
    """A drafter whose calls take what they cost.

    Args:
        drafter: answers.
        costs: what it takes.
        clock: whose time passes.
        transfer: seconds of a message to it, and of one back.
        max_depth: the deepest token that it is asked for, where that is less than its own; None for its own.
        unanswered: how many questions it could not answer so far.
        late: it hears of what was accepted when it is next asked: nothing is prepared, or it is in a process beside,
            which is told with the next message.
        catches_up: it reads the prompt from the moment on at which it hears of it, while nobody asks it anything. It
            and the target are taken to be as fast then as alone.

    Attributes:
        outside: how many of those that it was asked here.
        whole: whether the current tree's further layers come with the first, so that they take no messages.
    """

    def __init__(
        self,
        drafter: Drafter,
        costs: Costs,
        clock: Clock,
        transfer: float = 0.0,
        max_depth: int | None = None,
        unanswered: Callable[[], int] = lambda: 0,
        late: bool = False,
        catches_up: bool = False,
    ) -> None:
        self.outside = 0
        self.whole = False
        self._late, self._untold = late, Untold(0)
        self._catches_up, self._spare_since = catches_up, inf
        self._unanswered = unanswered
        depths = [depth for depth in (drafter.max_depth, max_depth) if depth is not None]
        self.max_depth = min(depths) if depths else None
        self.takes_paths = drafter.takes_paths
        self._drafter, self._costs, self._clock, self._transfer = drafter, costs, clock, transfer

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._untold = Untold(len(prompt))
        self._spare_since = self._clock.seconds + self._transfer if self._catches_up else inf
        self._drafter.open(slot, prompt, room)

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        before = self._unanswered()
        proposed = self._drafter.propose(frontiers)
        self.outside += self._unanswered() - before
        rows, width = sum(len(one.nodes) for one in frontiers), max(one.width for one in frontiers)
        self._clock.spend(self.heard())
        self._clock.spend(self._costs.draft(rows, width))
        if not self.whole or len(frontiers[0].tree) == 1:
            self._clock.spend(2 * self._transfer)
        return proposed

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self._drafter.commit(committed)
        self.whole = False
        tokens = max(len(one.tokens) for one in committed.values())
        if self._late:
            self._untold.new += tokens
        else:
            self._clock.spend(self._costs.tell(tokens))

    def heard(self) -> float:
        """It hears what it has not heard yet; seconds that this takes, but for what it had to spare."""
        spare, self._spare_since = max(self._clock.seconds - self._spare_since, 0.0), inf
        return max(self._untold.heard(self._costs) - spare, 0.0)

    def close(self, slot: int) -> None:
        self._drafter.close(slot)


class Beside(Worker):
    """Prepares while a target works, by the same rules as a thread or a process: calls are never broken off.

    Nothing is prepared before the target has begun, so that each can be told how long the other works beside it. While
    both work, each takes as many times as long as the machines say.

    A process is sent one message, with what was accepted and what is to be prepared, and sends one back when all is
    prepared, or when it sees that it is to end, which takes no message. A tree that it drafts whole takes one each way,
    too.

    Args:
        drafter: is asked where something was not prepared.
        behind: is asked for what is prepared; its calls take the time of `busy`.
        busy: the clock of these calls.
        clock: of the target.
        machines: says how both slow each other down, and how far they are apart.
    """

    def __init__(self, drafter: Clocked, behind: Drafter, busy: Clock, clock: Clock, machines: Machines) -> None:
        self.drafter: Drafter = drafter
        self._asked = drafter
        self._untold = 0.0
        self._behind, self._busy, self._clock, self._machines = behind, busy, clock, machines
        self._preparing: Preparing | None = None
        self._at = 0.0  # how far it is known what the drafter did: it was idle then, or in a call
        self._left: float | None = None  # of the call, in seconds alone; None where it is in none
        self._begun = 0.0  # when the call began
        self._call: tuple[str, int | None] = "reading", None  # what it is of
        self._spans: list[Span] = []

    def drafts_whole(self, tree: Whole) -> bool:
        self._asked.whole = self._machines.drafter is not None and sent(tree) is not None
        return self._asked.whole

    def prepare(self, schedule: Schedule, jobs: Sequence[Job]) -> None:
        self._preparing = Preparing(self._behind, schedule, jobs, self._clock.now)
        self._at, self._left = self._clock.seconds + self._machines.way, None
        self._untold = self._asked.heard()
        self._spans = []

    def _begin(self) -> bool:
        """Its next call begins; False where nothing is left to ask."""
        if self._untold:
            self._left, self._untold = self._untold, 0.0
            self._call = "reading", None
        else:
            before = self._busy.seconds
            if self._preparing is None or not self._preparing.step():
                return False
            self._left = self._busy.seconds - before
            self._call = "layer", self._preparing.layers - 1
        self._begun = self._at
        return True

    def _end(self, at: float) -> None:
        """The call is over."""
        self._spans.append(Span("prepare", self._begun, at, *self._call))
        self._at, self._left = at, None

    def during(self, seconds: float) -> None:
        """The target works for what takes it so long alone; its clock goes on until it is done."""
        slower, drafter_slower = self._machines.shared, self._machines.drafter_shared
        now, left = self._clock.seconds, seconds
        while left > 0 and self._preparing is not None:
            if now < self._at:  # its message is on the way
                alone = min(left, self._at - now)
                now, left = now + alone, left - alone
            elif self._left is None and not self._begin():
                break
            else:
                call, pass_ = (self._left or 0.0) * drafter_slower, left * slower
                if call < pass_:
                    left -= call / slower
                    now += call
                    self._end(now)
                else:
                    now, left = now + pass_, 0.0
                    self._at, self._left = now, (call - pass_) / drafter_slower
        self._clock.reach(now + left)

    def stop(self) -> Stopped:
        preparing, clock = self._preparing, self._clock
        if preparing is None:
            return Stopped()
        started = clock.seconds
        while self._left is not None or ((self._untold or self._at < started) and self._begin()):
            self._end(self._at + (self._left or 0.0))
        self._preparing = None
        clock.reach(max(started, self._at + self._machines.way))
        spans = [*self._spans, Span("wait", started, clock.seconds)]
        return Stopped(preparing.prepared(), None, preparing.faults, spans, preparing.passes)
