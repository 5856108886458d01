"""Growing draft trees: asks the policies, asks the drafter, and checks both of them at every step."""

from collections.abc import Callable, Sequence
from time import perf_counter

import attrs

from talon_core.choices import Choices
from talon_core.costs import MeasuredCosts
from talon_core.drafter import Drafter, Frontier
from talon_core.engine.faults import Faults
from talon_core.engine.growing import DraftLimits, Growing
from talon_core.engine.offers import Offers
from talon_core.policy import TreePolicy
from talon_core.rounds import Span
from talon_core.tree import TokenTree

__all__ = ["DraftLimits", "Drafted", "Wanted", "draft_tree", "draft_trees"]


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


@attrs.frozen(eq=False)
class Wanted:
    """A tree that is to be drafted.

    Attributes:
        slot: of the sequence.
        policy: its own.
        root: its last committed token.
        limits: what bounds the tree besides its policy.
        choices: the policy's randomness.
    """

    slot: int
    policy: TreePolicy
    root: int
    limits: DraftLimits
    choices: Choices


def draft_trees(
    wanted: Sequence[Wanted],
    offers: Offers,
    faults: Faults,
    measured: MeasuredCosts,
    now: Callable[[], float] = perf_counter,
) -> dict[int, Drafted]:
    """Draft one tree for each of some sequences, layer by layer, together.

    Args:
        wanted: each of another slot.
        offers: of a drafter that has been told everything committed so far.
        faults: gets what fails: an error of a policy, or in what the drafter offers it, ends its own tree alone.
        measured: is told what layers take.
        now: the clock, in seconds.

    Returns:
        The finished trees, by slot.
    """
    growing: dict[int, Growing] = {}
    for tree in wanted:
        with faults.of([tree.slot]):
            growing[tree.slot] = Growing(tree.policy, tree.root, tree.limits, now)
    choices = {tree.slot: tree.choices for tree in wanted}
    passes = 0
    layers: dict[int, list[Span]] = {slot: [] for slot in growing}  # of the drafter
    while True:
        asked: list[Frontier] = []
        for slot, own in growing.items():
            if len(own.frontier) and slot not in faults:
                try:  # and no `faults.of`, which takes longer than all else here
                    frontier, width = own.frontier, own.width()
                except Exception as error:
                    faults[slot] = error
                    continue
                if width:
                    asked.append(Frontier(slot, own.tree, frontier, width))
        if not asked:
            break
        started = now()
        try:
            offered, count = offers.ask(asked, [growing[one.slot].shown_draws for one in asked])
        except Exception as error:
            faults.update((one.slot, error) for one in asked)
            continue
        layer = Span("draft", started, now())
        passes += count
        measured.drafted(sum([len(one.nodes) for one in asked]), max([one.width for one in asked]), layer.seconds)
        for one, candidates in zip(asked, offered, strict=True):
            own = growing[one.slot]
            layers[one.slot].append(layer)
            try:
                own.grow(offers.checked(candidates, one, own.limits.vocab_size), choices[one.slot])
            except Exception as error:
                faults[one.slot] = error
    drafted = {}
    for slot, own in growing.items():
        with faults.of([slot]):
            if slot not in faults:
                finished = own.finish()
                drafted[slot] = Drafted(finished, own.tree, passes, (*layers[slot], *own.spans))
    return drafted


def draft_tree(
    policy: TreePolicy,
    drafter: Drafter,
    root: int,
    limits: DraftLimits,
    choices: Choices,
    measured: MeasuredCosts | None = None,
    offers: Callable[[Drafter], Offers] = Offers,
) -> Drafted:
    """`draft_trees` for a single sequence, in slot 0.

    Raises:
        PluginError: if the policy or the drafter breaks its contract; the message names it.
    """
    faults = Faults()
    told = MeasuredCosts() if measured is None else measured
    drafted = draft_trees([Wanted(0, policy, root, limits, choices)], offers(drafter), faults, told)
    if faults:
        raise faults[0]
    return drafted[0]
