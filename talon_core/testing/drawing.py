"""Trees of every kind, really drawn: enumerated by whoever wants their law, or one of them as an example."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from hypothesis import strategies as st

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drawn import KINDS, Drawn, without
from talon_core.table import TableDrafter
from talon_core.testing.strategies import table_drafters
from talon_core.tree import FloatArray, TokenTree

Shape = tuple["Shape", ...]
"""A node by its children's shapes; `()` is a leaf."""


def draw_tree(kind: str, drafter: TableDrafter, shape: Shape, choices: Choices, *, fixed: int | None = 1) -> TokenTree:
    """A tree under token 0 whose children came about as trees of a kind say, by the drafter's laws.

    Fixed children are the likeliest ones. Those of a "sampled" tree are drawn without replacement, and it does not say
    so. A token that is drawn twice is one node, with the shape of its first draw. Where a law runs out of tokens, the
    last children are missing.

    Args:
        kind: a key of `talon_core.drawn.KINDS`.
        drafter: its laws.
        shape: how many children, and so on; of a node of a "sampled-chain" only the first child counts, of one of a
            "hybrid" tree the fixed ones and the next.
        choices: the only randomness.
        fixed: most fixed children under a node of a "hybrid" tree; None for all but the last child.
    """
    tokens, parents, path_logp, shapes = [0], [-1], [0.0], [shape]
    paths = [[0]]
    records: dict[int, Drawn] = {}
    for node, children in enumerate(shapes):  # grows meanwhile
        if not children:
            continue
        law = drafter.law_after(paths[node])
        count = _fixed(kind, fixed, len(children))
        new = [int(token) for token in np.argsort(-law, kind="stable")[:count] if law[token] > 0]
        logp, places = np.log(law[new]).tolist(), list(range(len(new)))
        rest = without(law, new) if new else law
        draws = len(children) - count
        if kind in ("hybrid", "sampled-chain"):
            draws = min(draws, 1)
        if draws and rest.any():
            own = _draw(node, rest, draws, kind == "iid", choices)
            new, logp = [*new, *own.nodes.tolist()], [*logp, *own.logp[own.firsts].tolist()]
            places += (count + own.firsts).tolist()
            if kind != "sampled":
                records[node] = own
        tokens += new
        parents += [node] * len(new)
        path_logp += [path_logp[node] + one for one in logp]
        paths += [[*paths[node], token] for token in new]
        shapes += [children[place] for place in places]
    return TokenTree(tokens, parents, path_logp, records)


def _fixed(kind: str, fixed: int | None, children: int) -> int:
    if kind == "hybrid":
        return children - 1 if fixed is None else min(fixed, children)
    return children if kind == "deterministic" else 0


def _draw(node: int, law: FloatArray, count: int, replacement: bool, choices: Choices) -> Drawn:
    one, none = np.array([node]), np.zeros((1, 1))
    return Candidates(one, none.astype(np.int64), none, none).draw(choices, 0, count, law=law, replacement=replacement)


@cache
def shapes(kind: str, max_nodes: int) -> st.SearchStrategy[Shape]:
    """Shapes of trees of a kind, of 1 to `max_nodes` nodes."""
    drafted = st.sampled_from([*range(1, max_nodes), 0])
    if kind == "sampled-chain":
        return drafted.map(lambda length: _shape([*range(length)]))
    parents = drafted.flatmap(lambda count: st.tuples(*(st.integers(0, node) for node in range(count))))
    return parents.map(_shape)


def _shape(parents: Sequence[int]) -> Shape:
    """The shape of a tree by the parents of its nodes, without the root's."""
    made: list[list[Shape]] = [[] for _ in range(len(parents) + 1)]
    for node in reversed(range(1, len(made))):
        made[parents[node - 1]].insert(0, tuple(made[node]))
    return tuple(made[0])


class AnyOutcome(Choices):
    """Takes any outcome that is possible, however unlikely it is, as Hypothesis likes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def pick(self, law: FloatArray) -> int:
        return self._draw(st.sampled_from(np.flatnonzero(law > 0).tolist()))


def drawn_trees(
    kind: str | None = None, *, vocab_size: int | None = None, max_nodes: int = 8
) -> st.SearchStrategy[TokenTree]:
    """Trees of a kind, whose children were drawn from random laws; what comes out may be anything that is possible.

    Args:
        kind: a key of `talon_core.drawn.KINDS`; by default any of those that record what was drawn.
        vocab_size: tokens are 0 to `vocab_size - 1`; by default 2 to 6 of them.
        max_nodes: counts the root.

    Raises:
        ValueError: if there is no such kind.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"there is no kind '{kind}' of trees; kinds are {', '.join(KINDS)}")
    recorded = [name for name, one in KINDS.items() if not one.fixed or one.most]
    return _drawn_trees(st.sampled_from(recorded) if kind is None else st.just(kind), vocab_size, max_nodes)


@st.composite
def _drawn_trees(draw: st.DrawFn, kinds: st.SearchStrategy[str], vocab_size: int | None, max_nodes: int) -> TokenTree:
    kind = draw(kinds)
    drafter, shape = draw(table_drafters(vocab_size)), draw(shapes(kind, max_nodes))
    return draw_tree(kind, drafter, shape, AnyOutcome(draw), fixed=draw(st.integers(0, 2)))
