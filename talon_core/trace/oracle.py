"""What was to be won: the best trees in hindsight, and the best by the drafter's own laws."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np

from talon_core.costs import Costs
from talon_core.trace.along import Along
from talon_core.trace.columns import NO_ROW, Rows
from talon_core.trace.prices import pass_seconds
from talon_core.tree import FloatArray, IntArray
from talon_core.tree_arrays import distinct


@attrs.frozen
class BestTrees:
    """Tokens per target pass with the best trees of so many nodes.

    Attributes:
        nodes: of a tree at most, the root included; None for any number.
        in_hindsight: with trees by somebody who knows the text, and may choose among what the drafter offers: the chain
            along the text, as far as it is offered. No policy gets more whose trees hold recorded candidates alone,
            with a rule that accepts what stands in the text; one that draws from whole laws may draw others.
        by_the_laws: with the nodes that are likeliest by the drafter's own laws: the best for a policy that believes
            them (OPT-Tree, arXiv 2406.17276, has such trees). What a policy lacks of it is the policy's; what it lacks
            of `in_hindsight` is the drafter's.
        tokens_per_second: by what passes take, with those chains along the text that are fastest together, of any
            number of nodes; see `fastest`. None where no costs are known.
        by_the_laws_tokens_per_second: by what passes take, with trees of the likeliest nodes by the drafter's own laws,
            whose sizes and depths are those that are fastest together; see `fastest_by_the_laws`. None likewise.
    """

    nodes: int | None
    in_hindsight: float
    by_the_laws: float
    tokens_per_second: float | None = None
    by_the_laws_tokens_per_second: float | None = None


def known_speeds(oracle: Any) -> dict[str, float]:
    """The speeds of `BestTrees`, or of what has them under the same names, where costs are known; as plain data."""
    speeds = {name: getattr(oracle, name) for name in ("tokens_per_second", "by_the_laws_tokens_per_second")}
    return {name: speed for name, speed in speeds.items() if speed is not None}


@attrs.frozen
class Fewest:
    """The fewest seconds of some texts.

    Attributes:
        in_hindsight: with chains along the text; see `fastest`.
        by_the_laws: with trees by the drafter's own laws; see `fastest_by_the_laws`.
    """

    in_hindsight: float
    by_the_laws: float

    @classmethod
    def all_of(cls, each: "Sequence[Fewest | None]") -> "Fewest | None":
        """Of several texts together; None if those of one are not known."""
        known = [one for one in each if one is not None]
        if len(known) < len(each):
            return None
        return cls(sum(one.in_hindsight for one in known), sum(one.by_the_laws for one in known))


def fastest(texts: Sequence[Along], prompts: Sequence[int], costs: Costs, layer: float) -> list[float]:
    """The fewest seconds of each text with chains along it, by these costs.

    No tree policy is faster whose trees hold what is offered here alone, with a rule that accepts what stands in the
    text. Its own time is left out, and so is what the drafter takes to hear of the text.

    Args:
        texts: what the drafter offered along each; at least one, of one token or more each.
        prompts: tokens of their prompts, whose reading counts.
        costs: what passes take; more of anything takes no less.
        layer: seconds of a layer of the drafter.
    """
    counts = 1 + np.concatenate([text.reach for text in texts])
    nodes = np.repeat(np.arange(1, 1 + counts.max())[None], len(counts), axis=0)
    return _fewest(texts, prompts, costs, layer, nodes)


def fastest_by_the_laws(texts: Sequence[Along], prompts: Sequence[int], costs: Costs, layer: float) -> list[float]:
    """The fewest seconds of each text with trees by the drafter's own laws, by these costs.

    A tree by the laws has some number of nodes and some number of layers, and knows nothing of the text: of all that is
    offered in these layers it has the nodes whose paths are likeliest, and of equals the earlier ones. Both numbers are
    chosen in hindsight, round by round, so that the whole text takes the fewest seconds; `Along.by_the_laws` has trees
    of one size in all rounds, and of any depth. To get k drafted tokens, no tree is cheaper than that of k layers in
    which the k-th token is the last node. A layer counts as one of one row, as in `fastest`, however many nodes a
    policy would draft from to find these.

    Args:
        texts: as there, with `shallow` ranks; what an earlier version has recorded lacks them.
        prompts: as there, and so is all else.

    Raises:
        ValueError: if a text has no such ranks.
    """
    reach = np.concatenate([text.reach for text in texts])
    nodes = np.ones((len(reach), 1 + reach.max()), dtype=np.int64)
    drafted = np.arange(nodes.shape[1] - 1) < reach[:, None]
    nodes[:, 1:][drafted] = np.concatenate([2 + _shallow(text) for text in texts])  # the token itself, and the root
    return _fewest(texts, prompts, costs, layer, nodes)


def _shallow(text: Along) -> IntArray:
    if text.shallow is None:
        raise ValueError(
            "a text has no 'shallow' ranks, as an earlier version has recorded it; give what "
            "talon_core.trace.oracle.along_rows(rows, tokens) says of its rows and new tokens, or record it anew"
        )
    return text.shallow


def _fewest(texts: Sequence[Along], prompts: Sequence[int], costs: Costs, layer: float, nodes: IntArray) -> list[float]:
    """The fewest seconds of each text; all is as for `fastest`, but for the trees.

    Args:
        texts: they.
        prompts: likewise.
        costs: likewise.
        layer: likewise.
        nodes: of a tree at each position with which a round emits 1, 2, ... tokens, shape `(positions, tokens)`; there
            is one for each token that is offered, and one more.
    """
    lengths, counts = np.array([*map(len, texts)]), 1 + np.concatenate([text.reach for text in texts])
    contexts = np.concatenate([prompt + np.arange(length) for prompt, length in zip(prompts, lengths, strict=True)])
    sizes, longest = np.arange(1, 1 + nodes.shape[1]), int(lengths.max())
    beyond = sizes > counts[:, None]
    known = distinct(nodes[~beyond])
    which = known.searchsorted(np.where(beyond, 1, nodes))
    ways = _passes(costs, known, which, counts, contexts)
    ways += layer * (sizes - 1)
    accept = np.array([costs.accept(size) or 0.0 for size in known.tolist()])
    ways += accept[which] + [costs.commit(size) or 0.0 for size in sizes.tolist()]
    ways[beyond] = np.inf
    # all texts end at the last column, so that a chain of some nodes leads as many columns further on
    takes = np.full((len(texts), longest, len(sizes)), np.inf)
    there = np.arange(longest) >= longest - lengths[:, None]
    takes[there] = ways
    left = np.zeros((len(texts), longest + len(sizes)))  # seconds from each position on
    for position in reversed(range(longest)):
        left[:, position] = (takes[:, position] + left[:, position + 1 : position + 1 + len(sizes)]).min(axis=1)
    begun = left[np.arange(len(texts)), longest - lengths].tolist()
    return [(costs.read(prompt) or 0.0) + seconds for prompt, seconds in zip(prompts, begun, strict=True)]


def _passes(costs: Costs, sizes: IntArray, which: IntArray, counts: IntArray, contexts: IntArray) -> FloatArray:
    """Seconds of a pass over several trees at each of some positions, shape `(positions, trees)`.

    Args:
        costs: what passes take; where they know nothing of one, it is free.
        sizes: of all trees, rising.
        which: of these each tree has, shape `(positions, trees)`.
        counts: how many of them are wanted at each position.
        contexts: committed tokens there.
    """
    known = distinct(contexts)
    passes = pass_seconds(costs, sizes, known)[known.searchsorted(contexts)[:, None], which]
    (unknown,) = np.isnan(passes[:, 0]).nonzero()
    passes[unknown] = 0.0
    for position in unknown.tolist():  # of larger trees than are wanted there, perhaps
        count = int(counts[position])
        each = costs.verify_each(sizes[which[position, :count]], int(contexts[position]))
        if each is not None:
            passes[position, :count] = each
    return passes


def best_trees(texts: Sequence[Along], nodes: int | None = None, seconds: Fewest | None = None) -> BestTrees:
    """The best trees on all texts.

    Args:
        texts: what the drafter offered along each.
        nodes: of a tree at most, at least 1; None for any number.
        seconds: the fewest that all texts take; None where no costs are known.
    """
    most = math.inf if nodes is None else nodes
    all_ = Along.joined([Along.listed([]), *texts])
    new, passes = len(all_), (all_.in_hindsight(most), all_.by_the_laws(most))
    in_hindsight, by_the_laws = (new / count if new else 0.0 for count in passes)
    if seconds is None:
        return BestTrees(nodes, in_hindsight, by_the_laws)
    return BestTrees(
        nodes, in_hindsight, by_the_laws, *(new / each if each else None for each in attrs.astuple(seconds))
    )


def along_rows(rows: Rows, tokens: Sequence[int]) -> Along:
    """How what was recorded lies along a text.

    Args:
        rows: along it.
        tokens: its new tokens; the last is no drafted one.
    """
    known = [_ranks(rows, position, tokens[position:-1]) for position in range(len(tokens))]
    return Along.listed(*([[own[which] for own in each] for each in known] for which in (0, 1)))


def _ranks(rows: Rows, position: int, coming: Sequence[int]) -> list[tuple[int, int]]:
    """Of each token that is offered its rank, and the one among the nodes that are no deeper."""
    first, end = rows.starts[position : position + 2].tolist()
    if first == end:
        return []
    tokens, logp = rows.offered(np.arange(first, end), rows.width)
    above, nodes = rows.above[first:end] - first, rows.nodes[first:end]
    layers, paths = _layers(above), logp.copy()  # of a root the paths are what is offered
    own = (tokens[above[1:]] == nodes[1:, None]).argmax(axis=1)
    for begin, behind in pairwise(layers):
        paths[begin:behind] += paths[above[begin:behind], own[begin - 1 : behind - 1]][:, None]
    flat, width = paths.ravel(), rows.width
    found = []
    for depth, place in enumerate(_along(rows, position, tokens, coming)):
        likelier = flat > flat[place]
        likelier[:place] |= flat[:place] == flat[place]  # of nodes that are as likely the earlier one comes first
        shallower = layers[depth] * width
        found.append((int(np.count_nonzero(likelier)), int(np.count_nonzero(likelier[:shallower]))))
    return found


def _layers(above: IntArray) -> list[int]:
    """Where the rows of each layer end, which stand behind each other.

    Args:
        above: the row of each row's parent; that of the first one is none.
    """
    ends = [1]
    while ends[-1] < len(above):
        ends.append(int(above.searchsorted(ends[-1])))
    return ends


def _along(rows: Rows, position: int, tokens: IntArray, coming: Sequence[int]) -> Iterator[int]:
    """The flat places of some tokens that follow each other, as far as they are offered."""
    first = row = rows.root(position)
    for token in coming:
        ranks = np.flatnonzero(tokens[row - first] == token).tolist() if row != NO_ROW else []
        if not ranks:
            return
        yield (row - first) * tokens.shape[1] + ranks[0]
        (row,) = rows.find(position, [row], [token])
