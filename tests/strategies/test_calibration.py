import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.rounds import Round
from talon_core.tree import TokenTree
from talon_strategies.calibration import CERTAIN, Calibration, CalibrationOfEach


def rounds_of(prob, accepted):
    """Rounds of one drafted token, of which each was accepted or not."""
    tree = TokenTree([5, 7], [-1, 0], np.log([1.0, prob]))
    for one in accepted:
        yield Round(tree, np.arange(2 if one else 1), np.array([7, 3] if one else [3]))


def test_at_first_the_drafter_is_believed():
    logp = np.log([[0.9, 0.05], [0.5, 0.01]])
    assert Calibration().accepted(logp) == pytest.approx(logp)


def test_padding_stays_impossible_and_certainty_is_cut():
    found = Calibration().accepted(np.array([0.0, -np.inf, -1e6]))
    assert np.exp(found) == pytest.approx([1 / (1 + np.exp(-CERTAIN)), 0.0, 1 / (1 + np.exp(CERTAIN))])


@pytest.mark.parametrize(("said", "true"), [(0.9, 0.5), (0.3, 0.8), (0.5, 0.5), (0.02, 0.2)])
def test_what_is_said_becomes_what_is_seen(said, true):
    calibration, rng = Calibration(), np.random.default_rng(0)
    for round_ in rounds_of(said, rng.random(2000) < true):
        calibration.learn(round_)
    assert np.exp(calibration.accepted(np.log([said])))[0] == pytest.approx(true, abs=0.05)


def test_a_drafter_that_is_too_sure_at_both_ends_gets_a_flatter_line():
    calibration, rng = Calibration(), np.random.default_rng(0)
    for high, low in zip(rounds_of(0.95, rng.random(1500) < 0.8), rounds_of(0.05, rng.random(1500) < 0.2), strict=True):
        calibration.learn(high)
        calibration.learn(low)
    offset, slope = calibration.line
    assert offset == pytest.approx(0.0, abs=0.1)
    assert slope == pytest.approx(np.log(4) / np.log(19), abs=0.05)


def test_only_children_of_accepted_nodes_tell_something():
    tree = TokenTree([1, 2, 3, 4, 5], [-1, 0, 0, 1, 2], np.log([1.0, 0.5, 0.3, 0.25, 0.03]))
    one, other = Calibration(), Calibration()
    one.learn(Round(tree, np.array([0, 1]), np.array([2, 9])))  # node 4 stands below node 2, which was rejected
    other.learn(Round(tree.keep([0, 1, 2, 3]), np.array([0, 1]), np.array([2, 9])))
    assert one.line.tolist() == other.line.tolist() != Calibration().line.tolist()


def test_a_round_without_a_draft_tells_nothing():
    calibration = Calibration()
    calibration.learn(Round(TokenTree.root(3), np.array([0]), np.array([4])))
    assert calibration.line.tolist() == Calibration().line.tolist()


@given(st.lists(st.tuples(st.floats(1e-6, 1 - 1e-6), st.booleans()), max_size=30))
def test_a_likelier_token_is_never_worth_less(seen):
    calibration = Calibration()
    for prob, accepted in seen:
        for round_ in rounds_of(prob, [accepted]):
            calibration.learn(round_)
    rising = calibration.accepted(np.log(np.geomspace(1e-6, 1.0, 30)))
    assert (np.diff(rising) >= 0).all()
    assert (rising <= 0).all()


@given(st.data())
def test_several_texts_learn_what_each_would_learn_alone_to_the_bit(data):
    texts = data.draw(st.integers(1, 4))
    alone, beside = ([Calibration() for _ in range(texts)] for _ in range(2))
    together = CalibrationOfEach(beside)
    tested = st.tuples(st.integers(0, texts - 1), st.floats(1e-6, 1 - 1e-6), st.booleans())
    for round_ in data.draw(st.lists(st.lists(tested, min_size=1, max_size=30), max_size=4)):
        of, prob, accepted = (np.array(each) for each in zip(*sorted(round_, key=lambda one: one[0]), strict=True))
        together.learn(of, np.log(prob), accepted)
        for text in {*of.tolist()}:
            own, tree = np.flatnonzero(of == text), alone[text]
            nodes = len(own) + 1
            drafted = TokenTree([0, *range(1, nodes)], [-1] + [0] * len(own), np.append(0.0, np.log(prob[own])))
            tree.learn(Round(drafted, np.append(0, 1 + accepted[own].nonzero()[0]), np.arange(nodes)))
    for one, other, line in zip(alone, beside, together.lines, strict=True):
        assert one.line.tolist() == other.line.tolist() == line.tolist()
        assert one.precision.tolist() == other.precision.tolist()
