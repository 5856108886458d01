"""A policy on several texts of a trace at once: trees at many of their positions grow together."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.costs import Costs
from talon_core.engine.growing_forest import GrowingForest, Taking
from talon_core.engine.plain import NoDrafter
from talon_core.errors import PluginError
from talon_core.forest import Forest, ForestCandidates, ForestGrower, forest_grower, serve_alike
from talon_core.policy import TreePolicy
from talon_core.rounds import Round, Span
from talon_core.trace.columns import NO_ROW, TextTrace, padding, tokens_of
from talon_core.trace.replay import Method, Replay, Replayed, Totals, behind, priced, seconds_of
from talon_core.trace.several import PADDING, SeveralTexts
from talon_core.tree import FloatArray, IntArray, read_only

TREES = 512
"""Trees that are begun with: fewer hardly take less time, and of more some turn out to be at no round's begin."""


@attrs.frozen(eq=False)
class Layer:
    """A layer of some trees that was asked for.

    Attributes:
        trees: in which tree each frontier node is, shape `(frontier,)`.
        rows: of these nodes in the texts, `NO_ROW` for those that were not recorded, shape `(frontier,)`.
        sizes: frontier nodes of each tree, shape `(trees,)`.
        widths: candidates that each tree has asked for, shape `(trees,)`.
    """

    trees: IntArray
    rows: IntArray
    sizes: IntArray
    widths: IntArray


class Grown:
    """Trees at some positions of several texts, grown together by one policy.

    Args:
        growing: their roots.
        texts: the texts.
        positions: of each tree, rising, shape `(trees,)`.

    Raises:
        PluginError: if the policy breaks its contract; the message names it.
    """

    def __init__(self, growing: GrowingForest, texts: SeveralTexts, positions: IntArray) -> None:
        self.texts, self.positions, self._growing = texts, positions, growing
        self.layers: list[Layer] = []
        self.widest = 0
        self.passes: IntArray = np.zeros(len(positions), dtype=np.int64)
        self._missing = np.zeros(len(positions), dtype=np.int64)
        self._cut: list[tuple[IntArray, IntArray]] = []  # nodes, and their rows
        self._known: list[tuple[IntArray, IntArray]] = []  # nodes that were drafted from, and their rows
        self._newest = 0, np.empty(0, dtype=np.int64)  # the first node of a layer, and the rows of all its nodes

    def grow(self) -> None:
        """Ask the policy, layer by layer."""
        growing = self._growing
        while len(growing.frontier):
            widths = growing.widths()
            if len(widths):
                growing.grow(*self._offered(widths))
        self.kept = growing.finish()
        for fault in growing.faults.values():
            raise fault

    @property
    def forest(self) -> Forest:
        """The trees as they were drafted."""
        return self._growing.forest

    @property
    def selected(self) -> bool:
        """Whether the policy has selected nodes of what was drafted."""
        return self._growing.selected

    def _offered(self, widths: IntArray) -> tuple[ForestCandidates, Taking]:
        """What was recorded for the frontier.

        Args:
            widths: candidates that are wanted of each of its nodes, shape `(frontier,)`.
        """
        nodes, forest, texts = self._growing.frontier, self._growing.forest, self.texts
        holding, places = forest.holding(nodes)
        trees, above = holding.trees.take(places), holding.path_logp.take(places)
        if forest.layer == 0:
            rows = texts.roots[self.positions[trees]]
        else:
            rows = texts.find(self._rows_of(holding.parents.take(places)), holding.tokens.take(places))
        self._remember(nodes, rows)
        self._note(trees, nodes, rows, widths, holding.depths.take(places))
        width = min(int(widths.max()), texts.width)
        self.widest = max(self.widest, width)
        tokens, offered = texts.offered(rows, width)
        if (widths < width).any():
            beyond = np.arange(width) >= widths[:, None]
            tokens[beyond], offered[beyond] = padding(tokens.dtype), -np.inf
        logp: FloatArray = offered.astype(np.float64)
        path_logp = above[:, None] + logp

        def taking(row: IntArray, rank: IntArray) -> tuple[IntArray, FloatArray]:
            flat = row * width + rank
            return tokens_of(tokens.take(flat)), above.take(row) + offered.take(flat)

        def look_up() -> IntArray:
            return tokens_of(tokens)

        return ForestCandidates(nodes.copy(), trees, logp, path_logp, forest.size, look_up), taking

    def _remember(self, nodes: IntArray, rows: IntArray) -> None:
        self._known.append((nodes, rows))
        newest = self.forest.layers[-1]
        of_layer = np.full(len(newest), NO_ROW)
        if nodes.min() >= newest.first:
            of_layer[nodes - newest.first] = rows
            self._newest = newest.first, of_layer
        else:
            self._newest = len(self.forest), of_layer[:0]

    def _rows_of(self, nodes: IntArray) -> IntArray:
        """The rows of nodes that were drafted from."""
        first, rows = self._newest
        if nodes.min() < first:
            first, rows = 0, np.full(len(self.forest), NO_ROW)
            for known, own in self._known:
                rows[known] = own
        return rows[nodes - first]

    def _note(self, trees: IntArray, nodes: IntArray, rows: IntArray, widths: IntArray, depths: IntArray) -> None:
        size, passes = len(self.positions), self.texts.passes
        there = rows != NO_ROW
        if not there.all():
            self._missing += np.bincount(trees[~there], minlength=size)
        cut = there & (widths > self.texts.width)
        if cut.any():
            cut[cut] = ~self.texts.whole[rows[cut]]
            self._cut.append((nodes[cut], rows[cut]))
        (firsts,) = np.diff(trees, prepend=-1).nonzero()
        asked, layer = trees[firsts], depths[firsts]
        known = layer < passes.shape[1]
        self.passes[asked[known]] += passes[self.positions[asked[known]], layer[known]]
        of_trees = np.zeros(size, dtype=np.int64)
        of_trees[asked] = widths[firsts]
        self.layers.append(Layer(trees, rows, np.bincount(trees, minlength=size), of_trees))

    @cached_property
    def sizes(self) -> IntArray:
        """Nodes of each tree that is verified, shape `(trees,)`."""
        if not self.selected:
            return self.forest.sizes
        return np.bincount(self.forest.trees[self.kept], minlength=len(self.positions))

    @cached_property
    def deepest(self) -> IntArray:
        """The deepest node of each tree, shape `(trees,)`."""
        found = np.zeros(len(self.positions), dtype=np.int64)
        for layer in self.forest.layers[1:]:
            if len(layer) and layer.depths.min() == layer.depths.max():
                found[layer.trees] = np.maximum(found[layer.trees], layer.depths[0])
            else:
                np.maximum.at(found, layer.trees, layer.depths)
        return found

    @cached_property
    def steps(self) -> IntArray:
        """Tokens that a round with each tree emits, shape `(trees,)`."""
        along = np.arange(len(self.positions))  # the node on the text in each tree, as deep as they are looked at
        steps = np.ones(len(self.positions), dtype=np.int64)
        for layer in self.forest.layers[1:]:
            wanted = self.texts.ahead(self.positions[layer.trees], layer.depths)
            found = (layer.tokens == wanted).nonzero()[0]
            found = found[along[layer.trees[found]] == layer.parents[found]]
            nodes = found + layer.first
            found, nodes = found[self.kept[nodes]], nodes[self.kept[nodes]]
            along[layer.trees[found]] = nodes
            steps[layer.trees[found]] += 1
        return steps

    @cached_property
    def outside(self) -> IntArray:
        """Questions of each tree that the texts do not answer, see `TraceDrafter.outside`; shape `(trees,)`."""
        forest, found = self.forest, self._missing
        if self._cut:
            nodes, rows = (np.concatenate(each) for each in zip(*self._cut, strict=True))
            order = rows.argsort(kind="stable")
            nodes, rows = nodes[order], rows[order]
            last = np.full(len(forest), PADDING)
            last[nodes] = tokens_of(self.texts.offered(rows, self.texts.width)[0][:, -1])
            went_on = forest.tokens == last[forest.parents]
            went_on[: forest.size] = False
            found = found + np.bincount(forest.trees[went_on], minlength=forest.size)
        return found

    def check(self, trees: NDArray[np.bool_], vocab_size: int) -> None:
        """Refuse what was looked at for some of the trees, if it was changed.

        Raises:
            ValueError: if it was.
        """
        if self.layers:
            rows = np.concatenate([layer.rows[trees[layer.trees]] for layer in self.layers])
            self.texts.check(rows, self.widest, vocab_size)

    def spans(self, tree: int, costs: Costs | None, context: int, goes_on: bool) -> tuple[Span, ...]:
        """What the parts of a round with a tree would take, where costs are known."""
        if costs is None:
            return ()
        layers = [(int(one.sizes[tree]), int(one.widths[tree])) for one in self.layers if one.sizes[tree]]
        parts = priced(costs, layers, int(self.sizes[tree]), context, int(self.steps[tree]), goes_on)
        return tuple(behind(parts, 0.0))

    def round(self, tree: int, coming: IntArray, spans: tuple[Span, ...], context: int) -> Round:
        """The round with a tree; `coming` are the tokens behind its root, to the end of the text."""
        verified = self.forest.tree(tree, self.kept)
        path = verified.follow(coming[:-1])
        return Round(
            tree=verified,
            path=read_only(path),
            tokens=read_only(coming[: len(path)]),
            drafted=self.forest.tree(tree) if self.selected else None,
            draft_passes=int(self.passes[tree]),
            spans=spans,
            context=context,
        )


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
        stride = max(1, count // TREES)
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
        first, end = self._texts.first_positions[number : number + 2].tolist()
        found = []
        for position in self._begins[number].tolist():
            which, tree = self._where[position].tolist()
            goes_on = position + int(self._steps[position]) < end
            found.append(self._grown[which].spans(tree, costs, text.prompt_tokens + position - first, goes_on))
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


@attrs.frozen
class Done:
    """What a method did on a text.

    Attributes:
        totals: in numbers.
        deepest: the deepest node that was drafted.
    """

    totals: Totals
    deepest: int


class Trying:
    """Tries methods on some texts, on all of them at once where it can be done.

    Args:
        replay: of the trace.
        texts: of the trace.
    """

    def __init__(self, replay: Replay, texts: Sequence[TextTrace]) -> None:
        self._replay, self._texts = replay, texts
        recorded = bool(texts) and all(text.rows is not None for text in texts)
        self._several = SeveralTexts(texts) if recorded else None

    def done(self, method: Method, policy: Callable[[], TreePolicy | None] | None = None) -> list[Done]:
        """What a method did, text by text.

        Args:
            method: has passed `Replay.check`.
            policy: makes one equal to the method's for each text that is tried by itself; by default there is one for
                all, as while one decodes.

        Raises:
            PluginError: if a plugin breaks its contract; the message names it.
            ValueError: if a text was changed since it was recorded.
        """
        grown = None if self._several is None else together(self._replay, method, self._several)
        if grown is not None:
            return [Done(*each) for each in zip(grown.totals(), grown.deepest(), strict=True)]
        found = []
        for text in self._texts:
            own = self._replay.text(method if policy is None else attrs.evolve(method, policy=policy()), text)
            trees = (one.tree if one.drafted is None else one.drafted for one in own.rounds)
            found.append(Done(Totals.of(own), max(int(tree.depths.max()) for tree in trees)))
        return found
