"""Candidates as data, and those that are made of a drafter's scores."""

import pickle

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from talon_core import Candidates, SeededChoices, TokenTree
from talon_core.candidates import LawRows, NoLaws
from talon_core.drafter import Frontier
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.runtime.best import Best, Vocabulary
from talon_core.table import Memoryless
from talon_core.testing import TableDrafter
from talon_strategies import Talon

TREE = TokenTree(tokens=[5, 7, 8], parents=[-1, 0, 0], path_logp=[0.0, -0.5, -1.0])
FRONTIER = np.array([2, 1])
LAWS = np.array([[0.1, 0.6, 0.3, 0.0], [0.25, 0.25, 0.0, 0.5]])

with np.errstate(divide="ignore"):
    LOGITS = np.log(LAWS) + np.array([[1000.0], [-7.0]])


def made(logits=LOGITS, width=3, frontier=FRONTIER):
    return Candidates.from_logits(TREE, frontier, logits, width)


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


@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(0, 3), st.integers(1, 4)),
        elements=st.sampled_from([0.0, -0.0, -1.0, -2.0, -np.inf, np.nan]),
    ),
    st.sampled_from([-np.inf, -1.0, 0.0, 1.0, np.nan]),
)
def test_the_best_one_is_the_first_of_the_best(path_logp, at_least):
    frontier, tokens = np.arange(len(path_logp)), np.zeros(path_logp.shape, dtype=np.int64)
    candidates = Candidates(frontier, tokens, path_logp, path_logp)
    ranked = candidates.best(100, at_least=at_least)
    for count in (1, 2, np.uint8(1), np.uint64(2)):
        assert candidates.best(count, at_least=at_least).tolist() == ranked[: int(count)].tolist()


@given(arrays.arrays(np.float32, (2, 9), elements=st.floats(-50, 50, width=32), unique=True), st.integers(1, 12))
def test_they_are_those_that_the_built_in_drafters_find(logits, width):
    theirs = Best.of(torch.from_numpy(logits), width, Vocabulary(9)).candidates(
        [0, 1], Frontier(0, TREE, FRONTIER, width)
    )
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

    def offer(self, tree, frontier, width):
        laws = [self.table.law_after(tree.tokens[tree.path(node)].tolist()) for node in frontier.tolist()]
        with np.errstate(divide="ignore"):
            return Candidates.from_logits(tree, frontier, np.log(laws), width)


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


def test_what_is_unknown_is_one_column_of_padding():
    nothing = Candidates.unknown(FRONTIER)
    assert nothing.frontier.tolist() == [2, 1]
    assert nothing.tokens.tolist() == [[-1], [-1]]
    assert not np.isfinite(nothing.path_logp).any()
    with pytest.raises(ValueError, match="carry no full law"):
        nothing.law(0)


# As data


ARRAYS = ("frontier", "tokens", "logp", "path_logp")


def test_candidates_are_equal_if_their_arrays_are_whatever_says_their_laws():
    assert made() == made()
    assert made() == attrs.evolve(made(), law=NoLaws())
    assert made() == made().copied() == made().detached()
    assert made(width=2) != made()
    for name in ARRAYS:
        changed = np.array(getattr(made(), name))
        changed[0] += 1
        assert made() != attrs.evolve(made(), **{name: changed})


def test_whole_laws_are_equal_if_their_rows_are():
    assert LawRows(LAWS) == LawRows(LAWS.copy()) != LawRows(LAWS[::-1])
    assert NoLaws() == NoLaws() != LawRows(LAWS)


def test_detached_candidates_stay_as_they_are_whatever_becomes_of_the_drafters_memory():
    buffers = [np.array(getattr(made(), name)) for name in ARRAYS]
    laws = LAWS.copy()
    detached = Candidates(*buffers, law=lambda row: laws[row]).detached(laws=True)
    for buffer in (*buffers, laws):
        buffer[:] = 7
    assert detached == made()
    assert [detached.law(row).tolist() for row in range(2)] == LAWS.tolist()


def test_detached_candidates_are_read_only():
    detached = made().detached(laws=True)
    for array in (*(getattr(detached, name) for name in ARRAYS), detached.law(0)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_detached_candidates_have_laws_only_where_they_were_asked_for():
    with pytest.raises(ValueError, match=r"carry no full law \(asked for frontier row 1\)"):
        made().detached().law(1)
    assert made().detached(laws=True).law(1) == pytest.approx(LAWS[1])
    with pytest.raises(ValueError, match="carry no full law"):
        Candidates.unknown(FRONTIER).detached(laws=True)


@pytest.mark.parametrize("laws", [False, True])
def test_detached_candidates_come_out_of_a_pickle_as_they_went_in(laws):
    met = []

    class Meets(Talon):
        """Remembers what it was given, whose laws are checked by the engine when they are asked for."""

        def grow(self, tree, candidates, choices):
            met.append(candidates)
            return super().grow(tree, candidates, choices)

    draft_tree(Meets(budget=12), TableDrafter(LAWS), 0, DraftLimits(4, max_depth=3), SeededChoices(0))
    assert len(met) == 2
    for candidates in met:
        again = pickle.loads(pickle.dumps(candidates.detached(laws=laws)))
        assert again == candidates
        for row in range(len(candidates.frontier) if laws else 0):
            assert again.law(row).tolist() == candidates.law(row).tolist()


def test_draws_hang_on_the_given_choices_alone():
    candidates = made()
    drawn = [candidates.draw(SeededChoices(seed), 0, 8, replacement=True).tokens.tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert candidates.draw(SeededChoices(1), 0, 9).law.tolist() == candidates.law(0).tolist()
    assert sorted(candidates.draw(SeededChoices(1), 1, 9).tokens.tolist()) == [0, 1, 3]
