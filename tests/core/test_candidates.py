"""Candidates that are made of a drafter's scores."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from talon_core import Candidates, SeededChoices, TokenTree
from talon_core.drafting import DraftLimits, draft_tree
from talon_core.table import Memoryless
from talon_core.testing import TableDrafter
from talon_drafters.best import Best
from talon_strategies import Talon

TREE = TokenTree(tokens=[5, 7, 8], parents=[-1, 0, 0], path_logp=[0.0, -0.5, -1.0])
FRONTIER = np.array([2, 1])
CHOICES = SeededChoices(0)
LAWS = np.array([[0.1, 0.6, 0.3, 0.0], [0.25, 0.25, 0.0, 0.5]])

with np.errstate(divide="ignore"):
    LOGITS = np.log(LAWS) + np.array([[1000.0], [-7.0]])


def made(logits=LOGITS, width=3, frontier=FRONTIER):
    return Candidates.from_logits(TREE, frontier, logits, width, CHOICES)


def test_the_best_tokens_come_first_with_their_scores_and_those_of_their_paths():
    candidates = made()
    assert candidates.tokens.tolist() == [[1, 2, 0], [3, 0, 1]]
    assert candidates.logp == pytest.approx(np.log([[0.6, 0.3, 0.1], [0.5, 0.25, 0.25]]), abs=1e-9)
    assert candidates.path_logp == pytest.approx(candidates.logp + TREE.path_logp[FRONTIER][:, None])
    assert candidates.frontier.tolist() == [2, 1]


def test_the_law_is_the_softmax_and_tokens_that_cannot_come_are_padding():
    candidates = made(width=9)
    assert candidates.tokens.tolist() == [[1, 2, 0, -1], [3, 0, 1, -1]]
    assert candidates.logp[:, 3].tolist() == [-np.inf, -np.inf]
    for row, law in enumerate(LAWS):
        assert candidates.law(row) == pytest.approx(law, abs=1e-12)


def test_a_row_without_any_score_is_padding_and_has_no_law():
    candidates = made(np.stack([np.full(4, -np.inf), LOGITS[1]]), width=2)
    assert candidates.tokens.tolist() == [[-1, -1], [3, 0]]
    with pytest.raises(ValueError, match="carry no full law"):
        candidates.law(0)


@given(arrays.arrays(np.float32, (2, 9), elements=st.floats(-50, 50, width=32), unique=True), st.integers(1, 12))
def test_they_are_those_that_the_built_in_drafters_find(logits, width):
    theirs = Best.of(torch.from_numpy(logits), width, None, 9).candidates([0, 1], TREE, FRONTIER, width, CHOICES)
    ours = made(logits, width)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.logp == pytest.approx(theirs.logp, abs=1e-4)
    assert ours.law(1) == pytest.approx(theirs.law(1), abs=1e-9)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16])
def test_tensors_of_any_precision_that_numpy_can_read_do_as_well(kind):
    candidates = made(torch.tensor(LAWS).log().to(kind))
    assert candidates.tokens[:, 0].tolist() == [1, 3]
    assert candidates.logp[:, 0] == pytest.approx(np.log([0.6, 0.5]), abs=1e-3)


class FromLogits(Memoryless):
    """Scores by the same table as `TableDrafter`."""

    def __init__(self, table):
        self.table = table

    def offer(self, tree, frontier, width, choices):
        laws = [self.table.law_after(tree.tokens[tree.path(node)].tolist()) for node in frontier.tolist()]
        with np.errstate(divide="ignore"):
            return Candidates.from_logits(tree, frontier, np.log(laws), width, choices)


def test_a_drafter_that_is_made_of_them_keeps_its_contract():
    table = TableDrafter(np.random.default_rng(1).dirichlet(np.ones(9), size=4))
    limits = DraftLimits(9, max_depth=6)
    tree, other = (
        draft_tree(Talon(budget=12), one, 0, limits, SeededChoices(0)).tree for one in (FromLogits(table), table)
    )
    assert tree.tokens.tolist() == other.tokens.tolist()
    assert len(tree) == 12


@pytest.mark.parametrize(
    ("logits", "complaint"),
    [
        (
            LOGITS[:1],
            r"logits have shape \(1, 4\) and type float64; they are .* of shape \(2, vocab\)",
        ),
        (LOGITS[0], r"logits have shape \(4,\)"),
        (np.zeros((2, 0)), r"logits have shape \(2, 0\)"),
        (np.zeros((2, 4), dtype=int), "and type int64; they are floating-point numbers"),
        (np.full((2, 4), np.nan), "logits hold NaN or infinity; a token that cannot come has minus infinity"),
        (np.full((2, 4), np.inf), "logits hold NaN or infinity"),
    ],
)
def test_scores_that_are_none_are_refused_in_words(logits, complaint):
    with pytest.raises(ValueError, match=complaint):
        made(logits)


def test_nothing_is_one_column_of_padding():
    nothing = Candidates.unknown(FRONTIER, CHOICES)
    assert nothing.tokens.tolist() == [[-1], [-1]]
    assert not np.isfinite(nothing.path_logp).any()
    with pytest.raises(ValueError, match="carry no full law"):
        nothing.law(0)
