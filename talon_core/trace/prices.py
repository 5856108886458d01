"""What the rounds of a text would take, by the costs of a machine."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.costs import Costs
from talon_core.drafter import DrafterSpec
from talon_core.rounds import Span
from talon_core.runtime.staging import MANY_PENDING
from talon_core.target import SECONDS_AHEAD
from talon_core.trace.columns import TextTrace
from talon_core.tree_arrays import FloatArray, IntArray


@attrs.frozen(eq=False)
class _Behind(Costs):
    """Costs in whose place others stand, which differ in what is no pass of the target.

    Attributes:
        costs: of the target, and of a drafter.
    """

    costs: Costs

    @property
    def fixed(self) -> bool:
        return self.costs.fixed

    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        return self.costs.verify(nodes, context, batch)

    def verify_each(self, nodes: IntArray, context: int, batch: int = 1) -> FloatArray | None:
        return self.costs.verify_each(nodes, context, batch)

    def verify_after(self, nodes: IntArray, contexts: Sequence[int], batch: int = 1) -> Sequence[FloatArray | None]:
        return self.costs.verify_after(nodes, contexts, batch)

    def read(self, tokens: int) -> float | None:
        return self.costs.read(tokens)


@attrs.frozen(eq=False)
class WithLookUps(_Behind):
    """Costs with a drafter that looks texts up, which takes next to nothing, in the place of the one that they are of.

    Attributes:
        costs: of the target, and of another drafter.
    """

    def draft(self, rows: int, width: int) -> float | None:
        return 0.0

    def accept(self, nodes: int) -> float | None:
        return self.costs.accept(nodes)

    def commit(self, tokens: int) -> float | None:
        return self.costs.commit(tokens)

    def besides(self, drafted: bool) -> float | None:
        return self.costs.besides(drafted=False)

    def beside_layer(self) -> float | None:
        return self.costs.beside_layer()

    def rest(self, rounds: int) -> float | None:
        return self.costs.rest(rounds)


USUAL_CONTEXT = 256
"""Tokens of a text, about in the middle."""


@attrs.frozen(eq=False)
class AtRest(_Behind):
    """Costs of a text for which nothing is ever drafted, so that passes are run ahead of their rounds.

    Attributes:
        costs: of any rounds.
        seconds: that a round takes besides its pass.
    """

    seconds: float

    @classmethod
    def of(cls, costs: Costs) -> Costs:
        """Such costs; the costs themselves where they know nothing of it.

        A pass takes what it takes after a text of usual length: it tells only how many are run together.
        """
        rounds = _run_together(costs, USUAL_CONTEXT)
        seconds = costs.rest(rounds)
        return costs if seconds is None else cls(costs, seconds / rounds)

    def draft(self, rows: int, width: int) -> float | None:
        return self.costs.draft(rows, width)

    def commit(self, tokens: int) -> float | None:
        return self.seconds


def in_pauses(costs: Costs, alone: NDArray[np.bool_], contexts: Sequence[int]) -> FloatArray:
    """Seconds besides their passes of rounds that follow each other without a draft, as those passes are run together.

    Args:
        costs: what passes take.
        alone: which rounds of a text have no draft, shape `(rounds,)`; of a policy that says when it pauses, and so in
            nearly all of them has said it before.
        contexts: committed tokens before each.

    Returns:
        Shape `(rounds,)`; NaN for rounds whose passes are run by themselves, and where nothing is known.
    """
    found = np.full(len(alone), np.nan)
    turns = np.diff(alone, prepend=False, append=False).nonzero()[0].reshape(-1, 2)
    for begin, end in turns.tolist():
        while end - begin > 1:
            rounds = min(end - begin, _run_together(costs, contexts[begin]))
            seconds = costs.rest(rounds) if rounds > 1 else None
            found[begin : begin + rounds] = np.nan if seconds is None else seconds / rounds
            begin += rounds
    return found


def _run_together(costs: Costs, context: int) -> int:
    """How many passes over a root alone are run together at most, see `Target.verify`."""
    one = costs.verify(1, context)
    return max(int(SECONDS_AHEAD / one), 1) if one else 1


def costs_with(costs: Costs, drafter: DrafterSpec | None) -> Costs:
    """What passes take with the drafter of a method: one that looks texts up is free, if the costs do not know it.

    Args:
        costs: of a machine, and of the drafter that was recorded or any other one.
        drafter: as `Method.drafter`; None for the recorded one.
    """
    return costs if drafter is None or costs.know(drafter.name) else WithLookUps(costs)


@attrs.define
class Untold:
    """What a drafter has not heard of a text.

    Attributes:
        prompt: tokens of the prompt, until it is first asked; then 0.
        new: tokens that were emitted since it was last asked.
    """

    prompt: int
    new: int = 0

    def heard(self, costs: Costs, chained: bool = False) -> float:
        """The drafter is asked; seconds that it takes to hear of it all. `chained` is that of `hearing`."""
        seconds = hearing(costs, self.prompt, self.new, chained)
        self.prompt = self.new = 0
        return seconds


def hearing(costs: Costs, prompt: int, new: int, chained: bool = False) -> float:
    """Seconds that a drafter takes to hear of a text before it drafts.

    It reads the prompt, and what are many tokens, but the last one; of few it learns with its first layer.

    Args:
        costs: what passes take.
        prompt: tokens of it, or 0 if the drafter has read it.
        new: that were emitted since it was last asked; without a prompt, at least 1.
        chained: its passes are run ahead: what it learns with its first layer is a part of `Costs.chain`.
    """
    unread = prompt + new - 1
    reading = costs.catch_up(unread) if unread and (prompt or new > MANY_PENDING) else None
    told = 0 if chained else new if reading is None else min(new, 1)
    return (reading or 0.0) + ((costs.tell(told) or 0.0) if told else 0.0)


def priced(
    costs: Costs,
    layers: Sequence[tuple[int, int]],
    nodes: int,
    context: int,
    new: int,
    untold: Untold,
    timed: bool = False,
    chained: bool = False,
) -> dict[str, float]:
    """Seconds of a round's parts by the costs.

    Of a round whose passes are run ahead all but the target's pass is the draft.

    Args:
        costs: what passes take.
        layers: rows and width of each layer that was drafted.
        nodes: of the tree that was verified.
        context: committed tokens before the round.
        new: that it emitted.
        untold: before the round. The drafter hears of it where a layer is drafted; what was emitted is added to it.
        timed: the policy's own time is measured, and not by the costs.
        chained: the policy has said that the tree is a chain, so that passes are run ahead where they can be.
    """
    ahead = costs.chain(len(layers)) if chained and layers and all(rows == 1 for rows, _ in layers) else None
    if ahead is not None:
        draft = ahead + untold.heard(costs, chained=True)
        untold.new += new
        return {"draft": draft, "verify": costs.verify(nodes, context) or 0.0, "accept": 0.0, "commit": 0.0}
    draft = 0.0
    for size in layers:
        draft += costs.draft(*size) or 0.0
    draft += untold.heard(costs) if layers else 0.0
    untold.new += new
    policy = 0.0 if timed else priced_policy(costs, len(layers))
    return {
        "draft": draft,
        **priced_target(costs, nodes, context, new),
        **({"policy": policy} if policy else {}),
    }


def priced_policy(costs: Costs, layers: int) -> float:
    """Seconds of the policy, and of what else the costs know of a round that is none of its other parts.

    Args:
        costs: what passes take.
        layers: that were drafted in it.
    """
    more = 0.0
    if type(costs).besides is not Costs.besides:
        parts = Costs.besides(costs, layers > 0) or 0.0  # without more knowledge it is the walk and the books
        more = max((costs.besides(layers > 0) or 0.0) - parts, 0.0)
    return more + layers * (costs.beside_layer() or 0.0)


def priced_target(costs: Costs, nodes: int, context: int, new: int) -> dict[str, float]:
    """Seconds of a round's parts besides the drafter's and the policy's, see `priced`."""
    return {
        "verify": costs.verify(nodes, context) or 0.0,
        "accept": costs.accept(nodes) or 0.0,
        "commit": costs.commit(new) or 0.0,
    }


def pass_seconds(costs: Costs, sizes: IntArray, contexts: IntArray) -> FloatArray:
    """Seconds of the target's passes over trees of several sizes after texts of several lengths.

    Args:
        costs: what passes take.
        sizes: nodes of the trees.
        contexts: committed tokens of the texts.

    Returns:
        Shape `(contexts, sizes)`; of a length at which nothing is known of one of the sizes, NaN alone.
    """
    found = np.full((len(contexts), len(sizes)), np.nan)
    for line, told in zip(found, costs.verify_after(sizes, contexts.tolist()), strict=True):
        if told is not None:
            line[:] = told
    return found


def behind(parts: Mapping[str, float], at: float) -> list[Span]:
    """Parts of a round that follow each other."""
    times = pairwise(accumulate(parts.values(), initial=at))
    return [Span(part, *ends) for part, ends in zip(parts, times, strict=True)]


def seconds_of(costs: Costs | None, text: TextTrace, seconds: Iterable[float]) -> float | None:
    """Seconds of a whole text, the reading of the prompt included; None where no costs are known.

    Args:
        costs: what passes take.
        text: it.
        seconds: of the spans of its rounds.
    """
    return None if costs is None else (costs.read(text.prompt_tokens) or 0.0) + sum(seconds)
