"""What was to be won: the best trees in hindsight, and the best by the drafter's own laws."""

import math
from collections.abc import Iterator, Sequence

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
    """

    nodes: int | None
    in_hindsight: float
    by_the_laws: float
    tokens_per_second: float | None = None


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
    lengths, counts = np.array([*map(len, texts)]), 1 + np.concatenate([text.reach for text in texts])
    contexts = np.concatenate([prompt + np.arange(length) for prompt, length in zip(prompts, lengths, strict=True)])
    sizes, longest = np.arange(1, 1 + counts.max()), int(lengths.max())
    ways = _passes(costs, sizes, counts, contexts)
    ways += layer * (sizes - 1)
    ways += [(costs.accept(size) or 0.0) + (costs.commit(size) or 0.0) for size in sizes.tolist()]
    ways[sizes > counts[:, None]] = np.inf
    # all texts end at the last column, so that a chain of some nodes leads as many columns further on
    takes = np.full((len(texts), longest, len(sizes)), np.inf)
    there = np.arange(longest) >= longest - lengths[:, None]
    takes[there] = ways
    left = np.zeros((len(texts), longest + len(sizes)))  # seconds from each position on
    for position in reversed(range(longest)):
        left[:, position] = (takes[:, position] + left[:, position + 1 : position + 1 + len(sizes)]).min(axis=1)
    begun = left[np.arange(len(texts)), longest - lengths].tolist()
    return [(costs.read(prompt) or 0.0) + seconds for prompt, seconds in zip(prompts, begun, strict=True)]


def _passes(costs: Costs, sizes: IntArray, counts: IntArray, contexts: IntArray) -> FloatArray:
    """Seconds of a pass over trees of several sizes at each of some positions, shape `(positions, sizes)`.

    Args:
        costs: what passes take; where they know nothing of one, it is free.
        sizes: 1, 2, ...
        counts: how many of them are wanted at each position.
        contexts: committed tokens there.
    """
    known = distinct(contexts)
    passes = pass_seconds(costs, sizes, known)[known.searchsorted(contexts)]
    (unknown,) = np.isnan(passes[:, 0]).nonzero()
    passes[unknown] = 0.0
    for position in unknown.tolist():  # of larger trees than are wanted there, perhaps
        count = int(counts[position])
        each = costs.verify_each(sizes[:count], int(contexts[position]))
        if each is not None:
            passes[position, :count] = each
    return passes


def best_trees(texts: Sequence[Along], nodes: int | None = None, seconds: float | None = None) -> BestTrees:
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
    return BestTrees(nodes, in_hindsight, by_the_laws, new / seconds if seconds else None)


def along_rows(rows: Rows, tokens: Sequence[int]) -> Along:
    """How what was recorded lies along a text.

    Args:
        rows: along it.
        tokens: its new tokens; the last is no drafted one.
    """
    return Along.listed([_ranks(rows, position, tokens[position:-1]) for position in range(len(tokens))])


def _ranks(rows: Rows, position: int, coming: Sequence[int]) -> tuple[int, ...]:
    first, end = rows.starts[position : position + 2].tolist()
    if first == end:
        return ()
    tokens, logp = rows.offered(np.arange(first, end), rows.width)
    above, nodes, scores = rows.above[first:end] - first, rows.nodes[first:end].tolist(), np.zeros(end - first)
    for row in range(1, end - first):  # each behind the one above it
        rank = int((tokens[above[row]] == nodes[row]).argmax())
        scores[row] = scores[above[row]] + logp[above[row], rank]
    paths = scores[:, None] + logp
    offered = np.flatnonzero(tokens >= 0)
    ranked = np.empty(tokens.size, dtype=np.int64)  # of nodes that are as likely the earlier one comes first
    ranked[offered[np.argsort(-paths.ravel()[offered], kind="stable")]] = np.arange(len(offered))
    return tuple(int(ranked[flat]) for flat in _along(rows, position, tokens, coming))


def _along(rows: Rows, position: int, tokens: IntArray, coming: Sequence[int]) -> Iterator[int]:
    """The flat places of some tokens that follow each other, as far as they are offered."""
    first = row = rows.root(position)
    for token in coming:
        ranks = np.flatnonzero(tokens[row - first] == token).tolist() if row != NO_ROW else []
        if not ranks:
            return
        yield (row - first) * tokens.shape[1] + ranks[0]
        (row,) = rows.find(position, [row], [token])
