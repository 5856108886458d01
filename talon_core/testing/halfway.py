"""What a policy meets in the middle of a round: the tree so far, and candidates for its next layer."""

import attrs
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from talon_core.candidates import Candidates
from talon_core.choices import Choices, SeededChoices
from talon_core.engine.checked_policy import MOST_NODES
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.policy import Growth, TreePolicy
from talon_core.testing.hostile import AnyDrafter, hostile_drafters
from talon_core.testing.strategies import table_drafters
from talon_core.tree import TokenTree

Met = tuple[TokenTree, Candidates]


@attrs.frozen
class Layer:
    """How one layer is grown.

    Attributes:
        width: candidates asked for after each node.
        takes: the best so many join.
        every: of the nodes that could be drafted from, the first, and then each so-many-th; the rest has to wait.
    """

    width: int
    takes: int
    every: int


@attrs.frozen
class Halfway(TreePolicy):
    """Grows layer by layer as it is told, and remembers what it was given.

    Attributes:
        layers: one for each layer.
        met: the trees and candidates, in their order.
    """

    name = "halfway"
    layers: tuple[Layer, ...]
    budget: int = MOST_NODES
    met: list[Met] = attrs.field(init=False, eq=False, factory=list)

    def width(self, tree: TokenTree) -> int:
        return self.layers[len(self.met)].width

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        layer = self.layers[len(self.met)]
        self.met.append((tree, candidates))
        if len(self.met) == len(self.layers):
            return Growth(np.empty(0, dtype=np.int64))
        chosen = candidates.best(layer.takes)
        used = np.concatenate([offered.frontier for _, offered in self.met])
        ready = np.setdiff1d(np.arange(len(tree) + len(chosen)), used)
        return Growth(chosen, ready[:: layer.every])


_MANY = 100
_COUNT = st.sampled_from([2, 3, 1, 6, _MANY])
_LAYER = st.builds(Layer, _COUNT, _COUNT, st.sampled_from([1, 1, 2, 3])) | st.just(Layer(_MANY, _MANY, 1))
_LAYERS = st.sampled_from([2, 1, 3, 4]).flatmap(lambda count: st.tuples(*[_LAYER] * count))


@st.composite
def _met(draw: st.DrawFn, drafters: st.SearchStrategy[AnyDrafter]) -> Met:
    policy, seed = Halfway(draw(_LAYERS)), draw(st.integers(0, 2**16))
    drafter = draw(drafters)
    draft_tree(policy, drafter, 0, DraftLimits(drafter.vocab_size, max_depth=64), SeededChoices(seed))
    assume(policy.met)  # a drafter may know nothing at all
    return policy.met[-1]


def candidates(vocab_size: int | None = None) -> st.SearchStrategy[Met]:
    """A tree and the candidates for its next layer, `(tree, candidates)`, as `TreePolicy.grow` gets them.

    A `TableDrafter` has really drafted them, in the decoder's way and through its checks. So scores, frontier, padding
    and laws fit together, and the arrays are read only. There are one or many columns and rows, with and without
    padding, at the root and further down, and nodes that were passed over before.

    Args:
        vocab_size: tokens are 0 to `vocab_size - 1`; by default 2 to 6 of them.
    """
    return _met(table_drafters(vocab_size))


def hostile_candidates(vocab_size: int | None = None) -> st.SearchStrategy[Met]:
    """As `candidates`, from a `HostileDrafter`: allowed, and hard to deal with.

    Args:
        vocab_size: tokens are 0 to `vocab_size - 1`; by default 2, 3 or 100 of them.
    """
    return _met(hostile_drafters(vocab_size))
