"""The engine: requests come in, each step gives every running sequence a round, and what is over leaves its slot."""

import logging
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock, get_ident
from time import perf_counter
from typing import Any

from talon_core.allocation import Allocator
from talon_core.basics.waiting import HURRIED, uninterrupted
from talon_core.choices import Choices, SeededChoices
from talon_core.costs import Costs, MeasuredCosts
from talon_core.drafter import Drafter, DrafterSpec, Part
from talon_core.engine.acceptors import Acceptor
from talon_core.engine.ahead.opening import check_drafting, goes_ahead
from talon_core.engine.ahead.preparer import Preparer
from talon_core.engine.ahead.thread import ThreadWorker
from talon_core.engine.ahead.worker import Worker
from talon_core.engine.allocation import BestRate
from talon_core.engine.bounds import PROMPT_TOKENS, Bounds
from talon_core.engine.checked_drafter import checked_resume
from talon_core.engine.checked_policy import (
    begun,
    chaining,
    checked_budget,
    checked_growers,
    follower,
    overlooking,
    resting,
    source_of,
    teller,
)
from talon_core.engine.clock import RoundClock
from talon_core.engine.devices import device_of, wait_for_target
from talon_core.engine.faults import Faults
from talon_core.engine.in_session import Sessions
from talon_core.engine.plain import NoDrafter, RootAlone
from talon_core.engine.processors import remembering, why_not
from talon_core.engine.sequence import Sequence
from talon_core.engine.sharing import sharing_of
from talon_core.engine.slots import Slots
from talon_core.engine.stages import RoundParts, Stages
from talon_core.errors import BusyError, check_made_of, one_line, written
from talon_core.policy import SequenceInfo, TreePolicy
from talon_core.request import Request
from talon_core.rounds import Round
from talon_core.rule import AcceptanceRule
from talon_core.schedule import Schedule
from talon_core.source_chooser import SourceChooser, check_sources
from talon_core.target import Target

LOG = logging.getLogger(__name__)

RESERVED_NODES = 256
"""Nodes that a target makes room for where rows are not bounded; its cache grows where a policy sends a larger tree."""

DECODED = "this model is already being decoded"


class Engine:
    """Decodes any number of sequences, each in a slot of its own, with one target, drafter, policy and rule.

    `submit` hands in a request, and the `Sequence` that it returns is its handle. Each `step` lets waiting sequences
    take slots, reads a part of the new prompts, and gives every sequence that has read its own one round: a tree for
    each, verified in one pass. A sequence that is over leaves its slot, which the next one takes in the step after.
    Each comes out as it would alone, up to the rounding of sums: in float32 that is the same text.

    An engine knows no text: prompts and answers are token ids.

    Args:
        target: whose output it is.
        rule: the acceptance rule.
        policy: the tree policy; None decodes one token a pass. Each sequence is served by one that its `begin` makes.
        drafter: what drafts, opened; None drafts nothing.
        spec: its options, which errors name.
        children: the kind of trees that the rule was found exact for; None for what the policy says of itself.
        slots: as in `Bounds`, and so are `rows`, `prompt_tokens` and `keep`.
        costs: what passes take on this machine; by default, and where `MeasuredCosts` are given, measured while it
            decodes.
        allocator: shares a pass among its sequences; None verifies every tree as its policy has made it. By default the
            nodes are verified that are worth their time by these costs. May be set between steps.
        schedule: what is prepared while the target verifies; None drafts and verifies in turn.
        worker: makes who prepares, for the drafter.
        now: the clock, in seconds, by which all spans are told. Where a thread prepares, that asks it as well.

    Raises:
        ValueError: for a part that is none, or a bound that is no whole number of at least 1; for a policy that
            chooses among several drafters where there is one; or for a schedule where there is no policy or no drafter.
        PluginError: if what the policy says of its budget, or the drafter of what it adds, cannot be understood.
    """

    def __init__(
        self,
        target: Target,
        rule: AcceptanceRule,
        policy: TreePolicy | None = None,
        drafter: Drafter | None = None,
        spec: DrafterSpec | None = None,
        *,
        children: str | None = None,
        slots: int | None = None,
        rows: int | None = None,
        prompt_tokens: int | None = PROMPT_TOKENS,
        keep: bool = True,
        costs: Costs | None = None,
        allocator: Allocator | None = BestRate(),  # noqa: B008 - it is frozen
        schedule: Schedule | None = None,
        worker: Callable[[Drafter], Worker] = ThreadWorker,
        now: Callable[[], float] = perf_counter,
    ) -> None:
        check_made_of(Target, "the target", target)
        check_made_of(AcceptanceRule, "the rule", rule)
        for part, given, interface in (
            ("policy", policy, TreePolicy),
            ("drafter", drafter, Drafter),
            ("costs", costs, Costs),
            ("schedule", schedule, Schedule),
        ):
            if given is not None:
                check_made_of(interface, f"the {part}", given)
        for called, function, does in (
            ("worker", worker, "makes a Worker for a drafter, as ThreadWorker"),
            ("now", now, "tells seconds, as time.perf_counter"),
        ):
            if not callable(function):
                raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad part
                    f"{called} is {written(function)}; it must be a function that {does}"
                )
        Bounds(slots, rows, prompt_tokens, keep)  # which refuses what is none
        check_drafting(schedule, policy, drafter)
        if schedule is not None and drafter is not None:
            drafter = goes_ahead(drafter, spec, schedule, worker, target, now)
        self.parts = RoundParts(target, drafter if drafter is not None else NoDrafter(), rule, spec)
        self.policy = policy if policy is not None else RootAlone()
        behind = " that drafts while the target verifies" * isinstance(self.parts.drafter, Preparer)
        check_sources(self.policy, self.parts.sources, f"there is one{behind}")
        if not isinstance(self.policy, SourceChooser):
            self.parts.sources = ()
        self._looks_ahead = rule.looks_ahead and policy is not None  # without drafts there is nothing ahead
        self._children = children
        self._nodes = checked_budget(self.policy) + self.parts.inquiries.most_added
        if self.parts.drafts_in_cache:
            self._nodes = max(self._nodes, checked_budget(self.policy, "draft_budget"))
        if rows is None:
            self._nodes = min(self._nodes, RESERVED_NODES)
        self._given_costs = costs
        self._measured = costs if isinstance(costs, MeasuredCosts) else MeasuredCosts()
        self.costs = costs if costs is not None else self._measured
        self._machine: dict[str, Any] = {}
        self._shared: dict[str, Any] = {}  # what the allocator has learnt of the machine
        self.allocator = allocator
        self._rows = rows
        self._slots = Slots(slots, rows, target.occupied, self.parts.rows, target.most_rows)
        self._drafted_to: dict[int, int] = {}  # by slot: the tokens of its text after which something was drafted last
        self._opened: tuple[set[int], set[int]] = set(), set()  # the slots that are open in target and drafter
        weakref.finalize(self, _give_back, target, self._slots, self._opened[0])
        self._prompt_tokens = prompt_tokens
        self._keep = keep
        self.now = now
        self._clock = RoundClock(now)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}  # by slot
        self._handing_in = Lock()  # held while somebody looks at who waits, and never while something is decoded
        self._sessions = Sessions(target, self.parts.drafter, self.parts.named)
        self._lock = Lock()  # held by the thread that is in session
        self._holder: int | None = None
        self._stepping = False
        self._broken_off = False  # the latest step, so that nobody knows what the slots hold
        self._handed_in = 0  # sequences, so far
        self._begun_for = 0  # so many of them both models were begun anew

    @property
    def allocator(self) -> Allocator | None:
        """Shares a pass among its sequences; None verifies every tree as its policy has made it."""
        return self._allocator

    @allocator.setter
    def allocator(self, allocator: Allocator | None) -> None:
        self._sharing = sharing_of(allocator, self._shared)
        self._allocator = allocator

    def forget(self) -> None:
        """Give up the texts that are kept, what passes took, and what policies and allocators know of the machine.

        Costs that were given stay as they are: others may ask them, too.

        Raises:
            BusyError: if the model is being decoded at this moment.
        """
        with self.session():
            for slot in self._slots.kept:
                self._slots.forget(slot)
                self._close(slot)
            if self._measured is not self._given_costs:
                self._measured.forget()
            self._machine.clear()
            self._shared.clear()

    def submit(self, request: Request, choices: Choices | None = None) -> Sequence:
        """Hand in a request. Nothing is decoded before the next step.

        Args:
            request: what to decode.
            choices: the randomness of the rule and the policy; seeded from the request by default.

        Returns:
            The sequence, which tells what has come out, and is the handle for `step` and `cancel`.

        Raises:
            ValueError: if the request cannot be served, see `Request.limit`; if `choices` are none; if the rule looks
                ahead and a logits processor remembers what it was called with; if it needs more rows than there are;
                or if it is being decoded, or waits, already.
        """
        return self.enter(self.prepared(request, choices))

    def prepared(self, request: Request, choices: Choices | None = None) -> Sequence:
        """What `submit` makes of a request, checked, and not handed in yet; raises as `submit` does."""
        check_made_of(Request, "the request", request)
        if choices is not None:
            check_made_of(Choices, "choices", choices)
        limit = request.limit(self.parts.target)
        refused = self.refused(request)
        if refused is not None:
            raise ValueError(f"{refused}; take a rule that does not look ahead")
        given = choices if choices is not None else SeededChoices(request.seed)
        sequence = Sequence(request, given, limit, self._children)
        self._check_rows(sequence)
        return sequence

    def refused(self, request: Request) -> str | None:
        """Why its logits processors cannot be used with the rule, as the beginning of a sentence; None if they can."""
        processor = remembering(request.sampling.processors) if self._looks_ahead else None
        return None if processor is None else why_not(self.parts.rule, processor)

    def _check_rows(self, sequence: Sequence) -> None:
        missing = self._slots.missing(self._room(sequence))
        if missing is not None:
            own = self.parts.rows({0: self._room(sequence)}) - self.parts.target.rows({0: self._room(sequence)})
            drafters = f", with the {own} that the drafter's cache counts for" * bool(own)
            there, more = (
                ("there are", ", or give the engine more rows")
                if self._rows is not None
                else ("the memory here would hold at best", "")
            )
            raise ValueError(
                f"the prompt has {len(sequence.request.ids)} tokens, {sequence.limit} new ones are asked for, and a "
                f"tree may have {self._nodes} node{'s' * (self._nodes != 1)}: {missing} rows of keys and values more "
                f"than {there}{drafters}; ask for fewer tokens{',' if more else ' or'} take a smaller budget{more}"
            )

    def enter(self, sequence: Sequence) -> Sequence:
        """Hand in what was prepared.

        Raises:
            ValueError: if its request is being decoded, or waits, already; if it was handed in, here or elsewhere; or
                if it was prepared by an engine of more rows.
        """
        check_made_of(Sequence, "the sequence", sequence)
        if sequence.handed_in or sequence.finished:
            raise ValueError("this sequence was handed in before; prepare another one to decode its request again")
        self._check_rows(sequence)
        with self._handing_in:
            known = (*self._running.values(), *self._waiting)
            if any(one.request is sequence.request and not one.finished for one in known):
                raise ValueError(
                    "this request was submitted already, and is not over; make another one to decode it twice"
                )
            self._handed_in += 1
            sequence.number = self._handed_in
            self._waiting.append(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence early, from any thread, at any time: a round that runs is its last.

        Raises:
            ValueError: if it is over already, or is none of this engine's.
        """
        check_made_of(Sequence, "the sequence", sequence)
        if sequence.finished:
            why = sequence.finish_reason or ("cancelled" if sequence.cancelled else "it failed")
            raise ValueError(f"this sequence is over ({why}); only one that is not can be cancelled")
        if sequence not in self._waiting and sequence not in self._running.values():
            raise ValueError("this sequence is none of this engine's; cancel it where it was submitted")
        sequence.cancelled = True

    @contextmanager
    def session(self) -> Iterator[None]:
        """While entered, target and drafter stay in session between steps, which costs least; nobody else can decode.

        Raises:
            BusyError: if the model is being decoded at this moment, by another thread perhaps.
        """
        with self._in_session(again=False):
            yield

    @contextmanager
    def _in_session(self, again: bool) -> Iterator[None]:
        """As `session`; `again` if nothing is begun, so that what was found out of the model is not looked at anew."""
        if self._holder == get_ident():
            if self._stepping:
                raise BusyError(f"{DECODED}, and this was asked from within; ask again when the round is over")
            yield
            return
        if not self._lock.acquire(blocking=False):
            raise BusyError(f"{DECODED}, by another thread perhaps; ask again when it is done")
        try:
            with self._sessions.entered(again):
                self._holder = get_ident()
                try:
                    yield
                finally:
                    self._holder = None
        finally:
            self._lock.release()

    def step(self, only: Collection[Sequence] | None = None) -> dict[Sequence, Round]:
        """Let sequences in, read prompts, and decode one round of every sequence whose prompt is read.

        Args:
            only: the sequences that take part; all by default. The others stay as they are.

        Returns:
            What each sequence that had a round emitted. One that has failed is not among them, and is over; its `error`
            says why.

        Raises:
            ValueError: if something in `only` is no sequence.
            BusyError: if the model is being decoded at this moment, by another thread perhaps.
        """
        taking = None if only is None else _sequences(only)
        held = self._holder == get_ident()
        handed_in = self._handed_in  # another thread may hand in more meanwhile: that waits for the next step
        with self._in_session(again=handed_in == self._begun_for):
            self._stepping, self._begun_for = True, handed_in
            try:
                if self._broken_off:
                    self._end_all()
                self._broken_off = True
                emitted = self._step(taking, handed_in, held)
                self._broken_off = False
                return emitted
            except BaseException as error:
                with self._hurried(error):
                    self._end_all()
                raise
            finally:
                self._stepping = False

    def _step(self, only: set[Sequence] | None, handed_in: int, held: bool) -> dict[Sequence, Round]:
        """As `step`.

        Args:
            only: likewise.
            handed_in: so many sequences were, when the step began.
            held: whether the session goes on behind it.
        """
        self._drop_cancelled()
        faults = Faults()
        self._admit(only, handed_in, faults)
        taking = {slot: one for slot, one in self._running.items() if only is None or one in only}
        ready = {slot: one for slot, one in taking.items() if one.is_read}
        self._read({slot: one for slot, one in taking.items() if not one.is_read}, faults, bool(ready))
        ready = {slot: one for slot, one in taking.items() if one.is_read and slot not in faults}
        rounds: dict[int, Round] = {}
        ahead, began = False, self._clock()
        if ready:
            told = self._measured, self.costs, self._sharing, self._clock
            stages = Stages(self.parts, ready, faults, *told, held and len(ready) == len(self._running))
            if any(not one.rounds for one in ready.values()):
                stages.prepare(self._nodes)
            rounds, ahead = stages.run(), stages.was_ahead
        for slot, round_ in rounds.items():
            if round_.draft_passes and ready[slot].drafted_at == round_.context:  # passes are shared, not by all
                self._drafted_to[slot] = round_.context
            with faults.of([slot]):
                ready[slot].rounds.append(round_)
                ready[slot].tell(round_)
            if round_.sequences == 1:
                self._measured.went(round_.spans, ahead, self._clock() - began)
            ready[slot].took(self.now())
        for slot, one in taking.items():
            if slot in faults:
                one.error = faults[slot]
            if one.finished:
                self._leave(slot, keep=slot not in faults)
        emitted = {taking[slot]: round_ for slot, round_ in rounds.items() if slot not in faults}
        faults.clear()  # the errors' tracebacks know them, which would keep both until Python collects garbage
        return emitted

    def _drop_cancelled(self) -> None:
        with self._handing_in:
            self._waiting = deque(one for one in self._waiting if not one.cancelled)
        for slot, one in [*self._running.items()]:
            if one.cancelled:
                self._leave(slot, keep=one.is_read)

    def _room(self, sequence: Sequence) -> int:
        return len(sequence.request.ids) + sequence.limit + self._nodes

    def _admit(self, only: set[Sequence] | None, handed_in: int, faults: Faults) -> None:
        """Let waiting sequences take slots, in their order, until one does not fit.

        Args:
            only: the sequences that take part; None for all.
            handed_in: so many were, when the step began.
            faults: what fails.
        """
        with self._handing_in:
            waiting = [one for one in self._waiting if one.number <= handed_in and (only is None or one in only)]
        for sequence in waiting:
            ids, room = sequence.request.ids, self._room(sequence)
            known = {slot: one.committed_ids() for slot, one in self._running.items()}
            found = self._slots.take(ids, room, known)
            if found is None:
                return
            seat, given_up = found
            self._clock.forget()
            with self._handing_in:
                self._running[seat.slot] = sequence  # first: another thread that cancels it finds it in one of the two
                self._waiting.remove(sequence)
            for slot in given_up:
                self._close(slot)
            if not seat.length or seat.source != seat.slot:
                self._close(seat.slot)  # it is open where Ctrl-C has broken off what was to close it
            drafted_to = min(seat.length, self._drafted_to.get(seat.source, 0)) if seat.length else 0
            self._drafted_to[seat.slot] = drafted_to
            with faults.of([seat.slot]):
                acceptor = self.parts.acceptors.of(sequence.request, sequence.choices)
                policy = self._policy_of(sequence.request, acceptor, len(ids) - 1 - drafted_to)
                sequence.growers = checked_growers(policy, self._children)
                sequence.source = source_of(policy, len(self.parts.sources))
                sequence.tell, sequence.rests = teller(policy), resting(policy)
                sequence.said, sequence.follow = chaining(policy), follower(policy)
                sequence.overlooks = overlooking(policy)
                sequence.start(policy, acceptor, device_of(self.parts.target), room, self.now())
                sequence.read = self._open(seat.slot, sequence, seat.source, seat.length)

    def policy_for(self, request: Request) -> TreePolicy:
        """The policy that would serve a request whose choices are seeded.

        Raises:
            PluginError: if the policy fails to make one; the message names it.
        """
        return self._policy_of(request, self.parts.acceptors.of(request, SeededChoices(0)), 0)

    def _policy_of(self, request: Request, acceptor: Acceptor, unread: int) -> TreePolicy:
        sampling, limit = request.sampling, request.limit(self.parts.target)
        temperature = sampling.temperature if sampling.do_sample else 0.0
        told = SequenceInfo(
            prompt_length=len(request.ids),
            max_new_tokens=limit,
            temperature=temperature,
            costs=self.costs,
            machine=self._machine,
            drafter=self.parts.drafter_name,
            weight_bits=self.parts.target.weight_bits,
            unread=unread,
            sources=self.parts.sources,
            vocab_size=self.parts.target.vocab_size,
            runs_on=self.parts.chains_on and acceptor.foreseen,
            draws_on=self.parts.chains_on and acceptor.tests_chains,
            rests_on=self.parts.runs_on and acceptor.foreseen,
        )
        return begun(self.policy, told)

    def _open(self, slot: int, sequence: Sequence, source: int, length: int) -> int:
        """Open a slot; returns how many tokens of the prompt need not be read."""
        target, drafter = self.parts.target, self.parts.drafter
        ids, room = sequence.request.ids, self._room(sequence)
        tokens = len(ids) + sequence.limit
        if not length:
            target.open(slot, room)
            self._opened[0].add(slot)
            with self.parts.blaming("open"):
                drafter.open(slot, ids.copy(), tokens)
            self._opened[1].add(slot)
            return 0
        taken = target.resume(slot, room, source, length)
        self._opened[0].add(slot)
        with self.parts.blaming("resume"):
            answer = drafter.resume(slot, ids.copy(), tokens, source, taken)
        self._opened[1].add(slot)
        told = checked_resume(self.parts.named, answer, taken)
        if told < taken and target.resume(slot, room, slot, told) != told:
            raise RuntimeError(f"a target that took {taken} tokens over must be able to go back to {told} of them")
        return told

    def _read(self, new: dict[int, Sequence], faults: Faults, others: bool) -> None:
        """Read parts of prompts: all there is, or so much that others do not wait for long."""
        left = self._prompt_tokens if others else None
        parts: dict[int, int] = {}
        for slot, one in new.items():
            count = one.unread if left is None else min(one.unread, left)
            if slot in faults or (not count and one.unread):
                continue
            parts[slot] = count
            left = None if left is None else left - count
        if not parts:
            return
        with faults.of(parts):
            start = self.now()
            starts = {slot: new[slot].read for slot in parts}
            ids = {slot: new[slot].request.ids[starts[slot] :][:count] for slot, count in parts.items()}
            features = self.parts.target.read(ids)
            told = {slot: Part(starts[slot], count, features[slot]) for slot, count in parts.items()}
            with self.parts.blaming("read"):
                self.parts.drafter.read(told)
            wait_for_target(self.parts.target)  # or the first round would take what the prompt does
            seconds = self.now() - start
            for slot, count in parts.items():
                new[slot].heard(count, seconds)

    def _leave(self, slot: int, keep: bool) -> None:
        """The sequence in a slot is over, in whatever way."""
        sequence = self._end(slot)
        if keep and self._keep:
            self._slots.keep(slot, sequence.committed_ids())
        else:
            self._close(slot)
            self._slots.forget(slot)

    def _end(self, slot: int) -> Sequence:
        """The sequence in a slot is over; the slot stays as it is."""
        sequence = self._running[slot]
        sequence.cancelled |= not sequence.finished
        del self._running[slot]
        sequence.leave()
        return sequence

    def _end_all(self) -> None:
        """A step was broken off, by Ctrl-C perhaps: nobody knows what the slots hold, so that whatever runs is over.

        Where this is broken off as well, no sequence runs, and the next step closes what is still open.
        """
        with uninterrupted():
            for slot in [*self._running]:
                self._end(slot)
        for slot in {*self._slots.taken, *self._opened[0], *self._opened[1]}.difference(self._slots.kept):
            self._close(slot)
            self._slots.forget(slot)
        self._broken_off = False

    def _hurried(self, error: BaseException) -> AbstractContextManager[None]:
        """While entered, nobody waits long for what is prepared, if the error is one behind which the user waits."""
        return self.parts.preparations.hurried() if isinstance(error, HURRIED) else nullcontext()

    def _close(self, slot: int) -> None:
        """Close a slot; what fails then is nobody's any more. Where Ctrl-C breaks it off, the slot is not closed."""
        closes = (self.parts.target.close, self.parts.drafter.close)
        blames: tuple[AbstractContextManager[None], ...] = (nullcontext(), self.parts.blaming("close"))
        for close, blame, opened in zip(closes, blames, self._opened, strict=True):
            if slot in opened:
                try:
                    with blame:
                        close(slot)
                except Exception as error:
                    LOG.warning("a slot was not closed as it should be: %s", one_line(error))
                opened.remove(slot)


def _sequences(given: object) -> set[Sequence]:
    """What was given as the sequences of a step.

    Raises:
        ValueError: if it is something else.
    """
    if isinstance(given, Collection) and all(isinstance(one, Sequence) for one in given):
        return {*given}
    raise ValueError(f"only is {written(given)}; it must be a collection of sequences that submit has returned")


def _give_back(target: Target, slots: Slots, opened: set[int]) -> None:
    """Close the slots of an engine that nobody has any more."""
    for slot in slots.taken:
        slots.forget(slot)
    for slot in opened:
        target.close(slot)
