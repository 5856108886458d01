"""A policy on several texts of a trace at once: trees at many of their positions grow together."""

from functools import cached_property
from itertools import pairwise

import numpy as np

from talon_core.engine.checked_policy import checked_budget
from talon_core.engine.growing_forest import GrowingForest
from talon_core.engine.plain import NoDrafter
from talon_core.errors import PluginError
from talon_core.forest_grower import ForestGrower, forest_grower, serve_alike
from talon_core.rounds import Span
from talon_core.trace.grown import Grown
from talon_core.trace.prices import seconds_of
from talon_core.trace.replay import Method, Replay, Replayed, Totals
from talon_core.trace.several import SeveralTexts
from talon_core.tree import IntArray

TREES, NODES = 512, 1 << 17
"""Trees that are begun with, at most: fewer hardly take less time, and more of them turn out to be at no round's begin;
and how many nodes they may have together while they are drafted, as each may have a row of candidates in the memory."""


class Together:
    """A method on several texts at once.

    What a round's tree is does not hang on the rounds before, as the policy remembers nothing. So trees are grown at
    several positions of each text at once, then at those where the rounds after them would begin, as long as nothing is
    known of these. From wherever one begins, one soon comes to a position at which a round of the text begins.

    Args:
        replay: of the trace.
        policy: the method's, as it serves each of the texts.
        texts: they.
        most: the deepest node that the drafter drafts; None where it knows no limit.

    Raises:
        PluginError: if the policy breaks its contract; the message names it.
        ValueError: if a text was changed since it was recorded.
    """

    def __init__(self, replay: Replay, policy: ForestGrower, texts: SeveralTexts, most: int | None) -> None:
        self._replay, self._policy, self._texts = replay, policy, texts
        self._vocab_size = int(replay.trace["target"]["vocab_size"])
        first, count = texts.first_positions, int(texts.first_positions[-1])
        left = np.concatenate([replay.limit(text) - 1 - np.arange(text.positions) for text in texts.texts])
        self._deepest = left if most is None else np.minimum(left, most)
        self._ends = np.repeat(first[1:], np.diff(first))
        self._grown: list[Grown] = []
        self._steps = np.zeros(count, dtype=np.int64)  # by position; 0 where nothing is known
        self._where = np.zeros((count, 2), dtype=np.int64)  # in which of `_grown`, and which tree there
        trees = max(1, min(TREES, NODES // checked_budget(policy, "draft_budget")))
        stride = max(1, count // trees)
        wanted = np.concatenate([np.arange(*ends, stride) for ends in pairwise(first)])
        while len(wanted):
            grown = self._grow(wanted)
            self._where[wanted, 0], self._where[wanted, 1] = len(self._grown), np.arange(len(wanted))
            self._grown.append(grown)
            self._steps[wanted] = grown.steps
            then = wanted + grown.steps
            then = then[then < self._ends[wanted]]
            wanted = np.unique(then[self._steps[then] == 0])
        self._check()

    def _grow(self, positions: IntArray) -> Grown:
        target = self._replay.trace["target"]
        roots, deepest = self._texts.before[positions], self._deepest[positions]
        growing = GrowingForest(self._policy, roots, deepest, self._vocab_size, target["eos"])
        grown = Grown(growing, self._texts, positions)
        try:
            grown.grow()
        except PluginError:  # what a changed file has led to is not the policy's fault
            grown.check(np.ones(len(positions), dtype=bool), self._vocab_size)
            raise
        return grown

    @cached_property
    def _begins(self) -> list[IntArray]:
        """The positions of each text at which a round begins."""
        steps, bounds, found = self._steps.tolist(), self._texts.first_positions.tolist(), []
        for position, end in pairwise(bounds):
            own = []
            while position < end:
                own.append(position)
                position += steps[position]
            found.append(np.array(own))
        return found

    def _check(self) -> None:
        which, trees = self._where[np.concatenate(self._begins)].T
        for number, grown in enumerate(self._grown):
            begun = np.zeros(len(grown.positions), dtype=bool)
            begun[trees[which == number]] = True
            grown.check(begun, self._vocab_size)

    def _at(self, name: str) -> IntArray:
        """What trees have, by position."""
        found = np.zeros(len(self._steps), dtype=np.int64)
        for grown in self._grown:
            found[grown.positions] = getattr(grown, name)
        return found

    def _spans(self, number: int) -> list[tuple[Span, ...]]:
        """Those of each round of a text."""
        text, costs = self._texts.texts[number], self._replay.costs
        begins = self._begins[number].tolist()
        if costs is None:
            return [()] * len(begins)
        found, asked = [], begins[0]  # nothing is untold when a text begins
        for position in begins:
            which, tree = self._where[position].tolist()
            context = text.prompt_tokens + position - begins[0]
            found.append(self._grown[which].spans(tree, costs, context, position - asked))
            asked = position if self._grown[which].drafts(tree) else asked
        return found

    def _seconds(self, number: int) -> float | None:
        if self._replay.costs is None:
            return None
        spans = (span for own in self._spans(number) for span in own)
        return seconds_of(self._replay.costs, self._texts.texts[number], spans)

    def totals(self) -> list[Totals]:
        """What the method did, text by text."""
        sizes, passes, outside = (self._at(name) for name in ("sizes", "passes", "outside"))
        return [
            Totals(
                new_tokens=text.positions,
                target_passes=len(begins),
                draft_passes=int(passes[begins].sum()),
                nodes_verified=int(sizes[begins].sum()),
                largest_tree=int(sizes[begins].max()),
                outside=int(outside[begins].sum()),
                predicted_seconds=self._seconds(number),
            )
            for number, (text, begins) in enumerate(zip(self._texts.texts, self._begins, strict=True))
        ]

    def deepest(self) -> list[int]:
        """The deepest node that was drafted, text by text."""
        deepest = self._at("deepest")
        return [int(deepest[begins].max()) for begins in self._begins]

    def replayed(self) -> list[Replayed]:
        """The rounds, text by text."""
        outside, found = self._at("outside"), []
        for number, (text, begins) in enumerate(zip(self._texts.texts, self._begins, strict=True)):
            first, rounds = int(self._texts.first_positions[number]), []
            for position, spans in zip(begins.tolist(), self._spans(number), strict=True):
                which, tree = self._where[position].tolist()
                context = text.prompt_tokens + position - first
                rounds.append(self._grown[which].round(tree, text.ids[context:], spans, context))
            found.append(Replayed(text, rounds, int(outside[begins].sum()), self._seconds(number)))
        return found


def together(replay: Replay, method: Method, texts: SeveralTexts) -> Together | None:
    """A method on several texts; None where it has to be tried on each by itself.

    It has to where the policy remembers, draws or has no way to choose for many trees, where a text is drafted for by
    a drafter that is asked again, where the rule tests probabilities, and where the policy's own time is wanted.

    Args:
        replay: of the trace.
        method: has passed `Replay.check`.
        texts: of the trace.

    Raises:
        PluginError: if the policy breaks its contract; the message names it.
        ValueError: if a text was changed since it was recorded.
    """
    if method.drafter is not None or not replay.follows(method.rule) or (replay.costs is not None and replay.timed):
        return None
    policies = [replay.begun(method, text) for text in texts.texts]
    grower = forest_grower(policies[0])
    if grower is None or not serve_alike(policies):
        return None
    most = NoDrafter.max_depth if method.policy is None else replay.trace["drafter"]["max_depth"]
    return Together(replay, grower, texts, most)
