"""How sequences share a pass of the target, as the stages of a round ask it: settled by what the allocator can do."""

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from talon_core.allocation import Allocator, NextRound, Planner
from talon_core.costs import Costs
from talon_core.engine.allocation import allocated
from talon_core.engine.planning import planned
from talon_core.errors import check_made_of
from talon_core.rounds import seconds_together
from talon_core.tree import TokenTree

if TYPE_CHECKING:
    from talon_core.engine.drafting import Drafted
    from talon_core.engine.sequence import Sequence


class Sharing:
    """How sequences share a pass: here each of them drafts, and has verified, what its policy says."""

    def layers(self, sequences: "Mapping[int, Sequence]", costs: Costs) -> Mapping[int, int]:
        """The most layers that are drafted for each of some sequences; for the others their policies decide.

        Args:
            sequences: that have a round together, by slot, at least two.
            costs: what passes take.
        """
        return {}

    def trees(
        self, drafted: "Mapping[int, Drafted]", sequences: "Mapping[int, Sequence]", costs: Costs
    ) -> Mapping[int, TokenTree]:
        """The trees that are verified in the place of those that were drafted.

        Args:
            drafted: what was drafted, by slot, for at least two.
            sequences: what is decoded, by slot.
            costs: what passes take.
        """
        return {}


class AllocatedSharing(Sharing):
    """An allocator says how many nodes each tree keeps.

    Args:
        allocator: it.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def trees(
        self, drafted: "Mapping[int, Drafted]", sequences: "Mapping[int, Sequence]", costs: Costs
    ) -> Mapping[int, TokenTree]:
        trees = {slot: one.tree for slot, one in drafted.items()}
        free = frozenset(slot for slot in drafted if sequences[slot].acceptor.any_tree)
        context = max(sequences[slot].length for slot in drafted)
        drafting = seconds_together(one.spans for one in drafted.values())
        return allocated(trees, free, self._allocator, costs, context, drafting)


class PlannedSharing(AllocatedSharing):
    """A planner also says how deep is drafted.

    Args:
        planner: it.
        machine: what it has learnt of the machine.
    """

    def __init__(self, planner: Planner, machine: MutableMapping[str, Any]) -> None:
        super().__init__(planner)
        self._planner, self._machine = planner, machine

    def layers(self, sequences: "Mapping[int, Sequence]", costs: Costs) -> Mapping[int, int]:
        free = {slot: one for slot, one in sequences.items() if one.acceptor.any_tree}
        if not free:
            return {}
        next_round = NextRound(
            latest={slot: one.rounds[-1] if one.rounds else None for slot, one in free.items()},
            texts={slot: one.shared for slot, one in free.items()},
            machine=self._machine,
            batch=len(sequences),
            context=max(one.length for one in sequences.values()),
            costs=costs,
        )
        return planned(self._planner, next_round)


def sharing_of(allocator: Allocator | None, machine: MutableMapping[str, Any]) -> Sharing:
    """How sequences share passes with an allocator.

    Args:
        allocator: it; None verifies every tree as its policy has made it.
        machine: a place for what it learns of the machine.

    Raises:
        ValueError: if it is no allocator.
    """
    if allocator is None:
        return Sharing()
    check_made_of(Allocator, "the allocator", allocator)
    return PlannedSharing(allocator, machine) if isinstance(allocator, Planner) else AllocatedSharing(allocator)
