"""One round over some slots: draft, verify, accept, emit, commit, record. What fails for one ends that one alone."""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import Any

import attrs

from talon_core.allocation import Allocator, NextRound, Planner
from talon_core.costs import Costs, MeasuredCosts
from talon_core.drafter import Committed, Drafter, DrafterSpec
from talon_core.engine.ahead.preparer import Preparer, Verifying
from talon_core.engine.allocation import allocated
from talon_core.engine.checked_drafter import checked_depth
from talon_core.engine.drafting import Drafted, Wanted, draft_trees
from talon_core.engine.faults import Faults
from talon_core.engine.inquiries import Asked, inquired
from talon_core.engine.offers import Offers
from talon_core.engine.on_device import NOT_WALKED
from talon_core.engine.planning import planned
from talon_core.engine.sequence import Sequence
from talon_core.errors import blaming
from talon_core.inquiry import Inquirer
from talon_core.rounds import Round, Span
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.runtime.transfers import sent
from talon_core.target import NodeDraws, Target
from talon_core.tree import IntArray, TokenTree, read_only


@attrs.frozen(eq=False)
class RoundParts:
    """What each round asks.

    Attributes:
        target: whose text it is.
        drafter: proposes tokens.
        rule: accepts them.
        spec: the drafter's options; None for plain decoding, and for a drafter that was given opened.
    """

    target: Target
    drafter: Drafter
    rule: AcceptanceRule
    spec: DrafterSpec | None = None

    @property
    def named(self) -> DrafterSpec | Drafter:
        """Whom errors of the drafter name: its options, or where there are none, itself."""
        return self.spec if self.spec is not None else self.asked

    @property
    def asked(self) -> Drafter:
        """The drafter itself, where another one stands before it."""
        return self.drafter.behind if isinstance(self.drafter, Preparer) else self.drafter

    def blaming(self, method: str) -> blaming:
        """Whatever goes wrong inside is an error of this method of the drafter."""
        return blaming("drafter", self.named, method)


class _Timed(AbstractContextManager[None]):
    """Notes how long it took to get through what is inside; a class and no generator, as a round enters several."""

    __slots__ = ("_now", "_part", "_start", "_to")

    def __init__(self, now: Callable[[], float], part: str, to: list[list[Span]]) -> None:
        self._now, self._part, self._to = now, part, to

    def __enter__(self) -> None:
        self._start = self._now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            span = Span(self._part, self._start, self._now())
            for spans in self._to:
                spans.append(span)


class Stages:
    """The stages of one round. Each goes on with the slots for which the ones before have worked.

    Args:
        parts: whom it asks.
        sequences: who takes part, by slot.
        faults: what fails.
        measured: is told what passes take.
        now: the clock, in seconds.
        costs: what passes take, for the allocator.
        allocator: shares a pass among the sequences; None verifies every tree as it is.
        machine: what the allocator has learnt of the machine.
    """

    def __init__(
        self,
        parts: RoundParts,
        sequences: Mapping[int, Sequence],
        faults: Faults,
        measured: MeasuredCosts,
        now: Callable[[], float] = perf_counter,
        costs: Costs | None = None,
        allocator: Allocator | None = None,
        machine: MutableMapping[str, Any] | None = None,
    ) -> None:
        self._parts = parts
        self._sequences = sequences
        self._faults = faults
        self._measured = measured
        self._now = now
        self._costs = costs if costs is not None else measured
        self._allocator = allocator
        self._machine = machine if machine is not None else {}
        self._spans: dict[int, list[Span]] = {slot: [] for slot in sequences}
        self._on_host: dict[int, str] = {}  # why rules are asked there, where the target can draw by itself

    def run(self) -> dict[int, Round]:
        """The round of each slot for which nothing has failed."""
        context = {slot: one.length for slot, one in self._sequences.items()}
        drafted = self._allocated(self._draft())
        asked = self._asked(drafted)
        accepted, committed, answers = self._verify(drafted, asked)
        emitted = self._emit(drafted, accepted)
        with self._faults.of([*emitted]), self._span("commit", emitted):
            self._parts.target.commit({slot: accepted[slot].path for slot in emitted if slot not in committed})
        hits = self._hits(emitted)
        self._tell(drafted, accepted, emitted, answers)
        added = {slot: one.added for slot, one in asked.items()}
        nodes = sum(len(drafted[slot].tree) + added.get(slot, 0) for slot in accepted)
        rounds = {}
        beside = self._beside(emitted)
        for slot in self._left(emitted):
            one = drafted[slot]
            rounds[slot] = Round(
                tree=one.tree.without_laws(),
                path=read_only(accepted[slot].path),
                tokens=read_only(emitted[slot]),
                drafted=None if one.drafted is one.tree else one.drafted.without_laws(),
                draft_passes=one.draft_passes,
                spans=tuple(sorted((*one.spans, *self._spans[slot], *beside[slot]), key=lambda span: span.start)),
                context=context[slot],
                sequences=len(accepted),
                inquired=added.get(slot, 0),
                nodes=nodes,
                hit=hits[slot],
                laws_on_host=self._sequences[slot].laws_on_host,
                on_host=self._on_host.get(slot),
            )
        return rounds

    def _hits(self, slots: Iterable[int]) -> dict[int, bool | None]:
        """Whether the beginnings of these slots' rounds were prepared, as `Round.hit` has it."""
        drafter = self._parts.drafter
        return {slot: drafter.hit(slot) if isinstance(drafter, Preparer) else None for slot in slots}

    def _beside(self, slots: Iterable[int]) -> dict[int, Iterable[Span]]:
        """What was done for these slots beside the stages."""
        drafter = self._parts.drafter
        return {slot: drafter.spans(slot) if isinstance(drafter, Preparer) else () for slot in slots}

    def _left(self, slots: Iterable[int]) -> list[int]:
        return [slot for slot in slots if slot not in self._faults]

    def _span(self, part: str, slots: Iterable[int]) -> "_Timed":
        """What is done inside is a part of these slots' rounds."""
        return _Timed(self._now, part, [self._spans[slot] for slot in slots])

    def _draft(self) -> dict[int, Drafted]:
        parts = self._parts
        wanted: list[Wanted] = []
        with self._faults.of(self._sequences):
            max_depth = checked_depth(parts.named, parts.drafter)
            layers = self._planned()
            for slot, one in self._sequences.items():
                limits = one.limits(parts.target.vocab_size, max_depth)
                if slot in layers:
                    limits = attrs.evolve(limits, max_depth=min(limits.max_depth, layers[slot]))
                wanted.append(Wanted(slot, one.policy, one.root, limits, one.policy_choices, one.length))
        return draft_trees(wanted, Offers(parts.drafter, parts.asked), self._faults, self._measured, self._now)

    def _planned(self) -> Mapping[int, int]:
        """The most layers that are drafted for each of some slots."""
        if not isinstance(self._allocator, Planner) or len(self._sequences) < 2:
            return {}
        free = {slot: one for slot, one in self._sequences.items() if one.takes_any_tree(self._parts.rule)}
        if not free:
            return {}
        next_round = NextRound(
            latest={slot: one.rounds[-1] if one.rounds else None for slot, one in free.items()},
            texts={slot: one.shared for slot, one in free.items()},
            machine=self._machine,
            batch=len(self._sequences),
            context=max(one.length for one in self._sequences.values()),
            costs=self._costs,
        )
        return planned(self._allocator, next_round)

    def _allocated(self, drafted: dict[int, Drafted]) -> dict[int, Drafted]:
        """What was drafted, with the trees as they are verified."""
        trees = {slot: drafted[slot].tree for slot in self._left(drafted)}
        if self._allocator is None or len(trees) < 2:
            return drafted
        free = frozenset(slot for slot in trees if self._sequences[slot].takes_any_tree(self._parts.rule))
        context = max(self._sequences[slot].length for slot in trees)
        drafting = sum(span.seconds for span in {span for slot in trees for span in drafted[slot].spans})
        cut: dict[int, TokenTree] = {}
        with self._faults.of(trees):
            cut = allocated(trees, free, self._allocator, self._costs, context, drafting)
        return drafted | {slot: attrs.evolve(drafted[slot], tree=tree) for slot, tree in cut.items()}

    def _asked(self, drafted: Mapping[int, Drafted]) -> dict[int, Asked]:
        """What the drafter asks beside the trees, of the slots where it asks something."""
        parts = self._parts
        asked: dict[int, Asked] = {}
        if not isinstance(parts.drafter, Inquirer):
            return asked
        for slot in self._left(drafted):
            with self._faults.of([slot]), self._span("draft", [slot]):
                deepest = self._sequences[slot].limits(parts.target.vocab_size, None).max_depth
                tree, size = drafted[slot].tree, parts.target.vocab_size
                one = inquired(parts.drafter, parts.named, slot, tree, deepest, size)
                if one is not None:
                    asked[slot] = one
        return asked

    def _verify(
        self, drafted: Mapping[int, Drafted], asked: Mapping[int, Asked]
    ) -> tuple[dict[int, Accepted], set[int], dict[int, IntArray]]:
        """What was accepted, by slot; the slots that are committed already; and what the drafter asked, answered."""
        parts = self._parts
        accepted: dict[int, Accepted] = {}
        answers: dict[int, IntArray] = {}
        ends_of = {slot: self._sequences[slot].greedy_ends(parts.rule) for slot in self._left(drafted)}
        greedy = {slot: ends for slot, ends in ends_of.items() if ends is not None}
        drawn = self._drawn({slot: asked.get(slot, drafted[slot]).tree for slot in ends_of if slot not in greedy})
        trees = {slot: drafted[slot].tree for slot in self._left(drafted)}
        if not trees:
            return accepted, set(), answers
        beside = {slot: one for slot, one in asked.items() if slot in trees}
        whole = {**trees, **{slot: one.tree for slot, one in beside.items()}}
        with self._faults.of(trees):
            self._prepare({slot: drafted[slot] for slot in trees})
            more: dict[str, Any] = {"unwalked": {slot: one.added for slot, one in beside.items()}} if beside else {}
            if drawn:
                more["drawn"] = drawn
            with self._span("verify", trees):
                verified = parts.target.verify(whole, greedy, **more)
            nodes, context = sum(map(len, whole.values())), max(self._sequences[slot].length for slot in trees)
            if not verified.prepared:
                self._measured.verified(nodes, context, len(trees), self._spans[next(iter(trees))][-1].seconds)
            for slot, found in verified.accepted.items():
                with self._faults.of([slot]):
                    accepted[slot] = self._sequences[slot].taken(found)
            for slot, outputs in verified.outputs.items():
                if slot in beside:
                    with self._faults.of([slot]), self._span("draft", [slot]):
                        answers[slot] = beside[slot].answers(outputs.logits)
                if slot in verified.accepted:
                    continue
                if parts.target.can_draw:
                    self._on_host.setdefault(slot, NOT_WALKED)
                with self._faults.of([slot]), self._span("accept", [slot]):
                    logits = outputs.logits
                    if slot in beside:
                        logits = logits[: len(trees[slot])]  # a rule sees nothing of what is beside its tree
                    chosen = self._sequences[slot].accept(parts.rule, trees[slot], logits)
                    features = outputs.features
                    if features is not None:
                        features = features.index_select(0, sent(chosen.path, features.device))
                    accepted[slot] = Accepted(chosen.path, chosen.token, features)
            return accepted, {*verified.accepted}, answers
        return accepted, set(), answers

    def _drawn(self, trees: Mapping[int, TokenTree]) -> dict[int, NodeDraws]:
        """How the target takes the tokens of these trees by itself; of the others it is noted why the rule is asked."""
        drawn: dict[int, NodeDraws] = {}
        for slot, tree in trees.items() if self._parts.target.can_draw else ():
            with self._faults.of([slot]):
                draws = self._sequences[slot].node_draws(self._parts.rule, tree)
                if isinstance(draws, str):
                    self._on_host[slot] = draws
                else:
                    drawn[slot] = draws
        return drawn

    def _prepare(self, drafted: Mapping[int, Drafted]) -> None:
        """Let the drafter go on while the target verifies, if it is one that does."""
        parts = self._parts
        if not isinstance(parts.drafter, Preparer):
            return
        trees = {}
        for slot, one in drafted.items():
            sequence = self._sequences[slot]
            limits = sequence.limits(parts.target.vocab_size, None)
            trees[slot] = Verifying(
                drafted=one.drafted,
                tree=one.tree,
                deepest=limits.max_depth,
                ends=limits.ends,
                vocab_size=limits.vocab_size,
                children=limits.children,
                policy=sequence.policy,
                costs=self._costs,
            )
        with parts.blaming("propose"), self._span("policy", trees):  # of which copies are made
            parts.drafter.verifying(trees)

    def _emit(self, drafted: Mapping[int, Drafted], accepted: Mapping[int, Accepted]) -> dict[int, IntArray]:
        emitted = {}
        for slot in self._left(accepted):
            with self._faults.of([slot]):
                emitted[slot] = self._sequences[slot].emit(drafted[slot].tree, accepted[slot])
        return emitted

    def _tell(
        self,
        drafted: Mapping[int, Drafted],
        accepted: Mapping[int, Accepted],
        emitted: Mapping[int, IntArray],
        answers: Mapping[int, IntArray],
    ) -> None:
        """Tell the drafter what was accepted, of the texts that go on."""
        told = {}
        for slot in self._left(emitted):
            if not self._sequences[slot].finished:
                tokens = emitted[slot]
                nodes = drafted[slot].drafted.follow(tokens[:-1])
                told[slot] = Committed(tokens.copy(), nodes, accepted[slot].features, answers.get(slot))
        if told:
            with self._faults.of(told), self._parts.blaming("commit"), self._span("draft", told):
                self._parts.drafter.commit(told)
