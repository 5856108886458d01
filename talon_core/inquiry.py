"""An optional ability of drafters: to ask the target about nodes of their own, in the pass that verifies the tree."""

from abc import abstractmethod

import attrs

from talon_core.drafter import Drafter
from talon_core.tree import IntArray, TokenTree


@attrs.frozen(eq=False)
class Inquiry:
    """What a drafter asks the target beside a tree that is verified.

    Nodes are counted as in the tree, and those that are added stand behind them, the first at `len(tree)`.

    Attributes:
        tokens: of the nodes that are added, shape `(added,)`, int64.
        parents: of these, nodes of the tree or added ones that stand before, shape `(added,)`, int64.
        nodes: after which nodes the target's most likely token is wanted, shape `(asked,)`, int64; a node may stand
            there twice.
    """

    tokens: IntArray
    parents: IntArray
    nodes: IntArray


class Inquirer(Drafter):
    """A drafter that has nodes of its own run in the pass of the target that verifies its tree.

    When the tree of a round is finished, `inquire` is called once for its slot, unless nobody has asked for a layer of
    it: then the policy drafts nothing, and the pass has the root alone. The nodes that it adds attend to the
    committed text, to their ancestors and to themselves, as all nodes do. No rule sees them and none is accepted, so
    the output stays what it is with any rule and any kind of tree. `Committed.answers` has what the target said; it is
    None where nothing was asked.

    It needs an engine that asks for inquiries: as a part of `hybrid`, or while a trace is recorded, it is refused.
    """

    most_added: int
    """Most nodes that it adds to a tree; the caches have room for them from the beginning."""

    @abstractmethod
    def inquire(self, slot: int, tree: TokenTree, deepest: int) -> Inquiry | None:
        """What is asked beside a tree.

        Args:
            slot: of the sequence.
            tree: as it will be verified; read only.
            deepest: the deepest that an added node may stand, counted from the root at 0.

        Returns:
            None for nothing; then there will be no answers.
        """
