"""Trees with drawn children at some positions of several texts, which grow together and are tested together."""

from functools import cached_property
from typing import Self

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.drawn import NO_LAW, Drawn, sharpened, without
from talon_core.engine.growing_forest import DrawnLayer, GrowingForest
from talon_core.engine.walking import walked
from talon_core.errors import unblamed
from talon_core.forest import ForestCandidates
from talon_core.forest_drawer import ForestLaws
from talon_core.laws import Laws, check_node
from talon_core.rounds import Round, Span
from talon_core.trace.columns import NO_ROW
from talon_core.trace.grown import Grown
from talon_core.trace.replay import Method, Replay
from talon_core.trace.several import SeveralTexts
from talon_core.trace.several_laws import DrawnFrom, NotKept, Numbers, SeveralDraws, SeveralLaws
from talon_core.trace.tested import TESTED, DrawnTrees
from talon_core.trace.text_laws import LawsChanged
from talon_core.tree import FloatArray, IntArray, TokenTree, read_only


@attrs.frozen(eq=False)
class Testing:
    """What drawn trees are tested with.

    Attributes:
        replay: of the trace.
        method: what is tried.
        laws: of the texts.
    """

    replay: Replay
    method: Method
    laws: SeveralLaws

    @property
    def ends(self) -> list[int]:
        """Tokens that end a text."""
        return [*self.replay.trace["target"]["eos"]]


@attrs.frozen(eq=False, slots=False)
class GrownDraws(Grown):
    """Such trees; their paths are those that a rule accepts which tests what was drawn.

    Attributes:
        drawn: of each layer what was drawn in it.
        testing: what they are tested with.
    """

    drawn: list[DrawnLayer | None]
    testing: Testing

    @classmethod
    def drawn_at(cls, growing: GrowingForest, texts: SeveralTexts, positions: IntArray, testing: Testing) -> Self:
        """Grow trees; arguments and errors as for `Grown.at`."""
        replay = testing.replay
        which, places = _places(texts, positions)
        numbers = Numbers([replay.policy_choices(text) for text in texts.texts], which, places)
        used = np.zeros(len(positions), dtype=np.int64)

        layers: list[DrawnFrom] = []

        def drawing(rows: IntArray, shown: ForestCandidates, asked: IntArray) -> ForestLaws:
            for layer in layers[-1:]:
                layer.close()
            layers.append(DrawnFrom(testing.laws, rows[asked], shown, numbers, used))
            return layers[-1]

        vocab_size = int(replay.trace["target"]["vocab_size"])
        with unblamed(NotKept, LawsChanged, OSError):
            own = Grown.at(growing, texts, positions, vocab_size, drawing)
        for layer in layers[-1:]:
            layer.close()
        if own.selected:
            raise NotKept
        fields = {field.name: getattr(own, field.name) for field in attrs.fields(Grown)}
        return cls(**fields, drawn=growing.drawn, testing=testing)

    @cached_property
    def node_rows(self) -> IntArray:
        """The row of each node, `NO_ROW` where it was not drafted from, shape `(nodes,)`."""
        found = np.full(len(self.forest), NO_ROW)
        for layer in self.layers:
            found[layer.nodes] = layer.rows
        return found

    @cached_property
    def _along(self) -> tuple[NDArray[np.bool_], IntArray]:
        replay, texts = self.testing.replay, self.texts
        which, places = _places(texts, self.positions)
        numbers = Numbers([replay.choices(text) for text in texts.texts], which, places)
        trees = DrawnTrees(self.forest, self.drawn, self.node_rows, self.testing.laws, numbers, self.testing.ends)
        order = self.testing.method.rule.tests
        assert order is not None
        if order == "leaves-first" and trees.replacement and trees.counts.max(initial=0) > 1:
            raise NotKept  # what is left of q is not q
        outcome = TESTED[order](trees)
        last = outcome.last
        for tree in outcome.undecided.nonzero()[0].tolist():
            last[tree] = self._walked(tree, int(which[tree]), int(places[tree]))
        left = texts.first_positions[which + 1] - self.positions  # tokens to the end of the text
        steps = np.minimum(self.forest.depths[last] + 1, left)
        accepted = np.zeros(len(self.forest), dtype=bool)
        while len(last):
            here = last[self.forest.depths[last] < steps[self.forest.trees[last]]]
            accepted[here] = True
            last = self.forest.parents[last]
            last = last[last >= 0]
        return accepted, steps

    def _walked(self, tree: int, text: int, place: int) -> int:
        """The node with which the path of a tree ends, by the rule itself."""
        testing, nodes = self.testing, self._nodes_of(tree)
        drafted = self._with_draws(tree, nodes, laws=True)
        laws = _LawsAt(testing, drafted, self.node_rows[nodes])
        vocab_size = int(testing.replay.trace["target"]["vocab_size"])
        choices = testing.replay.choices(self.texts.texts[text]).at(place)
        with unblamed(LawsChanged):
            accepted = walked(testing.method.rule, drafted, laws, choices, vocab_size)
        return int(nodes[accepted.path[-1]])

    def _nodes_of(self, tree: int) -> IntArray:
        found: IntArray = np.flatnonzero(self.forest.trees == tree)
        return found

    def _with_draws(self, tree: int, nodes: IntArray, *, laws: bool) -> TokenTree:
        """A tree that says what was drawn in it.

        Args:
            tree: which.
            nodes: its own in the forest.
            laws: with the laws of the draws, and not as a record.
        """
        plain, drawn = self._drafted.tree(tree), dict[int, Drawn]()
        for layer in self.drawn:
            if layer is None:
                continue
            (own,) = (self.forest.trees[layer.parents] == tree).nonzero()
            for parent in [*dict.fromkeys(layer.parents[own].tolist())]:
                draws = own[layer.parents[own] == parent]
                law = self._law_of(layer, parent) if laws else NO_LAW
                tokens, logp = self.forest.tokens[layer.nodes[draws]], layer.logp[draws]
                drawn[int(nodes.searchsorted(parent))] = Drawn(tokens, law, layer.draws.replacement, logp)
        return TokenTree(plain.tokens, plain.parents, plain.path_logp, drawn)

    def _law_of(self, layer: DrawnLayer, parent: int) -> FloatArray:
        """The law of a node's first draw."""
        draws, row = layer.draws, int(self.node_rows[parent])
        assert isinstance(draws, SeveralDraws)
        laws = self.testing.laws
        sharp = sharpened(laws.whole("drafter", row), laws.layout.temperatures[draws.temperature])
        shown = draws.of == row
        out = draws.out_tokens[shown[draws.out_rows]]
        return without(sharp, out) if len(out) else sharp

    def round(self, tree: int, coming: IntArray, spans: tuple[Span, ...], context: int) -> Round:
        nodes = self._nodes_of(tree)
        path = self.accepted[nodes].nonzero()[0]
        return Round(
            tree=self._with_draws(tree, nodes, laws=False),
            path=read_only(path),
            tokens=read_only(coming[: len(path)]),
            draft_passes=int(self.passes[tree]),
            spans=spans,
            context=context,
        )


def _places(texts: SeveralTexts, positions: IntArray) -> tuple[IntArray, IntArray]:
    """In which text some positions are, and where there."""
    which = texts.first_positions.searchsorted(positions, side="right") - 1
    return which, positions - texts.first_positions[which]


class _LawsAt(Laws):
    """The target's recorded laws at the nodes of a tree that have rows; nobody looks at the others."""

    def __init__(self, testing: Testing, tree: TokenTree, rows: IntArray) -> None:
        self._testing, self._tree, self._rows = testing, tree, rows.tolist()

    def at(self, node: int) -> FloatArray:
        check_node(self._tree, node)
        row = self._rows[node]
        if row == NO_ROW:  # a leaf: whatever comes there, the walk ends
            law = np.zeros(self._testing.laws.layout.vocab_size)
            law[0] = 1.0
            return law
        return self._testing.laws.whole("target", row)

    def ends(self, token: int) -> bool:
        return token in self._testing.ends
