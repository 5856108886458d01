import numpy as np
import pytest

from talon_strategies.following import BEST, FIRST, LATEST, SURE, Following, Seen


def forgetful():
    """One that takes nothing for granted."""
    return Following((Seen(), Seen()))


def test_gains_are_what_candidates_bring_above_their_price_in_the_mean_of_what_was_seen():
    following = forgetful()
    following.learn(np.array([0.1, 0.2]), np.array([[0.6, 0.3, 0.05, 0.04], [0.2, 0.1, 0.1, 0.1]]))
    following.learn(np.array([0.9]), np.array([[0.8, 0.1, 0.0, 0.0]]))
    gains = following.gains(np.array([0.3, 0.95]), np.array([0.5, 0.9]), price=0.1)
    unsure = [0.5 * 0.6 - 0.1 + 0.5 * 0.3 - 0.1, 0.0]  # of the second nothing is worth its price
    assert gains == pytest.approx([sum(unsure) / 2, 0.9 * 0.8 - 0.1])


def test_a_node_as_likely_as_the_bound_is_sure():
    following = forgetful()
    following.learn(np.array([SURE, np.nextafter(SURE, 0)]), np.array([[1.0], [0.5]]))
    assert [group.prob.tolist() for group in following.seen] == [[[0.5, 0.0, 0.0]], [[1.0, 0.0, 0.0]]]


def test_the_latest_nodes_are_remembered():
    following = Following()
    for number in range(2 * LATEST):
        following.learn(np.array([0.1]), np.array([[number / 1000]]))
    remembered = [number / 1000 for number in range(LATEST, 2 * LATEST)]
    assert sorted(following.seen[0].prob[:, 0].tolist()) == remembered
    assert following.seen[1].prob.tolist() == [[*FIRST[1]]]


def test_before_anything_is_seen_more_is_expected_of_sure_nodes():
    gains = Following().gains(np.array([0.1, 0.9]), np.array([1.0, 1.0]), price=0.0)
    assert gains == pytest.approx([sum(FIRST[0]), sum(FIRST[1])])
    assert len(FIRST[0]) == len(FIRST[1]) == BEST
