"""What rounds of several texts would take, all of them at once."""

from collections.abc import Callable
from functools import partial

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.costs import Costs
from talon_core.rounds import Span
from talon_core.trace.prices import behind, hearing, in_pauses, pass_seconds, priced_policy
from talon_core.tree import FloatArray, IntArray
from talon_core.tree_arrays import begins_of, distinct

PRICED = "draft", "verify", "accept", "commit", "policy"
"""Of a round, in their order, as `priced` has them."""


@attrs.frozen(eq=False)
class Rounds:
    """Rounds of several texts.

    Attributes:
        texts: of which text each is, rising; the rounds of a text follow each other, shape `(rounds,)`.
        prompts: tokens of each text's prompt, shape `(texts,)`.
        contexts: committed tokens before each round, shape `(rounds,)`.
        nodes: of the tree that was verified, likewise.
        new: tokens that it emitted, likewise.
        layers: that were drafted: in which round, how many rows, and of which width; those of a round in their order,
            shape `(3, layers)`.
        chained: of which rounds the policy has said that the trees are chains, shape `(rounds,)`.
    """

    texts: IntArray
    prompts: IntArray
    contexts: IntArray
    nodes: IntArray
    new: IntArray
    layers: IntArray
    chained: NDArray[np.bool_]

    def priced(self, costs: Costs, timed: bool, rests: bool) -> FloatArray:
        """Seconds of the parts of each round, to the bit what `priced` says of it; 0 where nothing is known.

        Args:
            costs: what passes take.
            timed: the policies' own time is measured, and not by the costs.
            rests: as `Replay.rests`.

        Returns:
            Shape `(rounds, parts)`, in the order of `PRICED`.
        """
        of, rows, widths = self.layers
        layers = np.bincount(of, minlength=len(self.texts))
        draft = np.bincount(of, _told(costs.draft, rows, widths), len(self.texts))  # it adds up in their order
        commit = _told(costs.commit, self.new)
        if rests:
            together = self._in_pauses(costs, (layers == 0) & (self.nodes == 1))
            commit = np.where(np.isnan(together), commit, together)
        ahead = self.chained & (layers > 0) & (np.bincount(of, rows, len(layers)) == layers)
        chains = np.zeros(len(layers))
        if ahead.any():
            chains[ahead] = [np.nan if one is None else one for one in map(costs.chain, layers[ahead].tolist())]
            ahead &= ~np.isnan(chains)
            draft = np.where(ahead, chains, draft)
        accept, policy = _told(costs.accept, self.nodes), np.zeros(len(layers))
        if not timed:
            policy = _told(lambda count: priced_policy(costs, count), layers)
        for none in (accept, commit, policy):
            none[ahead] = 0.0
        return np.stack(
            [draft + self._hearing(costs, layers > 0, ahead), self._verifying(costs), accept, commit, policy], axis=1
        )

    def _hearing(self, costs: Costs, asked: NDArray[np.bool_], ahead: NDArray[np.bool_]) -> FloatArray:
        """Seconds that the drafter takes to hear of the text before each round in which it is asked.

        Args:
            costs: what passes take.
            asked: in which rounds it is.
            ahead: of which the passes are run ahead.
        """
        (rounds,) = asked.nonzero()
        found, texts, contexts = np.zeros(len(asked)), self.texts[rounds], self.contexts[rounds]
        firsts, prompts = begins_of(texts), np.zeros(len(rounds), dtype=np.int64)
        heard = np.concatenate([[0], contexts[:-1]])
        prompts[firsts] = heard[firsts] = self.prompts[texts[firsts]]
        for chained in (False, True):
            those = ahead[rounds] == chained
            told = prompts[those], (contexts - heard)[those]
            found[rounds[those]] = _told(partial(hearing, costs, chained=chained), *told)
        return found

    def _in_pauses(self, costs: Costs, alone: NDArray[np.bool_]) -> FloatArray:
        """What `in_pauses` says of the rounds of each text."""
        begins = begins_of(self.texts)[1:]
        each = zip(np.split(alone, begins), np.split(self.contexts, begins), strict=True)
        return np.concatenate([in_pauses(costs, own, contexts.tolist()) for own, contexts in each])

    def _verifying(self, costs: Costs) -> FloatArray:
        sizes, contexts = distinct(self.nodes), distinct(self.contexts)
        places = contexts.searchsorted(self.contexts), sizes.searchsorted(self.nodes)
        found: FloatArray = pass_seconds(costs, sizes, contexts)[places]
        for place in np.isnan(found).nonzero()[0].tolist():  # of other trees nothing is known, perhaps
            found[place] = costs.verify(int(self.nodes[place]), int(self.contexts[place])) or 0.0
        return found


def seconds_behind(parts: FloatArray) -> FloatArray:
    """Those of the spans that `behind` makes of the parts of rounds from 0 on, to the bit; same shape."""
    return np.diff(parts.cumsum(axis=1), axis=1, prepend=0.0)


def spans_of(parts: FloatArray) -> tuple[Span, ...]:
    """The parts of a round, of which the policy's is left out where nothing of it is priced."""
    named = dict(zip(PRICED, parts.tolist(), strict=True))
    return tuple(behind({part: seconds for part, seconds in named.items() if seconds or part != "policy"}, 0.0))


def _told(ask: Callable[..., float | None], *sizes: IntArray) -> FloatArray:
    """What is said of sizes, 0 where nothing is known; each is asked for once."""
    last, keys = sizes[-1], sizes[0]
    if len(sizes) > 1:
        keys = sizes[0] * (1 + last.max(initial=0)) + last
    known = distinct(keys)
    first = np.empty(len(known), dtype=np.int64)
    places = known.searchsorted(keys)
    first[places] = np.arange(len(keys))
    asked = zip(*(size[first].tolist() for size in sizes), strict=True)
    return np.array([ask(*size) or 0.0 for size in asked], dtype=np.float64)[places]
