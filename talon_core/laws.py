"""The target's law at the nodes of a verified tree, warped as the user asked, computed where a rule looks."""

from abc import ABC, abstractmethod

from talon_core.choices import Choices
from talon_core.errors import is_whole, written
from talon_core.tree import FloatArray, TokenTree


class Laws(ABC):
    """The law of the next token at each node of one tree."""

    @abstractmethod
    def at(self, node: int) -> FloatArray:
        """The law after `node`, shape `(vocab,)`, float64, summing to 1; at temperature 0 all on one token.

        Raises:
            IndexError: if there is no such node.
        """

    @abstractmethod
    def ends(self, token: int) -> bool:
        """Whether the text ends with this token, so that nothing after it matters."""

    def draw(self, node: int, choices: Choices) -> int:
        """Draw the token after `node` from its law."""
        return choices.pick(self.at(node))


def check_node(tree: TokenTree, node: object) -> None:
    """Refuse what is no node of a tree; for implementations of `Laws`.

    Raises:
        IndexError: if it is none; the sentence says which there are.
    """
    if not is_whole(node) or not 0 <= node < len(tree):
        raise IndexError(f"there is no node {written(node)}; the tree has nodes 0 to {len(tree) - 1}")
