"""Hypothesis strategies: laws, trees, drafters and limits, the awkward ones among them."""

from functools import cache

import numpy as np
from hypothesis import strategies as st

from talon_core.engine.drafting import DraftLimits
from talon_core.table import TableDrafter
from talon_core.tree import FloatArray, TokenTree

_WEIGHTS = st.sampled_from([1.0, 0.0, 0.5, 1e-3, 1e-12, 1e-300, 1e6]) | st.floats(1e-6, 1.0)


def laws(vocab_size: int, weights: st.SearchStrategy[float] = _WEIGHTS) -> st.SearchStrategy[FloatArray]:
    """Laws of the next token, shape `(vocab,)`, float64: flat, peaked, with forbidden, tied and unlikely tokens.

    Args:
        vocab_size: tokens are 0 to `vocab_size - 1`.
        weights: what the probabilities are in proportion to; where all are 0, the law is flat.
    """
    return st.lists(weights, min_size=vocab_size, max_size=vocab_size).map(_normalised)


def _normalised(weights: list[float]) -> FloatArray:
    law = np.array(weights)
    if not law.any():
        law[:] = 1.0
    law /= law.sum()
    return law


def draft_trees(max_nodes: int = 24, vocab_size: int = 50) -> st.SearchStrategy[TokenTree]:
    """Trees of 1 to `max_nodes` nodes, of any shape, in which siblings hold different tokens.

    Args:
        max_nodes: counts the root.
        vocab_size: tokens are 0 to `vocab_size - 1`.
    """
    node = st.tuples(st.integers(0, 2**16), st.integers(0, vocab_size - 1), st.floats(-8.0, 0.0))
    return st.builds(_tree, st.integers(0, vocab_size - 1), st.lists(node, max_size=max_nodes - 1), st.just(vocab_size))


def _tree(root: int, nodes: list[tuple[int, int, float]], vocab_size: int) -> TokenTree:
    tokens, parents, path_logp = [root], [-1], [0.0]
    for index, (where, token, logp) in enumerate(nodes, start=1):
        unfilled = [node for node in range(index) if parents.count(node) < vocab_size]
        parent = unfilled[where % len(unfilled)]
        taken = {tokens[other] for other in range(1, index) if parents[other] == parent}
        tokens.append(next(free for step in range(vocab_size) if (free := (token + step) % vocab_size) not in taken))
        parents.append(parent)
        path_logp.append(path_logp[parent] + logp)
    return TokenTree(tokens=tokens, parents=parents, path_logp=path_logp)


def table_drafters(vocab_size: int | None = None) -> st.SearchStrategy[TableDrafter]:
    """Drafters of 2 to 6 tokens, or of `vocab_size`: some look at the path, know few tokens, end or round upwards."""
    return st.integers(2, 6).flatmap(_table_drafters) if vocab_size is None else _table_drafters(vocab_size)


@cache  # Hypothesis looks each strategy through before it first draws from it, which takes longer than drawing
def _table_drafters(vocab_size: int) -> st.SearchStrategy[TableDrafter]:
    return st.builds(
        TableDrafter,
        st.lists(laws(vocab_size), min_size=1, max_size=6).map(np.stack),
        knows=st.none() | st.integers(0, vocab_size),
        fills=st.booleans(),
        excess=st.sampled_from([0.0, 0.0, 5e-4]),
    )


@cache
def untied_drafters(vocab_size: int) -> st.SearchStrategy[TableDrafter]:
    """Drafters whose laws look at the path, forbid nothing, and hold no ties, flat ones and peaked ones."""
    return st.builds(_untied, st.just(vocab_size), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 3.0, 8.0]))


def _untied(vocab_size: int, seed: int, spread: float) -> TableDrafter:
    weights = np.exp(spread * np.random.default_rng(seed).standard_normal((499, vocab_size)))
    return TableDrafter(weights / weights.sum(axis=1, keepdims=True))


@cache
def draft_limits(vocab_size: int, max_depth: int = 64) -> st.SearchStrategy[DraftLimits]:
    """Limits of one round, down to a tree that must not grow at all, with and without tokens that end the text."""
    few: st.SearchStrategy[frozenset[int]] = st.frozensets(st.integers(0, vocab_size - 1), max_size=2)
    depths = st.integers(0, min(12, max_depth)) | st.integers(0, min(4, max_depth)) | st.integers(0, max_depth)
    return st.builds(DraftLimits, st.just(vocab_size), depths, few)
