"""What a simulated schedule runs on: a machine for the target, one for the drafter, and what is between them."""

import attrs
from attrs.validators import ge

from talon_core.costs import Costs
from talon_core.drafter import DrafterSpec
from talon_core.trace.prices import costs_with


@attrs.frozen
class Machines:
    """What parts take, and where the drafter is.

    Attributes:
        target: what passes of the target take, and the rest of a round that is no drafting.
        drafter: what the drafter takes where it is; None where that is beside the target, by the same costs.
        transfer: seconds that a message between the two takes. There is one each way for what is prepared in a round,
            and one each way for a tree that is drafted while the target waits, or for each of its layers in turn and
            where it cannot be drafted whole.
        shared: how many times as long the target takes while the drafter works.
        drafter_shared: how many times as long the drafter takes while the target works.
    """

    target: Costs
    drafter: Costs | None = None
    transfer: float = attrs.field(default=0.0, validator=ge(0))
    shared: float = attrs.field(default=1.0, validator=ge(1))
    drafter_shared: float = attrs.field(default=1.0, validator=ge(1))

    def drafting_with(self, drafter: DrafterSpec | None) -> "Machines":
        """The same with a method's drafter, see `costs_with`."""
        there = None if self.drafter is None else costs_with(self.drafter, drafter)
        return attrs.evolve(self, target=costs_with(self.target, drafter), drafter=there)

    @property
    def drafting(self) -> Costs:
        """What the drafter takes."""
        return self.target if self.drafter is None else self.drafter

    @property
    def way(self) -> float:
        """Seconds of a message between the two; none where they are one."""
        return 0.0 if self.drafter is None else self.transfer

    @property
    def costs(self) -> Costs:
        """What policies are told: of the target by one, of the drafter by the other."""
        return self.target if self.drafter is None else Apart(self.target, self.drafter)


@attrs.frozen(eq=False)
class Apart(Costs):
    """Costs of a target here and of a drafter there.

    Attributes:
        here: of the target.
        there: of the drafter.
    """

    here: Costs
    there: Costs

    @property
    def fixed(self) -> bool:
        return self.here.fixed and self.there.fixed

    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        return self.here.verify(nodes, context, batch)

    def draft(self, rows: int, width: int) -> float | None:
        return self.there.draft(rows, width)

    def accept(self, nodes: int) -> float | None:
        return self.here.accept(nodes)

    def commit(self, tokens: int) -> float | None:
        return self.here.commit(tokens)

    def rest(self, rounds: int) -> float | None:
        return self.here.rest(rounds)

    def tell(self, tokens: int) -> float | None:
        return self.there.tell(tokens)

    def know(self, drafter: str) -> bool:
        return self.there.know(drafter)

    def read(self, tokens: int) -> float | None:
        return self.here.read(tokens)

    def catch_up(self, tokens: int) -> float | None:
        return self.there.catch_up(tokens)
