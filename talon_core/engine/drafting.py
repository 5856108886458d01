"""Growing draft trees: asks the policies, asks the drafter, and checks both of them at every step."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from time import perf_counter

import attrs

from talon_core.choices import Choices
from talon_core.costs import MeasuredCosts
from talon_core.drafter import Drafter, Frontier, Proposed
from talon_core.drawn import Drawn
from talon_core.engine.checked_policy import every_source
from talon_core.engine.clock import RoundClock
from talon_core.engine.faults import Faults
from talon_core.engine.growing import DraftLimits, Growing
from talon_core.engine.growing_slots import GrowingSlots
from talon_core.engine.offers import Offers
from talon_core.forest_learner import Together, as_one, go_together
from talon_core.policy import TreePolicy
from talon_core.rounds import Span
from talon_core.tree import TokenTree

__all__ = ["DraftLimits", "Drafted", "Wanted", "draft_tree", "draft_trees"]


TOGETHER = 16
"""Trees that are grown together at least: fewer take no longer one by one."""

FEW_HEARD = 8
"""Tokens of a sequence that a drafter hears of with a layer. With more of them, as after a pause, it is no layer like
others: whoever takes its time for theirs finds that drafting does not pay, and pauses the more."""


@attrs.frozen(eq=False)
class Drafted:
    """A finished tree and what it took.

    Attributes:
        tree: what is sent to the target.
        drafted: the tree as it was drafted, before `TreePolicy.finish` selected from it.
        draft_passes: forward passes of a draft model, shared by all that were drafted with it.
        spans: of the drafter, likewise, and of this sequence's policy, the checks included.
    """

    tree: TokenTree
    drafted: TokenTree
    draft_passes: int = 0
    spans: tuple[Span, ...] = ()

    @property
    def was_asked_for(self) -> bool:
        """Whether somebody wanted a layer of it, whatever the drafter knew, and whether or not it was prepared."""
        return any(span.work == "layer" for span in self.spans)


@attrs.frozen(eq=False)
class Wanted:
    """A tree that is to be drafted.

    Attributes:
        slot: of the sequence.
        policy: its own.
        root: its last committed token.
        limits: what bounds the tree besides its policy.
        choices: the policy's randomness.
        context: its committed tokens.
        growers: the policy, if it can be asked together with others, as `checked_growers` says; otherwise nothing.
        source: which of `Drafter.sources` is asked; None for all together. It is called once.
        unheard: tokens that were committed since a layer was last asked for; 0 before the first one.
    """

    slot: int
    policy: TreePolicy
    root: int
    limits: DraftLimits
    choices: Choices
    context: int = 1
    growers: Sequence[Together] = ()
    source: Callable[[], int | None] = every_source
    unheard: int = 0


def draft_trees(
    wanted: Sequence[Wanted],
    offers: Offers,
    faults: Faults,
    measured: MeasuredCosts,
    now: Callable[[], float] = perf_counter,
    fewest: int = TOGETHER,
) -> dict[int, Drafted]:
    """Draft one tree for each of some sequences, layer by layer, together.

    Args:
        wanted: each of another slot.
        offers: of a drafter that has been told everything committed so far.
        faults: gets what fails: an error of a policy, or in what the drafter offers it, ends its own tree alone.
        measured: is told what layers take.
        now: the clock, in seconds.
        fewest: with so many policies or more that can be asked together, their trees grow together.

    Returns:
        The finished trees, by slot.
    """
    together = _together(wanted, fewest, faults, now)
    shared = {slot for group in together for slot in group.slots}
    growing: dict[int, Growing] = {}
    sources: dict[int, int | None] = {}
    for tree in wanted:
        if tree.slot not in shared:
            with faults.of([tree.slot]):
                sources[tree.slot] = tree.source()
                growing[tree.slot] = Growing(tree.policy, tree.root, tree.limits, now)
    choices = {tree.slot: tree.choices for tree in wanted}
    unheard = {tree.slot: tree.unheard for tree in wanted}
    passes = 0
    layers: dict[int, list[Span]] = {tree.slot: [] for tree in wanted}  # of the drafter
    for number in count():
        asked: list[Frontier] = []
        for slot, own in growing.items():
            if len(own.frontier) and slot not in faults:
                try:  # and no `faults.of`, which takes longer than all else here
                    frontier, width = own.frontier, own.width()
                except Exception as error:
                    faults[slot] = error
                    continue
                if width:
                    asked.append(Frontier(slot, own.tree, frontier, width, sources[slot]))
        alone, groups = len(asked), _asked_together(together, asked, faults)
        if not asked:
            break
        asking = _Asking(now)
        try:
            draws = [growing[one.slot].shown_draws if one.slot in growing else NO_DRAWS for one in asked]
            proposed = offers.ask(asked, draws)
        except Exception as error:
            faults.update((one.slot, error) for one in asked)
            continue
        if proposed.ran_in and isinstance(now, RoundClock):
            now.goes_on(proposed.ran_in)
        took = asking.answered(proposed, number)
        passes += proposed.draft_passes
        heard = sum(unheard.pop(one.slot, 0) for one in asked)
        _measure(measured, asked, proposed, asking.seconds, offers.is_a_layer, heard)
        for one in asked:
            layers[one.slot] += took
        for one, candidates in zip(asked[:alone], proposed.candidates, strict=False):
            own = growing[one.slot]
            try:
                own.grow(offers.checked(candidates, one, own.limits.vocab_size), choices[one.slot])
            except Exception as error:
                faults[one.slot] = error
        for group, places in groups:
            with faults.of(group.slots):
                group.take(proposed.candidates[places], asked[places], offers, faults)
    drafted = {}
    for slot, own in growing.items():
        with faults.of([slot]):
            if slot not in faults:
                finished = own.finish()
                drafted[slot] = Drafted(finished, own.tree, passes, (*layers[slot], *own.spans))
    for group in together:
        if not faults.keys() >= {*group.slots}:
            with faults.of(group.slots):
                finished_trees = group.finish(faults)
                group.hand_back()
                for slot, (finished, whole) in finished_trees.items():
                    drafted[slot] = Drafted(finished, whole, passes, (*layers[slot], *group.spans))
    return drafted


NO_DRAWS: Mapping[int, Drawn] = {}


class _Asking:
    """A drafter is being asked for a layer, from now on.

    Args:
        now: the clock, in seconds.

    Attributes:
        seconds: that it took.
    """

    __slots__ = ("_began", "_now", "_started", "seconds")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._began, self._started = now, perf_counter(), now()

    def answered(self, proposed: Proposed, number: int) -> list[Span]:
        """It has answered just now: what that took, with what it had to read before as a span of its own.

        That is told by the drafter's own clock. It takes as large a part of the whole as it does by that.

        Args:
            proposed: the answer.
            number: of the layer, from 0.
        """
        ended = self._now()
        began, self.seconds = self._started, ended - self._started
        spans = []
        if proposed.reading is not None:
            whole = perf_counter() - self._began
            began += self.seconds * min(proposed.reading.seconds / whole, 1.0) if whole > 0 else 0.0
            spans.append(Span("draft", self._started, began, "reading"))
        return [*spans, Span("draft", began, ended, "layer", number)]


def _measure(
    measured: MeasuredCosts,
    asked: Sequence[Frontier],
    proposed: Proposed,
    seconds: float,
    is_a_layer: bool,
    heard: int,
) -> None:
    """Tell what an answer took: the layer, and what the drafter has read before, apart.

    Args:
        measured: is told.
        asked: the frontiers.
        proposed: the answer to them.
        seconds: that it took.
        is_a_layer: as `Offers.is_a_layer`.
        heard: tokens that the drafter has heard of with it, or read before.
    """
    reading = proposed.reading
    source, *others = {one.source for one in asked}
    if reading is not None:
        measured.caught_up(reading.tokens, reading.seconds, None if others else source)
        seconds = max(seconds - reading.seconds, 0.0)
        heard -= reading.tokens
    if is_a_layer and not (proposed.prepared or proposed.ran_in) and heard <= FEW_HEARD * len(asked):
        rows, width = sum([len(one.nodes) for one in asked]), max([one.width for one in asked])
        if source is None and not others:
            measured.drafted(rows, width, seconds)
        elif source is not None and not others:  # what each of several sources has taken is not known
            measured.drafted_alone(source, rows, width, seconds)


def _together(wanted: Sequence[Wanted], fewest: int, faults: Faults, now: Callable[[], float]) -> list[GrowingSlots]:
    """Those sequences whose policies can be asked together, where they are many."""
    if len(wanted) < fewest:
        return []
    groups: list[list[tuple[Together, Wanted]]] = []
    for one in wanted:
        for grower in one.growers:
            with faults.of([one.slot]):
                own = grower, one
                group = next((group for group in groups if _alike(own, group[0])), None)
                if group is None:
                    groups.append([own])
                else:
                    group.append(own)
    found = []
    for group in groups:
        if len(group) >= fewest:
            policies, members = zip(*group, strict=True)
            names = "slot", "root", "context", "limits"
            slots, roots, contexts, limits = ([getattr(one, name) for one in members] for name in names)
            with faults.of(slots):
                started = now()
                found.append(GrowingSlots(as_one(policies), slots, roots, contexts, limits, now))
                found[-1].spent(started, "begin")
    return found


def _alike(one: tuple[Together, Wanted], other: tuple[Together, Wanted]) -> bool:
    mine, theirs = one[1].limits, other[1].limits
    same = (mine.vocab_size, mine.ends, mine.children) == (theirs.vocab_size, theirs.ends, theirs.children)
    return same and go_together(one[0], other[0])


def _asked_together(
    together: Sequence[GrowingSlots], asked: list[Frontier], faults: Faults
) -> list[tuple[GrowingSlots, slice]]:
    """Add what is asked for those that grow together, and tell where it stands."""
    places = []
    for group in together:
        if not faults.keys() >= {*group.slots}:
            with faults.of(group.slots):
                own = group.asked(faults)
                places += [(group, slice(len(asked), len(asked) + len(own)))] if own else []
                asked += own
    return places


def draft_tree(
    policy: TreePolicy,
    drafter: Drafter,
    root: int,
    limits: DraftLimits,
    choices: Choices,
    measured: MeasuredCosts | None = None,
    offers: Callable[[Drafter], Offers] = Offers,
    now: Callable[[], float] = perf_counter,
) -> Drafted:
    """`draft_trees` for a single sequence, in slot 0, whose policy has no sources to choose from.

    Raises:
        PluginError: if the policy or the drafter breaks its contract; the message names it.
    """
    own, asking = Growing(policy, root, limits, now), offers(drafter)
    passes, layers, number = 0, list[Span](), 0
    while (asked := own.asked()) is not None:
        one = _Asking(now)
        proposed = asking.ask([asked], [own.shown_draws])
        layers += one.answered(proposed, number)
        passes, number = passes + proposed.draft_passes, number + 1
        if measured is not None:
            _measure(measured, [asked], proposed, one.seconds, asking.is_a_layer, 0)
        own.grow(asking.checked(proposed.candidates[0], asked, limits.vocab_size), choices)
    return Drafted(own.finish(), own.tree, passes, (*layers, *own.spans))
