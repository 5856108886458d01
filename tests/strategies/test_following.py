import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_strategies.following import BEST, FIRST, LATEST, SURE, Following, FollowingOfEach, Seen, best_of


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


PROB = st.integers(0, 8).map(lambda eighths: eighths / 8)  # so that equal ones come often


@given(st.lists(st.lists(st.lists(PROB, min_size=2, max_size=4), max_size=5), max_size=60), PROB)
def test_what_is_expected_after_a_node_counts_the_latest_ones_alone(
    added: list[list[list[float]]], price: float
) -> None:
    seen = Seen((0.5, 0.25, 0.125))
    rows = [[0.5, 0.25, 0.125]]
    for nodes in added:
        width = min(map(len, nodes), default=0)
        falling = [sorted(node[:width], reverse=True) for node in nodes]
        seen.add(np.array(falling).reshape(len(nodes), width))
        rows += [node[:BEST] for node in falling]
        latest = rows[-LATEST:]
        expected = sum(max(0.5 * prob - price, 0.0) for node in latest for prob in node) / len(latest)
        assert seen.gains(np.array([0.5]), price) == pytest.approx([expected])


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 6), st.sampled_from([3, 30, 300]))
def test_several_texts_learn_and_expect_what_each_would_alone_to_the_bit(
    seed: int, texts: int, rounds: int, most: int
) -> None:
    numbers = np.random.default_rng(seed)
    alone, beside = ([Following() for _ in range(texts)] for _ in range(2))
    together = FollowingOfEach(beside)
    for round_ in range(rounds):
        of = numbers.integers(texts, size=numbers.integers(1, most))
        own = numbers.choice([0.1, 0.5, SURE, 0.9, 1.0], size=len(of))
        eighths = numbers.integers(0, 9, size=(len(of), numbers.integers(1, BEST + 3)))  # so that equal ones come often
        prob = -np.sort(-eighths / numbers.choice([8, 9]), axis=1)
        together.learn(of, own, best_of(prob))
        reach, price = numbers.integers(1, 9, size=len(of)) / 8, numbers.integers(0, 5, size=texts) / 16
        gains = together.gains(of, own, reach, price[of])
        for text in {*of.tolist()}:
            nodes = of == text
            alone[text].learn(own[nodes], prob[nodes])
            assert gains[nodes].tolist() == alone[text].gains(own[nodes], reach[nodes], float(price[text])).tolist()
        if round_ % 2:
            together.hand_back(np.arange(0, texts, 2))
    together.hand_back()
    for one, other in zip(alone, beside, strict=True):
        assert [seen.prob.tolist() for seen in one.seen] == [seen.prob.tolist() for seen in other.seen]
