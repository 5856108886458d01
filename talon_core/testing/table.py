"""A target's laws given by a table, for tests of rules."""

from talon_core.laws import Laws, check_node
from talon_core.table import TableDrafter
from talon_core.tree import FloatArray, TokenTree


class TableLaws(Laws):
    """The target's laws at the nodes of a tree, from a table as drafters have it; remembers where they were asked for.

    Args:
        table: its `law_after` is the target's law.
        tree: the verified tree.
        end: the token that ends the text; None if none does.

    Attributes:
        asked: the nodes whose law was asked for, in this order.
    """

    def __init__(self, table: TableDrafter, tree: TokenTree, end: int | None = None) -> None:
        self.asked: list[int] = []
        self._table, self._tree, self._end = table, tree, end

    def at(self, node: int) -> FloatArray:
        check_node(self._tree, node)
        self.asked.append(node)
        return self._table.law_after(self._tree.tokens[self._tree.path(node)].tolist())

    def ends(self, token: int) -> bool:
        return token == self._end
