"""One round over some slots: draft, verify, accept, emit, commit, record. What fails for one ends that one alone."""

from collections import abc
from collections.abc import Iterable, Mapping
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any

import attrs
import numpy as np

from talon_core.choices import Foreseen
from talon_core.costs import Costs, MeasuredCosts
from talon_core.drafter import Ahead, Committed, Drafter, DrafterSpec
from talon_core.drawn import DrawnLater
from talon_core.engine.acceptors import Acceptors, Offered, told_numbers
from talon_core.engine.ahead.preparer import NOTHING_PREPARED, DrafterPreparations, Preparer
from talon_core.engine.checked_candidates import checked_law
from talon_core.engine.checked_drafter import (
    checked_ahead,
    checked_depth,
    checked_guessable,
    checked_likeliest,
    checked_ran_on,
    checked_rows,
    checked_sources,
)
from talon_core.engine.checked_policy import every_source
from talon_core.engine.clock import RoundClock
from talon_core.engine.devices import wait_for_target
from talon_core.engine.drafting import Drafted, Wanted, draft_trees
from talon_core.engine.faults import Faults
from talon_core.engine.inquiries import Asked, DrafterInquiries, Inquiries, answered
from talon_core.engine.offers import Offers
from talon_core.engine.sequence import Guessed, Sequence
from talon_core.engine.sharing import Sharing
from talon_core.engine.spans import SlotSpans
from talon_core.errors import blaming
from talon_core.inquiry import Inquirer
from talon_core.rounds import Round, Span
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.target import Behind, Further, Target
from talon_core.tree import IntArray, TokenTree, chain_of, read_only

NOT_ASKED = Guessed(True, 0.0)
"""Where the drafter has said that no guess may be likely enough."""


class RoundParts:
    """What each round asks. What the parts are and can do is looked at here, when an engine is made.

    Args:
        target: whose text it is.
        drafter: proposes tokens; perhaps one that stands before another and prepares while the target verifies.
        rule: accepts them.
        spec: the drafter's options; None for plain decoding, and for a drafter that was given opened.

    Attributes:
        asked: the drafter itself, where another one stands before it.
        named: whom errors of the drafter name: its options, or where there are none, itself.
        drafter_name: its name in the registry; empty where there are no options.
        offers: what it offers to growing trees.
        inquiries: what it asks beside them.
        preparations: what it prepares while the target verifies.
        acceptors: who accepts, as far as target and rule decide it.
        drafts_in_cache: as `Drafter.drafts_in_cache`.
        runs_on: whether the target may be told that rounds without a draft are to come.
        chains_on: whether the drafter may be told that trees to come are chains.
        foretold: whether the drafter may tell how likely its best guess is, where no pass is run for it.
        sources: as `Drafter.sources`; the engine empties it where the policy does not choose among them.

    Raises:
        PluginError: if what the drafter says of itself cannot be understood.
    """

    def __init__(self, target: Target, drafter: Drafter, rule: AcceptanceRule, spec: DrafterSpec | None = None) -> None:
        self.target, self.drafter, self.rule = target, drafter, rule
        self.asked = drafter.behind if isinstance(drafter, Preparer) else drafter
        self.named = self.asked if spec is None else spec
        self.drafter_name = "" if spec is None else spec.name
        told = self.named, target.vocab_size
        self.preparations = DrafterPreparations(drafter, *told) if isinstance(drafter, Preparer) else NOTHING_PREPARED
        self.inquiries = DrafterInquiries(drafter, *told) if isinstance(drafter, Inquirer) else Inquiries()
        self.offers = Offers(drafter, self.asked, self.preparations)
        self.acceptors = Acceptors(rule, target)
        with self.blaming("drafts_in_cache"):
            self.drafts_in_cache = bool(drafter.drafts_in_cache)
        self.sources = checked_sources(self.named, drafter)
        beside = isinstance(drafter, Inquirer) or self.preparations is not NOTHING_PREPARED
        self.runs_on = target.runs_on and not beside
        with self.blaming("runs_on"):
            self.chains_on = self.runs_on and bool(drafter.runs_on)
        self.foretold = self.runs_on and getattr(type(drafter), "likeliest", None) is not Drafter.likeliest

    def rows(self, rooms: Mapping[int, int]) -> int:
        """Rows of keys and values that target and drafter keep together where slots with so much room are open.

        Raises:
            PluginError: if the drafter fails to say so.
        """
        return self.target.rows(rooms) + checked_rows(self.named, self.drafter, rooms)

    def blaming(self, method: str) -> blaming:
        """Whatever goes wrong inside is an error of this method of the drafter."""
        return blaming("drafter", self.named, method)


class Stages:
    """The stages of one round. Each goes on with the slots for which the ones before have worked.

    Args:
        parts: whom it asks.
        sequences: who takes part, by slot.
        faults: what fails.
        measured: is told what passes take.
        costs: what they take, as the allocator and what is prepared are told.
        sharing: how the sequences share a pass.
        clock: tells when what begins and ends, in seconds.
        goes_on: whether the next round is likely to be of the same sequences, in the same session.

    Attributes:
        was_ahead: whether the passes of the round, the drafter's, too, were run ahead of it.
    """

    def __init__(
        self,
        parts: RoundParts,
        sequences: Mapping[int, Sequence],
        faults: Faults,
        measured: MeasuredCosts,
        costs: Costs,
        sharing: Sharing,
        clock: RoundClock,
        goes_on: bool = False,
    ) -> None:
        self._parts = parts
        self._sequences = sequences
        self._goes_on = goes_on and parts.runs_on
        self.was_ahead = False
        self._faults = faults
        self._measured = measured
        self._costs = costs
        # where nobody learns from its seconds, the launch of the target's pass is all that is waited for
        self._wait = partial(wait_for_target, parts.target) if measured is costs else _go_on
        self._sharing = sharing
        self._clock = clock
        self._spans = SlotSpans(sequences, clock)
        self._ahead: Ahead | None = None  # what was run ahead for this round, if its policy need not be asked
        self._verified: list[TokenTree] = []  # all that were in the pass, with what was added to them
        self._guessing = 0.0  # seconds that the drafter took for guesses while passes were run ahead
        self._placing = 0.0  # those of them in which it said where it may have any, while no round has them

    def prepare(self, nodes: int) -> None:
        """Before somebody's first round: let the target make what rounds like those to come need once.

        Args:
            nodes: up to how many a tree will have.
        """
        offered = self._offered({slot: TokenTree.root(one.root) for slot, one in self._sequences.items()})
        with self._faults.of(self._sequences):
            self._parts.target.prepare(self._left(self._sequences), nodes, offered.greedy, offered.drawn)

    def run(self) -> dict[int, Round]:
        """The round of each slot for which nothing has failed."""
        context = {slot: one.length for slot, one in self._sequences.items()}
        self._run_on()
        drafted = self._allocated(self._draft())
        asked = self._parts.inquiries.beside(drafted, self._sequences, self._faults, self._spans)
        accepted, committed, answers = self._verify(drafted, asked)
        emitted = self._emit(drafted, accepted)
        with self._faults.of([*emitted]), self._spans.of("commit", emitted):
            self._parts.target.commit({slot: accepted[slot].path for slot in emitted if slot not in committed})
        preparations = self._parts.preparations
        hits = {slot: preparations.hit(slot) for slot in emitted}
        self._tell(drafted, accepted, emitted, answers)
        added = {slot: one.added for slot, one in asked.items()}
        nodes = sum(map(len, self._verified))
        rounds = {}
        beside = {slot: preparations.spans(slot) for slot in emitted}
        for slot in self._left(emitted):
            one = drafted[slot]
            rounds[slot] = Round(
                tree=one.tree.without_laws(),
                path=read_only(accepted[slot].path),
                tokens=read_only(emitted[slot]),
                drafted=None if one.drafted is one.tree else one.drafted.without_laws(),
                draft_passes=one.draft_passes,
                spans=tuple(sorted((*one.spans, *self._spans[slot], *beside[slot]), key=attrgetter("start"))),
                context=context[slot],
                sequences=len(self._verified),
                inquired=added.get(slot, 0),
                nodes=nodes,
                hit=hits[slot],
                laws_on_host=accepted[slot].laws_on_host,
                on_host=None if slot in committed else self._sequences[slot].acceptor.on_host,
            )
        return rounds

    def _left(self, slots: Iterable[int]) -> list[int]:
        return [slot for slot in slots if slot not in self._faults]

    def _run_on(self) -> None:
        """Where a sequence is alone and its trees to come are known to be chains, let their passes be run ahead."""
        parts = self._parts
        if not (parts.chains_on and self._is_alone()):
            return
        ((slot, one),) = self._sequences.items()
        if one.resting or one.source is not every_source:
            return
        with self._faults.of([slot]):
            with parts.blaming("is_ahead"):
                ahead = parts.drafter.is_ahead(slot)
            if ahead:
                self._take(slot, one)
                return
            ends = one.request.eos
            chains = one.chains() if one.acceptor.foreseen and one.root not in ends else None
            if chains is None:
                return
            draws = self._offered({slot: TokenTree.root(one.root)}).drawn.get(slot)
            if slot in self._faults:
                return
            more: dict[str, Any] = {}
            if chains.drawn is not None:
                drafts = one.policy_choices
                if one.follow is None or not one.acceptor.tests_chains or not isinstance(drafts, Foreseen):
                    return
                if drafts is one.choices:  # the same numbers would draw tokens and test them
                    return
                more["drafts"] = partial(told_numbers, drafts)
            started = self._clock()
            with parts.blaming("run_on"):
                given = parts.drafter.run_on(slot, chains, one.deepest + 1, ends, draws, **more)
            ran = checked_ran_on(parts.named, given)
            if ran.reading is not None:
                self._measured.caught_up(ran.reading.tokens, ran.reading.seconds)
                ended = min(started + ran.reading.seconds, self._clock())
                self._spans[slot].append(Span("draft", started, ended, "reading"))
            if ran.seconds:
                one.drawn_ahead = chains.drawn is not None
                self._clock.ran_ahead(ran.seconds)
                self._take(slot, one)

    def _is_alone(self) -> bool:
        """Whether passes may be run ahead of the rounds of a sequence that is alone."""
        return self._goes_on and len(self._sequences) == 1

    def _take(self, slot: int, one: Sequence) -> None:
        """Take what was run ahead for this round, where the policy need not be asked for its tree."""
        if one.follow is not None:
            with self._parts.blaming("ahead"):
                ahead = self._parts.drafter.ahead(slot)
            told = self._parts.target.vocab_size, one.most_drafted, one.drawn_ahead
            self._ahead = checked_ahead(self._parts.named, ahead, *told)

    def _drafted_ahead(self, ahead: Ahead) -> dict[int, Drafted]:
        """The tree that was run ahead, and what its layers took."""
        ((slot, one),), now = self._sequences.items(), self._clock
        one.guessed.clear()
        spans = []
        for layer, seconds in enumerate(ahead.seconds):
            start = now()
            now.goes_on(seconds)
            spans.append(Span("draft", start, now(), "layer", layer))
        one.drafted_at = one.length
        with self._faults.of([slot]):
            assert one.follow is not None
            start, nodes, draws = now(), len(ahead.drafted), ahead.draws
            if draws is None:
                tree = chain_of([one.root, *ahead.drafted], ahead.logp[:nodes, 0])
            else:
                assert isinstance(one.policy_choices, Foreseen)
                one.policy_choices.used(nodes)
                check = partial(checked_law, self._parts.named, vocab_size=self._parts.target.vocab_size)
                drawn = DrawnLater(ahead.drafted, draws.logp, draws.law, check)
                tree = chain_of([one.root, *ahead.drafted], np.array(draws.logp), drawn if nodes else {})
            one.follow(ahead.logp, nodes)
            spans.append(Span("policy", start, now(), "grow", len(ahead.seconds) - 1))
            return {slot: Drafted(tree, tree, len(ahead.seconds), tuple(spans))}
        return {}

    def _draft(self) -> dict[int, Drafted]:
        if self._ahead is not None:
            return self._drafted_ahead(self._ahead)
        parts = self._parts
        wanted: list[Wanted] = []
        alone: dict[int, Drafted] = {}
        with self._faults.of(self._sequences):
            max_depth = checked_depth(parts.named, parts.drafter)
            layers = self._sharing.layers(self._sequences, self._costs) if len(self._sequences) > 1 else {}
            for slot, one in self._sequences.items():
                guess = self._guessed(slot, one)
                if one.resting:
                    one.resting -= 1
                    alone[slot] = _root_alone(one)
                    continue
                if guess.overlooked if guess else self._overlooks(slot, one):
                    alone[slot] = _root_alone(one)
                    continue
                limits = one.limits(parts.target.vocab_size, max_depth)
                if slot in layers:
                    limits = attrs.evolve(limits, max_depth=min(limits.max_depth, layers[slot]))
                own = one.policy_choices, one.length, one.growers, one.source, one.unheard
                wanted.append(Wanted(slot, one.policy, one.root, limits, *own))
        if not wanted:
            return alone
        parts.preparations.drafting(wanted)
        drafted = draft_trees(wanted, parts.offers, self._faults, self._measured, self._clock)
        for slot, tree in drafted.items():
            if tree.was_asked_for:
                self._sequences[slot].drafted_at = self._sequences[slot].length
        return drafted | alone

    def _allocated(self, drafted: dict[int, Drafted]) -> dict[int, Drafted]:
        """What was drafted, with the trees as they are verified."""
        left = {slot: drafted[slot] for slot in self._left(drafted)}
        cut: Mapping[int, TokenTree] = {}
        if len(left) > 1:
            with self._faults.of(left):
                cut = self._sharing.trees(left, self._sequences, self._costs)
        return drafted | {slot: attrs.evolve(drafted[slot], tree=tree) for slot, tree in cut.items()}

    def _verify(
        self, drafted: Mapping[int, Drafted], asked: Mapping[int, Asked]
    ) -> tuple[dict[int, Accepted], set[int], dict[int, IntArray]]:
        """What was accepted, by slot; the slots that are committed already; and what the drafter asked, answered."""
        parts = self._parts
        accepted: dict[int, Accepted] = {}
        answers: dict[int, IntArray] = {}
        trees = {slot: asked[slot].tree if slot in asked else drafted[slot].tree for slot in self._left(drafted)}
        offered = self._offered(trees)
        left = {slot: drafted[slot] for slot in self._left(trees)}
        if not left:
            return accepted, set(), answers
        more: dict[str, Any] = {"drawn": offered.drawn} if offered.drawn else {}
        added = {slot: asked[slot].added for slot in left if slot in asked}
        if added:
            more["unwalked"] = added
        further = self._further(left, offered) if self._goes_on else None
        if further is not None:
            more["further"] = further
        with self._faults.of(left):
            parts.preparations.begin(left, self._sequences, self._costs, self._spans)
            trees = {slot: trees[slot] for slot in left}
            self._verified = [*trees.values()]
            with self._spans.of("verify", left):
                start = self._clock()
                verified = parts.target.verify(trees, offered.greedy, **more)
                if not (verified.prepared or verified.accepted):  # a target that has walked has waited
                    self._wait()
                seconds = self._clock.verified(verified, start, self._guessing)
            self.was_ahead = verified.seconds is not None
            if further is not None and further.wanted is not None:
                for slot in left:
                    self._not_asked(self._sequences[slot], verified.passes - 1)
            nodes, context = sum(map(len, trees.values())), max(self._sequences[slot].length for slot in left)
            if not verified.prepared:
                self._measured.verified(nodes, context, len(left), seconds)
            for slot, found in verified.accepted.items():
                with self._faults.of([slot]):
                    accepted[slot] = self._sequences[slot].taken(found)
            if added:
                asking = {slot: asked[slot] for slot in verified.outputs if slot in added}
                with self._faults.of(asking), self._spans.of("draft", asking, "answers"):
                    answers = answered(asking, {slot: verified.outputs[slot].logits for slot in asking})
            for slot, outputs in verified.outputs.items():
                tree = left[slot].tree
                if slot in added:
                    outputs = attrs.evolve(outputs, logits=outputs.logits[: len(tree)])  # which is all that rules see
                if slot not in verified.accepted:
                    with self._faults.of([slot]), self._spans.of("accept", [slot]):
                        accepted[slot] = self._sequences[slot].accept(parts.rule, tree, outputs)
            return accepted, {*verified.accepted}, answers
        return accepted, set(), answers

    def _level(self, one: Sequence) -> float | None:
        """How likely the drafter's best guess has to be for anything to be drafted; None where that is not known."""
        if not (self._parts.foretold and self._is_alone() and one.source is every_source):
            return None
        return one.overlooks() if one.ends_by_tokens and one.acceptor.foreseen else None

    def _is_below(self, slot: int, level: float, tokens: abc.Sequence[int]) -> bool:
        """Whether the drafter's best guess behind a root, and tokens that may follow it, is less likely than that."""
        parts = self._parts
        with parts.blaming("likeliest"):
            given = parts.drafter.likeliest(slot, tokens)
        best = checked_likeliest(parts.named, given)
        return best is not None and best < level

    def _guessable(self, slot: int, level: float) -> Behind | None:
        """Where a guess may be likely enough; what it takes to say so is a part of the next round."""
        if level == -inf:
            return None
        parts, start = self._parts, self._clock()
        with parts.blaming("guessable"):
            given = parts.drafter.guessable(slot, level)
        found = checked_guessable(parts.named, given)
        self._placing = self._clock() - start
        self._guessing += self._placing
        return found

    def _further(self, left: Mapping[int, Drafted], offered: Offered) -> Further | None:
        """The rounds behind this one in which all of these are walked through their roots alone, as far as known."""
        foreseen = sum(one.ahead is not None for one in offered.drawn.values())
        if len(left) not in (len(offered.greedy), foreseen) or any(len(one.drafted) > 1 for one in left.values()):
            return None
        found = []
        for slot in left:
            with self._faults.of([slot]):
                found.append(self._further_of(slot, self._sequences[slot]))
        least = min(found, key=attrgetter("rounds"), default=None)
        return least if least is not None and least.rounds else None

    def _further_of(self, slot: int, one: Sequence) -> Further:
        """As `_further`, of one sequence; perhaps none."""
        alone = max(one.alone, sum(guess.overlooked for guess in one.guessed))
        level = None if alone or one.guessed else self._level(one)
        if level is None:
            return Further(alone)
        wanted = partial(self._overlooks_further, slot, one, level)
        return Further(one.deepest, wanted, partial(self._guessable, slot, level))

    def _overlooks_further(self, slot: int, one: Sequence, level: float, new: abc.Sequence[int]) -> bool:
        """Whether nothing will be drafted behind some new tokens; that is not asked again in its round."""
        start = self._clock()
        overlooked = self._is_below(slot, level, [one.root, *new])
        seconds = self._clock() - start
        self._guessing += seconds
        self._not_asked(one, len(new) - 1)
        one.guessed.append(self._placed(Guessed(overlooked, seconds)))
        return overlooked

    def _not_asked(self, one: Sequence, rounds: int) -> None:
        """Of the next so many rounds, those that the drafter was not asked about are such that no guess is likely."""
        for _ in range(rounds - len(one.guessed)):
            one.guessed.append(self._placed(NOT_ASKED))

    def _placed(self, guess: Guessed) -> Guessed:
        """With what it took to say at which places the drafter is asked, of the first round of those."""
        placing, self._placing = self._placing, 0.0
        return attrs.evolve(guess, seconds=guess.seconds + placing) if placing else guess

    def _overlooks(self, slot: int, one: Sequence) -> bool:
        """Whether nothing is drafted in a round, as no guess is likely enough."""
        level = self._level(one)
        if level is None:
            return False
        with self._spans.of("draft", [slot], "guess"):
            return self._is_below(slot, level, [one.root])

    def _guessed(self, slot: int, one: Sequence) -> Guessed | None:
        """What the drafter has told of its best guess before the round came; None where it has not, or in company."""
        if len(self._sequences) > 1:
            one.guessed.clear()
        if not one.guessed:
            return None
        guess = one.guessed.popleft()
        if guess.seconds:
            with self._spans.of("draft", [slot], "guess"):
                self._clock.goes_on(guess.seconds)
        return guess

    def _offered(self, trees: Mapping[int, TokenTree]) -> Offered:
        """Of which of these trees the target may choose the path by itself."""
        offered = Offered()
        for slot, tree in trees.items():
            with self._faults.of([slot]):
                self._sequences[slot].acceptor.offer(slot, tree, offered)
        return offered

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
            with self._faults.of(told), self._parts.blaming("commit"), self._spans.of("draft", told, "commit"):
                self._parts.drafter.commit(told)


def _root_alone(one: Sequence) -> Drafted:
    """The tree of a round for which neither policy nor drafter is asked."""
    root = TokenTree.root(one.root)
    return Drafted(root, root, 0, ())


def _go_on() -> None:
    """Wait for nothing."""
