"""The target's law at the nodes of a verified tree, warped as the user asked, computed where a rule looks."""

from abc import ABC, abstractmethod

from talon_core.choices import Choices
from talon_core.tree import FloatArray


class Laws(ABC):
    """The law of the next token at each node of one tree."""

    @abstractmethod
    def at(self, node: int) -> FloatArray:
        """The law after `node`, shape `(vocab,)`, float64, summing to 1; at temperature 0 all on one token."""

    @abstractmethod
    def ends(self, token: int) -> bool:
        """Whether the text ends with this token, so that nothing after it matters."""

    def draw(self, node: int, choices: Choices) -> int:
        """Draw the token after `node` from its law."""
        return choices.pick(self.at(node))
