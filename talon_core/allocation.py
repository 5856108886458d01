"""The interfaces that share a pass among sequences: how deep each drafts, and how many nodes it gets."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping
from typing import Any

import attrs

from talon_core.costs import Costs
from talon_core.rounds import Round
from talon_core.tree import FloatArray


@attrs.frozen(eq=False)
class SharedPass:
    """What several sequences would have verified in one pass of the target.

    Attributes:
        path_logp: by slot, the drafter's natural log-probabilities of the paths to its drafted nodes, falling, at most
            0, shape `(drafted,)`, float64. Slots whose trees are verified as they are have no entry.
        nodes: that are verified in any case: the roots, and the trees that are verified as they are. What a drafter
            asks about beside the trees (`Inquirer`) is known later, and not counted.
        tokens: that the pass is expected to emit of those.
        batch: sequences that share the pass, at least 2.
        context: committed tokens of the longest text.
        drafting: seconds that drafting took for all of them together.
        costs: what passes take on this machine; it may know nothing yet.
    """

    path_logp: Mapping[int, FloatArray]
    nodes: int
    tokens: float
    batch: int
    context: int
    drafting: float
    costs: Costs


class Allocator(ABC):
    """Shares the nodes of a pass among the sequences that take part in it, beside any policy.

    A policy makes its tree for a sequence that is alone. Where several share a pass, the engine asks `shares` after all
    trees are drafted and before they are verified; of each tree its likeliest nodes are kept, as many as its share. It
    is asked only about trees that may be cut: without drawn children, as which of those are kept must not depend on
    what was drawn, and of sequences whose text is the same whatever tree is verified. So no answer changes a text.
    """

    @abstractmethod
    def shares(self, pass_: SharedPass) -> Mapping[int, int]:
        """How many drafted nodes each slot keeps, its root not counted.

        Args:
            pass_: what could be verified.

        Returns:
            For each slot of `pass_.path_logp` a whole number from 0 to the number of its nodes; a slot without an
            answer keeps them all.
        """


@attrs.frozen(eq=False)
class NextRound:
    """What several sequences are about to draft for.

    Attributes:
        latest: by slot, the latest round of each sequence whose drafting may be limited; None before its first.
        texts: by slot, a place for what is learnt of each of these texts; it ends with the text.
        machine: a place for what is learnt of the machine and the parts; one for all rounds of an engine.
        batch: sequences that share the round, at least 2.
        context: committed tokens of the longest text.
        costs: what passes take on this machine; it may know nothing yet.
    """

    latest: Mapping[int, Round | None]
    texts: Mapping[int, MutableMapping[str, Any]]
    machine: MutableMapping[str, Any]
    batch: int
    context: int
    costs: Costs


class Planner(Allocator):
    """An allocator that also decides, before each round that sequences share, how deep each of them drafts.

    Drafting takes time that a pass cannot give back: what is cut afterwards has been paid for. The engine asks `layers`
    before anything of a round is drafted. It is asked only about sequences whose text is the same whatever tree is
    verified, so no answer changes a text. What it remembers is in `NextRound.texts` and `NextRound.machine`, under a
    name of its own.
    """

    @abstractmethod
    def layers(self, round_: NextRound) -> Mapping[int, int]:
        """The most layers that are drafted for each sequence.

        Args:
            round_: which is about to begin.

        Returns:
            For each slot of `round_.latest` a whole number of at least 0, where 0 is a round of plain decoding, in
            which neither its policy nor the drafter is asked; a slot without an answer drafts as its policy says.
        """
