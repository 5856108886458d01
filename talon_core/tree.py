"""The draft tree: flat NumPy arrays, parents before children, the last committed token as root."""

from collections.abc import Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.basics import records
from talon_core.drawn import Drawn, DrawnLater
from talon_core.errors import written
from talon_core.tree_arrays import AnyArray, BitArray, FloatArray, IntArray, floats, highest, ints, joined

__all__ = ["BitArray", "FloatArray", "IntArray", "TokenTree", "ancestor_bits", "node_depths", "read_only"]


def read_only(array: AnyArray) -> AnyArray:
    """A view of an array that cannot be written to."""
    view = array.view()
    view.setflags(write=False)
    return view


def node_depths(parents: IntArray) -> IntArray:
    """The depth of each node, as in `TokenTree.depths`; there may be several roots, or no nodes."""
    depths: list[int] = []  # a list: touching single entries of an array would take five times as long
    for parent in parents.tolist():
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return ints(depths)


def ancestor_bits(parents: IntArray) -> BitArray:
    """The ancestor mask of trees, as in `TokenTree.ancestor_bits`; there may be several roots, or no nodes."""
    words = (len(parents) + 31) // 32
    rows: list[int] = []
    for node, parent in enumerate(parents.tolist()):
        rows.append((rows[parent] if parent >= 0 else 0) | 1 << node)
    packed = b"".join(row.to_bytes(4 * words, "little") for row in rows)
    bits: BitArray = np.frombuffer(packed, dtype="<u4").reshape(len(parents), words)
    return bits


def _no_parent(node: int, parent: int) -> ValueError:
    return ValueError(
        f"node {node} has parent {parent}: a parent must stand before its child, "
        f"so it would have to be between 0 and {node - 1}"
    )


ABOVE_ROOT, DEPTH_0, CERTAIN = ints([-1]), ints([0]), floats([0.0])


@attrs.frozen(eq=False)
class TokenTree:
    """A tree of draft tokens. Read only; `extend` and `keep` return new trees.

    Node 0 is the root: the last committed token, whose successor the target has not been asked for yet. It counts
    as a node everywhere, as in EAGLE and TALON: a tree of `budget` 60 holds 59 drafted tokens. A parent always
    stands before its children, so every prefix of the arrays is a tree as well.

    Attributes:
        tokens: token ids, shape `(nodes,)`, int64.
        parents: index of each node's parent, shape `(nodes,)`, int64; -1 for the root.
        path_logp: the drafter's natural log-probability of the path from the root, shape `(nodes,)`, float64;
            0 for the root. For a drawn node it is what its policy put in this place (`Drawn.logp`).
        drawn: for each node whose children were drawn, all of them or some, how they were; empty for trees of fixed
            children. Each drawn token is a child, and siblings hold different tokens.

    Raises:
        ValueError: if the arrays differ in length, are empty or have several axes, a parent does not stand before
            its child, or a drawn token has no node.
    """

    tokens: IntArray = attrs.field(converter=ints)
    parents: IntArray = attrs.field(converter=ints)
    path_logp: FloatArray = attrs.field(converter=floats)
    drawn: Mapping[int, Drawn] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if not self.tokens.ndim == self.parents.ndim == self.path_logp.ndim == 1:
            raise ValueError(
                f"tokens, parents and path_logp have one axis, the nodes; "
                f"got shapes {self.tokens.shape}, {self.parents.shape} and {self.path_logp.shape}"
            )
        nodes = len(self.tokens)
        if not nodes or len(self.parents) != nodes or len(self.path_logp) != nodes:
            raise ValueError(
                f"a tree needs equally many tokens, parents and path_logp, at least one: "
                f"got {nodes}, {len(self.parents)} and {len(self.path_logp)}"
            )
        if self.parents[0] != -1:
            raise ValueError(f"node 0 is the root and has parent -1, not {self.parents[0]}")
        (bad,) = ((self.parents[1:] < 0) | (self.parents[1:] >= np.arange(1, nodes))).nonzero()
        if len(bad):
            raise _no_parent(int(bad[0]) + 1, int(self.parents[bad[0] + 1]))
        if self.drawn:
            self._check_drawn()

    def _check_drawn(self) -> None:
        held = set(zip(self.parents[1:].tolist(), self.tokens[1:].tolist(), strict=True))
        for node, drawn in self.drawn.items():
            for token in drawn.tokens.tolist():
                if (node, token) not in held:
                    raise ValueError(f"token {token} was drawn under node {node}, and no child of that node holds it")

    @classmethod
    def root(cls, token: int) -> "TokenTree":
        """The tree every round starts from: the last committed token alone."""
        held = ints([token])
        if held.ndim > 1:
            return cls(held, ABOVE_ROOT, CERTAIN)  # it refuses it
        return cls._of(held, ABOVE_ROOT.view(), CERTAIN.view(), {}, DEPTH_0.view())

    @classmethod
    def _of(
        cls,
        tokens: IntArray,
        parents: IntArray,
        path_logp: FloatArray,
        drawn: Mapping[int, Drawn],
        depths: IntArray | None = None,
    ) -> "TokenTree":
        """A tree of arrays that are known to be right, and read only as `ints` makes them."""
        tree = object.__new__(cls)
        object.__setattr__(tree, "tokens", tokens)
        object.__setattr__(tree, "parents", parents)
        object.__setattr__(tree, "path_logp", path_logp)
        object.__setattr__(tree, "drawn", drawn)
        if depths is not None:
            object.__setattr__(tree, "depths", depths)
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    def copied(self, drawn: Mapping[int, Drawn] | None = None) -> "TokenTree":
        """The same tree as an object of its own: whatever is done to it, this one stays as it is.

        Args:
            drawn: copies of its draws; made where they are not given.
        """
        own = {node: one.copied() for node, one in self.drawn.items()} if drawn is None else dict(drawn)
        return TokenTree._of(self.tokens.view(), self.parents.view(), self.path_logp.view(), own, self.depths.view())

    @cached_property
    def depths(self) -> IntArray:
        """Distance from the root, shape `(nodes,)`, int64; the root has depth 0."""
        return node_depths(self.parents)

    @cached_property
    def ancestor_bits(self) -> BitArray:
        """The ancestor mask as packed bits, shape `(nodes, ceil(nodes / 32))`, uint32.

        Bit `j % 32` of word `[i, j // 32]` is set if node `j` is node `i` or one of its ancestors: the nodes that
        node `i` may attend to.
        """
        return ancestor_bits(self.parents)

    def ancestor_mask(self) -> NDArray[np.bool_]:
        """The ancestor mask unpacked, shape `(nodes, nodes)`, bool: entry `[i, j]` says that `i` may attend to `j`."""
        bits = np.unpackbits(self.ancestor_bits.view(np.uint8), axis=1, bitorder="little")
        return bits[:, : len(self)].astype(bool)

    def _repr_html_(self) -> str:
        from talon_core.pictures.notebook import picture_of

        return picture_of(self).html

    def as_dict(self) -> dict[str, Any]:
        """The tree as plain data, for JSON; `from_dict` reads it.

        Its draws are a list, each with its `node` and what `Drawn.as_dict` gives: in JSON no key is a number.
        """
        drawn = [{"node": node, **drawn.as_dict()} for node, drawn in self.drawn.items()]
        return {**records.fields_as_plain(self), "drawn": drawn}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TokenTree":
        """What `as_dict` gave, as it was.

        Raises:
            ValueError: if it is no tree; the sentence names the field and the value.
        """
        found: TokenTree = records.make(cls, data, READERS)
        return found

    def path(self, node: int) -> IntArray:
        """Node indices from the root to `node`, both included, shape `(depth + 1,)`, int64."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = int(self.parents[node])
        return np.array(nodes[::-1], dtype=np.int64)

    def child(self, node: int, token: int) -> int | None:
        """The first child of `node` that holds `token`, or None."""
        (children,) = (self.parents == node).nonzero()
        return next((child for child in children.tolist() if self.tokens.item(child) == token), None)

    def follow(self, tokens: Sequence[int] | IntArray) -> IntArray:
        """Walk from the root along `tokens` as far as the tree goes; node indices, the root's 0 first, int64."""
        wanted: list[int] = np.asarray(tokens).tolist()
        nodes = [0]
        for node, (parent, token) in enumerate(zip(self.parents.tolist(), self.tokens.tolist(), strict=True)):
            if len(nodes) > len(wanted):
                break
            if parent == nodes[-1] and token == wanted[len(nodes) - 1]:  # children stand behind their parents
                nodes.append(node)
        return np.array(nodes, dtype=np.int64)

    def extend(
        self,
        tokens: IntArray,
        parents: IntArray,
        path_logp: FloatArray,
        drawn: Mapping[int, Drawn] | None = None,
    ) -> "TokenTree":
        """This tree with nodes added at its end; the arrays have shape `(added,)`, `drawn` is by parent.

        Raises:
            ValueError: as for a new tree.
        """
        more = np.asarray(tokens, np.int64), np.asarray(parents, np.int64), np.asarray(path_logp, np.float64)
        held = {**self.drawn, **drawn} if drawn else self.drawn
        if not (more[0].shape == more[1].shape == more[2].shape == (more[0].size,)):  # the class says what is wrong
            return TokenTree(
                np.concatenate([self.tokens, more[0]]),
                np.concatenate([self.parents, more[1]]),
                np.concatenate([self.path_logp, more[2]]),
                held,
            )
        old = len(self)
        for node, parent in enumerate(more[1].tolist(), start=old):
            if not 0 <= parent < node:
                raise _no_parent(node, parent)
        extended = with_nodes(self, *more, held, layer=more[1].max(initial=0) < old)
        if drawn:
            extended._check_drawn()
        return extended

    def scored(self, path_logp: FloatArray) -> "TokenTree":
        """The same nodes with other scores, for a policy that shows its tree to another one.

        Args:
            path_logp: shape `(nodes,)`.

        Raises:
            ValueError: if it has another shape.
        """
        scores = floats(path_logp)
        if scores.shape != self.tokens.shape:
            raise ValueError(f"path_logp has shape {scores.shape}; the tree has {len(self)} nodes")
        return TokenTree._of(self.tokens, self.parents, scores, self.drawn, self.depths)

    def nodes_of(self, part: "TokenTree") -> list[int]:
        """The nodes of this tree that those of another one are, by the tokens of their paths.

        Args:
            part: a tree from the same root, as `keep` makes them.

        Returns:
            For each node of `part`, in order; -1 for one that is not here.
        """
        held = zip(self.parents[1:].tolist(), self.tokens[1:].tolist(), strict=True)
        places = {pair: node for node, pair in enumerate(held, start=1)}
        found = [0]
        for parent, token in zip(part.parents[1:].tolist(), part.tokens[1:].tolist(), strict=True):
            found.append(places.get((found[parent], token), -1))
        return found

    def without_laws(self) -> "TokenTree":
        """The tree as a record of what was drawn, without the laws, which are as large as the vocabulary."""
        if not self.drawn:
            return self
        drawn = self.drawn
        if isinstance(drawn, DrawnLater):
            records = drawn.without_laws()
        else:
            records = {node: own.without_law() for node, own in drawn.items()}
        return TokenTree._of(self.tokens, self.parents, self.path_logp, records, self.depths)

    def best(self, count: int) -> IntArray:
        """The `count` most likely nodes, shape `(min(count, nodes),)`, int64, best first; ties go to the earlier node.

        A node never ranks before its parent, even where a half-precision drafter's rounding has given it a higher
        `path_logp`, so the answer can always be kept.
        """
        score = self.path_logp
        ancestors = np.maximum(self.parents, 0)
        while (score > score[ancestors]).any():
            score = np.minimum(score, score[ancestors])
        return highest(score, count)

    def keep(self, nodes: Sequence[int] | IntArray) -> "TokenTree":
        """The sub-tree of `nodes`, in the order in which they stand in this tree; the tree itself where these are all.

        Of a node's drawn children only the first so many draws can be kept, or of draws with replacement all or none:
        what is left is then still drawn in the way that `drawn` says, if how many are kept was not decided by what came
        out.

        Args:
            nodes: indices without repetition, shape `(kept,)`; the root and every kept node's parent among them.

        Raises:
            ValueError: if a node is kept without its parent, or twice, or does not exist, or the root is not kept, or
                a drawn child is kept without those that were drawn before it.
        """
        kept = np.array(nodes, dtype=np.int64)
        kept.sort()
        if kept.ndim > 1:
            raise ValueError(f"the nodes to keep have one axis; got shape {kept.shape}")
        if len(kept) and (kept[0] < 0 or kept[-1] >= len(self)):
            wrong = kept[0] if kept[0] < 0 else kept[-1]
            raise ValueError(f"there is no node {wrong}; the tree has nodes 0 to {len(self) - 1}")
        again = kept[1:] == kept[:-1]
        if again.any():
            raise ValueError(f"node {kept[again.argmax()]} is kept twice; give each node once, by its index")
        if len(kept) == len(self):
            return self
        renumbered = np.full(len(self) + 1, -1, dtype=np.int64)  # the extra entry maps the root's parent -1 to -1
        renumbered[kept] = np.arange(len(kept))
        parents = renumbered[self.parents[kept]]
        if not len(kept) or kept[0] != 0:
            raise ValueError("the root, node 0, must be kept")
        (orphans,) = (parents[1:] < 0).nonzero()
        if len(orphans):
            node = int(kept[orphans[0] + 1])
            raise ValueError(f"node {node} is kept without its parent, node {self.parents[node]}")
        drawn = {}
        for node, own in self.drawn.items():
            fewer = self._kept_draws(node, own, renumbered)
            if fewer is not None:
                drawn[int(renumbered[node])] = fewer
        return TokenTree._of(ints(self.tokens[kept]), ints(parents), floats(self.path_logp[kept]), drawn)

    def _kept_draws(self, node: int, drawn: Drawn, renumbered: IntArray) -> Drawn | None:
        """What is left of the draws under a node; None if nothing is."""
        kept = [bool(renumbered[self.child(node, token)] >= 0) for token in drawn.nodes.tolist()]
        count = sum(kept)
        if drawn.replacement and 0 < count < len(kept):
            raise ValueError(
                f"of the tokens {drawn.tokens.tolist()}, drawn with replacement under node {node}, some are kept and "
                "some are not; keep all or none, as nodes do not tell how many of the draws are meant"
            )
        if not all(kept[:count]):
            raise ValueError(
                f"of the tokens {drawn.tokens.tolist()}, drawn in this order under node {node}, a later one is kept "
                "and an earlier one is not; keep the first ones"
            )
        if count == len(kept):
            return drawn
        return drawn.first(count) if count else None


def with_nodes(
    tree: TokenTree,
    tokens: IntArray,
    parents: IntArray,
    path_logp: FloatArray,
    drawn: Mapping[int, Drawn],
    *,
    layer: bool,
) -> TokenTree:
    """`TokenTree.extend` by what is known to fit: for whoever has checked it, as drafting does layer by layer.

    Args:
        tree: to be extended.
        tokens: shape `(added,)`, int64.
        parents: likewise, each before its child.
        path_logp: shape `(added,)`, float64.
        drawn: of the whole tree.
        layer: whether all parents are nodes of `tree`.
    """
    return TokenTree._of(
        joined(tree.tokens, tokens),
        joined(tree.parents, parents),
        joined(tree.path_logp, path_logp),
        drawn,
        joined(tree.depths, tree.depths.take(parents) + 1) if layer else None,
    )


def tree_of(tokens: IntArray, parents: IntArray, path_logp: FloatArray, depths: IntArray) -> TokenTree:
    """A tree without draws, of read-only arrays that are known to fit: for whoever has checked them.

    Args:
        tokens: shape `(nodes,)`, int64, as `ints` makes it, or a part of such an array; so are the others.
        parents: likewise.
        path_logp: shape `(nodes,)`, float64.
        depths: int64.
    """
    return TokenTree._of(tokens, parents, path_logp, {}, depths)


def chain_of(tokens: list[int], logp: FloatArray, drawn: Mapping[int, Drawn] | None = None) -> TokenTree:
    """A tree in which each node has one child, of what is known to fit.

    Args:
        tokens: the root's first.
        logp: natural log-probability of each drafted token after its parent, shape `(nodes - 1,)`, float64.
        drawn: as the tree's.
    """
    nodes = len(tokens)
    path_logp = np.zeros(nodes)
    logp.cumsum(out=path_logp[1:])
    parents, depths = _chain(nodes)
    return TokenTree._of(ints(np.array(tokens)), parents, floats(path_logp), {} if drawn is None else drawn, depths)


@cache
def _chain(nodes: int) -> tuple[IntArray, IntArray]:
    """Parents and depths of the nodes of a chain, made once for all threads."""
    return ints(np.arange(-1, nodes - 1)), ints(np.arange(nodes))


def _draws_of(data: Any) -> tuple[int, Drawn]:
    if not isinstance(data, Mapping) or "node" not in data:
        raise ValueError(f"{written(data)}; it must be a dictionary with a node and how its children were drawn")
    try:
        node = records.whole(data["node"])
    except ValueError as error:
        raise ValueError(f"a node that {error}") from None
    return node, Drawn.from_dict({name: data[name] for name in data if name != "node"})


def _drawn(data: Any) -> dict[int, Drawn]:
    found = records.several(_draws_of)(data)
    if len(dict(found)) < len(found):
        raise ValueError("has a node twice; its draws stand in one place")
    return dict(found)


READERS: Mapping[str, records.Reader] = {
    "tokens": records.wholes,
    "parents": partial(records.wholes, least=-1),
    "path_logp": records.numbers,
    "drawn": _drawn,
}
