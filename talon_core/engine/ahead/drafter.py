"""The drafter that the engine asks where drafting goes on while the target verifies."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial

import attrs
import numpy as np

from talon_core.basics.waiting import uninterrupted
from talon_core.candidates import Candidates
from talon_core.costs import Costs
from talon_core.drafter import Committed, Drafter, Frontier, Part, Proposed
from talon_core.engine.ahead.asking import ask, own_answer
from talon_core.engine.ahead.checked_schedule import checked_flag, checked_width
from talon_core.engine.ahead.instant import NO_INSTANT, NOTHING, NoInstant
from talon_core.engine.ahead.prepared import Prepared, Row, candidates_of
from talon_core.engine.ahead.preparer import Preparer, Verifying
from talon_core.engine.ahead.preparing import Job, apart
from talon_core.engine.ahead.session import AheadSession
from talon_core.engine.ahead.text import Text
from talon_core.engine.ahead.whole import Whole
from talon_core.engine.ahead.worker import Worker
from talon_core.engine.checked_policy import checked_kind
from talon_core.engine.drafting import Wanted
from talon_core.engine.growing import DraftLimits
from talon_core.engine.memory import is_memoryless
from talon_core.errors import LostError, PluginError, naming, one_line
from talon_core.rounds import Span
from talon_core.schedule import Schedule
from talon_core.tree import FloatArray, IntArray, TokenTree

LOG = logging.getLogger(__name__)


class AheadDrafter(Preparer):
    """Answers from what was prepared while the tree before was verified, and asks the real drafter for the rest.

    Whatever it is asked or told first ends what is being prepared. So the drafter is never asked by two at a time, and
    sees what it would see anyway: a tree that grows, some of whose nodes are not drafted from by the policy but for an
    outcome, and then what was accepted.

    Where the schedule does not draft beyond what was prepared (`Schedule.drafts_beyond`), a tree that began with it
    ends where it ends: there are neither candidates nor a law at nodes of which nothing was prepared, the root's aside.
    Where something has failed so that nothing could be prepared, trees are drafted as always, with any schedule.

    With an instant source, that one drafts where something else has come than was prepared for, and where the drafter
    was lost: the whole tree. The drafter sees such a tree when it is asked what comes below it. The first tree of a
    text is the drafter's: the target has to wait for somebody then, as nothing could be prepared.

    What fails in the drafter while it prepares ends its drafting for the sequences that took part: they are decoded
    without. Where it is in a process beside, so does whatever fails there, and for all sequences that it knows. It is
    said once, and sequences that come later are drafted for again. What fails in this process when it is asked in turn
    is the drafter's error, as always.

    Args:
        schedule: says what is prepared.
        worker: prepares.
        named: the drafter or its options, whom errors name.
        vocab_size: the target's.
        instant: drafts after a miss; by default nobody does but in the schedule's own way (`Schedule.drafts_on_miss`).
    """

    def __init__(
        self,
        schedule: Schedule,
        worker: Worker,
        named: object,
        vocab_size: int,
        instant: NoInstant = NO_INSTANT,
    ) -> None:
        self.behind = worker.drafter
        self.max_depth = self.behind.max_depth
        self.schedule = schedule
        self._width = checked_width(schedule)
        self._drafts_beyond = checked_flag(schedule, "drafts_beyond")
        self._drafts_on_miss = checked_flag(schedule, "drafts_on_miss")
        self._worker = worker
        self._instant = instant
        self._inside = ExitStack()
        self._named = named
        self._vocab_size = vocab_size
        self._texts: dict[int, Text] = {}  # by slot
        self._openings = 0
        self._prepared: Mapping[int, Prepared] = {}
        self._preparing: list[int] = []  # slots
        self._wanted: Sequence[Wanted] = ()
        self._drafts_whole = False  # the worker does, the current tree
        self._losses = worker.losses
        self._said: set[str] = set()

    def describe(self) -> Mapping[str, object]:
        return self.behind.describe()

    def session(self) -> AbstractContextManager[object]:
        return AheadSession(self.behind.session, self._wake, self._rest)

    def _wake(self) -> None:
        with uninterrupted(), ExitStack() as entered:
            self._worker.hurry(False)
            self._worker.wake()
            entered.callback(self._worker.rest)
            entered.enter_context(self._instant.session())
            self._inside = entered.pop_all()

    def _rest(self, hurried: bool) -> None:
        """A session is left. Ctrl-C does not break that off; once it has come, nobody waits long.

        Args:
            hurried: whether it has come before.
        """
        with uninterrupted(partial(self._worker.hurry, True)), self._inside.pop_all():
            if hurried:
                self._worker.hurry(True)
            self._stop()

    @contextmanager
    def hurried(self) -> Iterator[None]:
        self._worker.hurry(True)
        try:
            yield
        finally:
            self._worker.hurry(False)

    def hit(self, slot: int) -> bool | None:
        text = self._texts[slot]
        return None if text.broken else text.hit

    def spans(self, slot: int) -> Sequence[Span]:
        text = self._texts[slot]
        spans, text.spans = text.spans, []
        return spans

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._stop()
        text = self._entered(slot, len(prompt))
        if not text.broken:
            with self._reaching():
                self.behind.open(slot, prompt, room)
        with self._or_closed(slot):
            self._instant.open(slot, prompt, room)

    @contextmanager
    def _or_closed(self, slot: int) -> Iterator[None]:
        """Where what is inside fails, the slot is not open, so that nobody closes the drafter's later: it is now."""
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the error that is raised tells more
                self._close_behind(slot)
            raise

    def _entered(self, slot: int, length: int) -> Text:
        """A new sequence; it is drafted for, unless the drafter cannot be reached."""
        self._openings += 1
        lost = self._worker.lost  # which may find out just now
        self._break_lost()
        text = self._texts[slot] = Text(self._openings, length)
        text.broken = lost
        return text

    def _break_lost(self) -> None:
        """Where the worker has lost the drafter, nobody knows what that knows of any text, kept ones included."""
        if self._losses != self._worker.losses:
            self._losses = self._worker.losses
            for text in self._texts.values():
                text.broken = True
            self._lost(self._worker.why)

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        self._stop()
        before = self._texts.get(source)
        text = self._entered(slot, len(prompt))
        taken = length
        if not text.broken:
            knows = before is not None and not before.broken
            with self._reaching():
                if knows:
                    taken = self.behind.resume(slot, prompt, room, source, length)
                else:  # of that text nobody knows what the drafter knows
                    taken = Drafter.resume(self.behind, slot, prompt, room, source, length)
        with self._or_closed(slot):
            self._instant.resume(slot, prompt, room, source, length)
        return taken

    def rows(self, rooms: Mapping[int, int]) -> int:
        return self.behind.rows(rooms)

    def read(self, parts: Mapping[int, Part]) -> None:
        self._stop()
        whole = {slot: part for slot, part in parts.items() if not self._texts[slot].broken}
        if whole:
            with self._reaching():
                self.behind.read(whole)

    def close(self, slot: int) -> None:
        self._stop()
        try:
            self._close_behind(slot)
        finally:  # whatever becomes of one slot, the other is closed
            self._instant.close(slot)

    def _close_behind(self, slot: int) -> None:
        text = self._texts.pop(slot, None)
        if text is not None and not text.broken:
            with self._reaching():
                self.behind.close(slot)
        elif not self._worker.lost:
            try:
                self.behind.close(slot)
            except Exception as error:  # nobody knows what it knows of the slot; opening it forgets that
                LOG.debug("slot %d of a drafter that has failed was not closed: %s", slot, one_line(error))

    def drafting(self, trees: Sequence[Wanted]) -> None:
        self._wanted = trees

    def verifying(self, trees: Mapping[int, Verifying]) -> None:
        self._stop()
        jobs: list[Job] = []
        costs: dict[int, Costs] = {}  # as they are now, by which ones they are
        for slot, one in trees.items():
            text = self._texts[slot]
            text.unprepared = False
            if not text.broken and one.tree.tokens[0] not in one.ends:
                places = one.drafted.nodes_of(one.tree)
                text.parents = frozenset(places[parent] for parent in one.tree.parents[1:].tolist())
                text.deepest = one.deepest
                try:
                    jobs.append(_job(slot, text, one, costs))
                except PluginError as error:
                    self._failed(slot, error)
        if jobs:
            self._preparing = [job.slot for job in jobs]
            self._worker.prepare(self.schedule, jobs)

    def _stop(self) -> None:
        """End what is being prepared."""
        if not self._preparing:
            self._break_lost()
            return
        stopped = self._worker.stop()  # where that is interrupted, it is asked again
        slots, self._preparing = self._preparing, []
        self._prepared = stopped.prepared
        for slot in slots:
            self._texts[slot].spans += stopped.spans
            if stopped.failure is not None:
                self._texts[slot].broken = True
        self._break_lost()
        if stopped.failure is not None:
            self._lost(stopped.failure)
        for slot, error in stopped.faults.items():
            self._failed(slot, error)

    def _failed(self, slot: int, error: Exception) -> None:
        """Nothing can be prepared for a sequence in this round."""
        self._texts[slot].unprepared = True
        self._say("what may come next is not prepared", error)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Where the drafter is elsewhere and cannot be reached, the texts that it knew go on without drafts."""
        try:
            yield
        except LostError:
            self._break_lost()

    def _lost(self, why: object) -> None:
        who = naming("drafter", self._named)
        self._say(f"{who} has failed beside the target, and drafts no more for the texts that it was at", why)

    def _say(self, what: str, why: object) -> None:
        """Say something once."""
        if what not in self._said:
            self._said.add(what)
            LOG.warning("%s: %s", what, one_line(why))

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self._stop()
        prepared, self._prepared = self._prepared, {}
        whole = {slot: one for slot, one in committed.items() if not self._texts[slot].broken}
        told = {slot: self._texts[slot].told(one) for slot, one in whole.items()}
        for slot, one in whole.items():
            self._texts[slot].commit(one, prepared.get(slot))
        if told:
            with self._reaching():
                self.behind.commit(told)
        self._instant.commit(committed)

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        self._stop()
        kept: dict[int, dict[int, Row]] = {}  # what was prepared, by slot and node
        at_once: list[Frontier] = []
        drafts = self._drafts_on_miss or self._instant.drafts  # whose misses are the instant source's
        for one in frontiers:
            text = self._texts[one.slot]
            text.width = max(text.width, self._width, one.width)
            if len(one.tree) == 1:
                missed = text.hit is False and not text.unprepared
                text.at_once = self._instant.drafts and (text.broken or missed)
            if text.at_once:
                at_once.append(one)
            elif not text.broken and (text.hit or text.unprepared or drafts):
                rows = {node: text.kept(one.tree, node, one.width) for node in one.nodes.tolist()}
                kept[one.slot] = {node: row for node, row in rows.items() if row is not None}
        stays = not self._drafts_beyond  # with what is there, once it has begun
        for one in frontiers:
            if stays and self._texts[one.slot].hit and 0 not in one.nodes and one.slot in kept:
                kept[one.slot] = dict.fromkeys(one.nodes.tolist(), NOTHING) | kept[one.slot]
        asking = [
            attrs.evolve(one, width=min(max(one.width, self._width), self._vocab_size))
            for one in frontiers
            if one.slot in kept and len(kept[one.slot]) < len(one.nodes)
        ]
        missing = [[node for node in one.nodes.tolist() if node not in kept[one.slot]] for one in asking]
        if any(len(one.tree) == 1 for one in frontiers):
            self._drafts_whole = bool(asking) and self._begins_whole(frontiers)
        self.passed_on = (
            not self._drafts_whole
            and len(asking) == len(frontiers)
            and all(
                self._texts[one.slot].unasked(one.tree, own) == {*one.nodes.tolist()}
                for one, own in zip(asking, missing, strict=True)
            )
        )
        passes, reading, prepared = 0, None, False
        with self._reaching():
            passes, reading, prepared = ask(self.behind, self._named, self._texts, asking, missing)
        kept = {slot: rows for slot, rows in kept.items() if not self._texts[slot].broken}
        answered: dict[int, Candidates] = {}
        if at_once:
            answered, own = self._instant.propose(at_once)
            passes += own
        answered |= {one.slot: self._answer(one, kept[one.slot]) for one in frontiers if one.slot in kept}
        answers = [answered[one.slot] if one.slot in answered else Candidates.unknown(one.nodes) for one in frontiers]
        return Proposed(answers, passes, reading, prepared)

    def _begins_whole(self, frontiers: Sequence[Frontier]) -> bool:
        """Whether the worker drafts a tree whole, of which nothing was prepared. Where several sequences draft together
        it does not: they share the messages, and an allocator wants to know what their layers take."""
        if len(self._wanted) != 1 or self._texts[frontiers[0].slot].hit:
            return False
        (tree,) = self._wanted
        least = min(self._width, self._vocab_size)
        return self._worker.drafts_whole(Whole(tree, frontiers[0].width, least))

    def _answer(self, frontier: Frontier, kept: Mapping[int, Row]) -> Candidates:
        """What was prepared for a frontier's nodes, and what the drafter has answered at the others."""
        text, nodes = self._texts[frontier.slot], frontier.nodes.tolist()
        if not kept:
            given: Candidates | None = own_answer(text, frontier, self._named, self._vocab_size)
            if given is not None:
                return given
        rows = []
        for node in nodes:
            if node in kept:
                rows.append(kept[node])
            else:
                answer, row = text.fresh[node]
                rows.append(Row.of(answer.candidates(self._named, self._vocab_size), row, frontier.width))
        made = candidates_of(frontier.nodes, frontier.tree.path_logp[frontier.nodes], rows, frontier.width)
        tree, slot = frontier.tree, frontier.slot
        return attrs.evolve(made, law=lambda row: self._law(slot, tree, nodes[row], kept))

    def _law(self, slot: int, tree: TokenTree, node: int, kept: Mapping[int, Row]) -> FloatArray:
        """The whole law at a node: what was kept, or what the drafter says when it is asked now."""
        text = self._texts[slot]
        text.laws = True
        row = kept.get(node)
        if row is not None and row.law is not None:
            return row.law
        if row is NOTHING or (text.broken and node not in text.fresh):
            return kept[node].offered_law(self._vocab_size)
        if node not in text.fresh:
            frontier = Frontier(slot, tree, np.array([node], dtype=np.int64), 1)
            with self._reaching():
                ask(self.behind, self._named, self._texts, [frontier], [[node]])
            if node not in text.fresh:
                return kept[node].offered_law(self._vocab_size)
        answer, place = text.fresh[node]
        return answer.candidates(self._named, self._vocab_size).law(place)


def _job(slot: int, text: Text, one: Verifying, known: dict[int, Costs]) -> Job:
    """What is prepared for a sequence starts from here.

    Its policy and costs are copied now, by the thread that decodes: it goes on to change them.

    Args:
        slot: of the sequence.
        text: what is known of it.
        one: its tree.
        known: copies of costs, by the number of what was copied, which are made once for all sequences.

    Raises:
        PluginError: if the policy cannot be copied, or does not say what its trees hold.
    """
    draws = checked_kind(one.policy).most != 0
    policy, costs = one.policy, None
    if not is_memoryless(policy):
        costs = known[id(one.costs)] = known.get(id(one.costs)) or one.costs.snapshot()
        policy = apart(policy, one.costs, costs)
    return Job(
        slot=slot,
        base=text.base,
        drafted=one.drafted,
        verified=one.tree,
        asked=frozenset(text.fresh),
        known=text.known(),
        policy=policy,
        costs=costs,
        limits=DraftLimits(one.vocab_size, one.deepest, one.ends, one.children),
        width=text.width,
        laws=text.laws or draws,
        choices=text.choices,
        outlook=text.counts,
    )
