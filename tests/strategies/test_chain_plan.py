"""Chains that are worth drafting: thresholds by price, rounds by what may be lost, and what is learnt behind them."""

import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.chains import Account, Chains
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.forest import ForestCandidates
from talon_core.policy import SequenceInfo
from talon_core.rounds import Round
from talon_core.testing import TableDrafter
from talon_strategies import TalonCost
from talon_strategies.calibration import START, Calibration, CalibrationOfEach, calibrated, raw
from talon_strategies.chain_forests import ChainsOfEach
from talon_strategies.chain_plan import (
    DEEPEST,
    ROUNDS,
    UNSEEN,
    WIDTH_OF_CHAINS,
    ChainNote,
    ChainPrices,
    gain_of_branches,
    learn_chains,
    least_reach,
    left_of,
    planned,
    planned_draws,
)
from talon_strategies.draws_learnt import Drawing
from talon_strategies.following import FIRST, Following, FollowingOfEach, best_of
from talon_tests.prices import Prices

LINE = np.array(START)
RICH = 1e9


def plan(node=0.2, layer=0.1, afford=RICH, most=16, line=LINE, rate=1.0):
    verifying = 1.0 + node * np.arange(20)
    return planned(line, Following(), ChainPrices(verifying, layer, rate, afford, 1.0), most, 4)


def test_a_token_joins_where_it_is_likelier_accepted_than_it_costs():
    assert math.exp(plan(node=0.2).joins[0]) == pytest.approx(0.2)
    assert math.exp(plan(node=0.2, rate=2.0).joins[0]) == pytest.approx(0.4)
    assert plan(node=1.5).joins == (math.inf,)
    assert plan(node=0.0).joins[0] == -math.inf


@pytest.mark.parametrize("line", [(0.0, 1.0), (0.7, 0.8), (-1.2, 1.4)])
@pytest.mark.parametrize("accepted", [0.01, 0.3, 0.9, 0.999])
def test_levels_are_what_the_calibration_makes_of_them(line, accepted):
    logp = np.array([raw(accepted, np.array(line))])
    assert np.exp(calibrated(logp, *line)) == pytest.approx(accepted)


def test_a_dearer_layer_is_asked_for_from_likelier_paths_and_at_last_from_none():
    following = Following()
    reaches = [least_reach(following, 0.1, layer) for layer in (0.0, 0.1, 0.3, 0.5, 2.0)]
    assert reaches == sorted(reaches)
    assert reaches[0] < 0.7 < reaches[3] <= 1.0
    assert reaches[-1] > 1.0
    assert plan(layer=2.0).depth == 1
    assert plan(layer=0.01, node=0.01).depth == DEEPEST
    assert plan(layer=0.01, node=0.01, most=3).depth == 3


@given(st.floats(0.0, 40.0), st.lists(st.tuples(st.integers(1, DEEPEST), st.integers(0, DEEPEST)), min_size=ROUNDS))
def test_rounds_lose_together_no_more_than_they_may(afford, outcomes):
    """Whatever their layers find, and whatever is accepted; but for the first one, which is asked about beforehand."""
    found = plan(afford=afford)
    assert found.rounds == ROUNDS
    account, left = found.account, afford
    assert account.credit == afford
    for number, (layers, accepted) in enumerate(outcomes[:ROUNDS]):
        if number and left < account.least:
            break
        layers = min(layers, found.depth)
        accepted = min(accepted, layers)
        left += account.of(layers, layers, accepted + 1)
        assert left >= 0.0 or (number == 0 and afford < account.least)


def test_a_round_that_loses_the_most_is_what_has_to_be_left():
    found = plan(afford=5.0)
    assert found.account.of(found.depth, found.depth, 1) == pytest.approx(-found.account.least)


@pytest.mark.parametrize("over", [0, 1, 3])
def test_what_is_left_of_chains_goes_on_with_what_is_left_of_their_credit(over):
    found = plan(afford=5.0)
    left = left_of(found, over, 2.5)
    assert (left.rounds, left.joins) == (ROUNDS - over, found.joins)
    assert left.account == attrs.evolve(found.account, credit=2.5 if over else 5.0)


def draws(share, layer=0.1, afford=RICH, rate=1.0):
    drawing = Drawing(chained=0.8)
    drawing.seen = np.array([[0.5, share]])
    verifying = 1.0 + 0.2 * np.arange(20)
    return planned_draws(drawing, ChainPrices(verifying, layer, rate, afford, 1.0), 16, 4)


@pytest.mark.parametrize("share", [0.01, 0.4, 0.6, 0.8, 0.99])
def test_drawn_chains_are_as_long_as_brings_most_if_all_draws_are_accepted_as_often(share):
    worth = [sum(share**k for k in range(1, n + 1)) - n * 0.3 for n in range(1, DEEPEST + 1)]
    found = draws(share)
    assert (found.depth, found.drawn) == (1 + int(np.argmax(worth)), 0.8)
    assert found.joins == (Drawing().level(1.2 - 1.0),) + (-math.inf,) * (found.depth - 1)
    assert found.goes_on == (-math.inf,) * (found.depth - 1) + (math.inf,)


def test_drawn_chains_have_an_account_as_others_have():
    found = draws(0.99, afford=1.0)
    assert found.depth < DEEPEST
    assert found.account.of(found.depth, found.depth, 1) == pytest.approx(-found.account.least)
    assert draws(0.01, afford=0.0).rounds == ROUNDS


@pytest.mark.parametrize("drawn", [False, True])
def test_of_chains_it_is_learnt_how_likely_draws_are(drawn):
    """Whatever their tokens are; what was accepted tells of draws where they are draws, and otherwise of the best."""
    drawing, calibration, following = Drawing(), Calibration(), Following()
    logp = np.log([[0.6, 0.2, 0.1, 0.05]])
    notes = [ChainNote([*logp], 1, accepted, 1 + accepted, 1.3) for accepted in (1, 1, 1)]
    expected = learn_chains(notes, calibration, following, drawing, drawn)
    draw = 0.1 + 0.8 * 0.6
    assert expected == pytest.approx([1.0 + (draw if drawn else 0.6)] * 3)
    assert drawing.seen[-3:] == pytest.approx(np.array([[0.6, draw]] * 3))
    assert (drawing.calibration.line[0] > 0.0) == drawn
    assert (calibration.line[0] > 0.0) != drawn


@pytest.mark.parametrize("price", [0.0, 0.05, 0.2, 0.5, 0.89, 0.95, 1.0, 2.0])
def test_a_draw_joins_where_its_law_is_sure_enough(price):
    drawing = Drawing()
    level = drawing.level(price)
    for prob in (0.001, 0.1, 0.3, 0.7, 0.99):
        worth = np.exp(drawing.calibration.accepted(drawing.expected(np.log([[prob]])))).item()
        assert (np.log(prob) >= level) == (worth >= price)


def test_what_costs_nothing_is_planned_for_as_long_as_may_be():
    even = planned(LINE, Following(), ChainPrices(np.array([1.0, 1.01]), 0.0, 0.9, -1e-18, 1.01), 5, 4)
    assert (even.rounds, even.account) == (ROUNDS, None)


def test_what_is_learnt_at_once_is_what_each_round_teaches():
    """Of the same tokens; the line moves by one step for all of them, and not by one for each round."""
    rows = np.log([[0.6, 0.2, 0.1, 0.05], [0.9, 0.05, 0.02, 0.01], [0.3, 0.2, 0.1, 0.1]])
    notes = [
        ChainNote([rows[0], rows[1]], 2, 1, 2, 1.4),  # the second token was rejected
        ChainNote([rows[2]], 0, 0, 1, 1.1),  # nothing joined, and so nothing was tested
        ChainNote([rows[0], rows[1], rows[2]], 3, 0, 1, 1.8),  # nor is what lies behind a rejected token
    ]
    calibration, following = Calibration(), Following()
    expected = learn_chains(notes, calibration, following)
    assert expected == pytest.approx([1 + 0.6 + 0.54, 1.0, 1 + 0.6 + 0.54 + 0.162])
    own = Calibration()
    own.learn_tested(np.array([rows[0, 0], rows[1, 0], rows[0, 0]]), np.array([True, False, False]))
    assert calibration.line.tolist() == own.line.tolist()
    assert calibration.precision.tolist() == own.precision.tolist()
    other = Following()
    prob = np.exp(Calibration().accepted(rows[[0, 1, 2, 0, 1, 2]]))
    other.learn(np.array([1.0, prob[0, 0], 1.0, 1.0, prob[3, 0], prob[4, 0]]), prob)
    for mine, theirs in zip(following.seen, other.seen, strict=True):
        assert mine.prob.tolist() == theirs.prob.tolist()


def rounds_of_chains(numbers, texts, rounds, depth):
    """Texts whose chains stand for some rounds, all of which are over."""
    chains = ChainsOfEach(texts)
    for text in range(texts):
        joins, goes_on = numbers.uniform(-4.0, 0.0, size=(2, depth))
        chains.begin(text, Chains(rounds, WIDTH_OF_CHAINS, joins, goes_on))
    for _ in range(rounds):
        going, above, nodes = np.arange(texts), np.zeros(texts), np.zeros(texts, dtype=np.int64)
        for layer in range(depth):
            laws = numbers.dirichlet(np.full(WIDTH_OF_CHAINS, 0.5), size=len(going))
            logp = -np.sort(-np.log(laws), axis=1)
            path = above[going, None] + logp
            offered = ForestCandidates(going, going, logp, path, texts, lambda: np.zeros(0, dtype=np.int64))
            joined, goes_on, nodes[going] = chains.grown(layer, offered)
            rows = joined // WIDTH_OF_CHAINS
            above[going[rows]] = path[rows, 0]
            going = going[rows][goes_on]
        accepted = (numbers.random(texts) * (nodes + 1)).astype(np.int64)
        for text, new in enumerate((accepted + 1).tolist()):
            chains.book(text, new, 1.0)
        over = chains.note(np.arange(texts), nodes, accepted)
    assert over.tolist() == [*range(texts)]
    return chains


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, ROUNDS), st.integers(1, DEEPEST))
def test_texts_side_by_side_learn_of_their_chains_what_each_would_alone_to_the_bit(seed, texts, rounds, depth):
    chains = rounds_of_chains(np.random.default_rng(seed), texts, rounds, depth)
    beside = [(Calibration(), Following()) for _ in range(texts)]
    calibrations, followings = zip(*beside, strict=True)
    calibration, following = CalibrationOfEach(calibrations), FollowingOfEach(followings)
    of, logp, places = chains.seen(np.arange(texts))
    line = calibration.lines[of]
    conditional = np.exp(calibrated(logp, line[:, :1], line[:, 1:]))
    own, tested, accepted, expected = chains.learnt(np.arange(texts), places, conditional[:, 0])
    calibration.learn(of[tested], logp[tested, 0], accepted[tested])
    following.learn(of, own, best_of(conditional))
    following.hand_back()
    for text, (mine, followed) in enumerate(beside):
        notes, unfinished = chains.handed_back(text)
        alone = Calibration(), Following()
        assert not unfinished
        assert learn_chains(notes, *alone) == expected[text]
        assert alone[0].line.tolist() == mine.line.tolist()
        assert alone[0].precision.tolist() == mine.precision.tolist()
        for one, other in zip(alone[1].seen, followed.seen, strict=True):
            assert one.prob.tolist() == other.prob.tolist()


class KnowsChains(Prices):
    """Prices that know what rounds take whose passes are run ahead."""

    def besides(self, drafted):
        return 0.5 * drafted

    def chain(self, layers):
        return 0.01 + 0.021 * layers


def served(costs, **told):
    return TalonCost().begin(SequenceInfo(5, 1000, **{"temperature": 0.0, "costs": costs, "runs_on": True} | told))


def drafted(policy, law):
    limits = DraftLimits(len(law[0]), 100)
    return draft_tree(policy, TableDrafter(law), 0, limits, None)


LAW = [[0.05, 0.9, 0.05], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2]]


def test_trees_are_the_chains_that_were_said_until_these_end():
    policy, deepest = served(KnowsChains(node=0.05, layer=0.02)), 0
    for _ in range(40):
        said = policy.chains()
        if said is None:
            break
        assert said.width == WIDTH_OF_CHAINS
        for left in range(said.rounds, 0, -1):
            now = policy.chains()
            assert (now.rounds, now.joins, now.goes_on) == (left, said.joins, said.goes_on)
            tree = drafted(policy, LAW).tree
            assert tree.parents.tolist() == [*range(-1, len(tree) - 1)]
            paths = tree.path_logp[1:].tolist()
            assert all(path >= least for path, least in zip(paths, said.joins, strict=False))
            assert all(path >= least for path, least in zip(paths[:-1], said.goes_on, strict=False))
            deepest = max(deepest, len(paths))
            accepted = len(tree)
            tokens = np.array([*tree.tokens[1:accepted].tolist(), 0])
            policy.observe(Round(tree, np.arange(accepted), tokens, draft_passes=len(paths), context=9))
    assert deepest > 1


def test_prices_stand_as_long_as_the_chains():
    policy = served(KnowsChains(node=0.05, layer=0.02))
    said = policy.chains()
    for left in range(said.rounds, 0, -1):
        assert policy.known.stands >= left
        policy.passed(9)


def test_where_chains_end_before_their_rounds_are_over_prices_are_asked_for_again():
    policy = served(KnowsChains(node=0.05, layer=0.02))
    said = policy.chains()
    policy.learnt.spare = 0.0  # so that another round could lose more than is left
    tree = drafted(policy, LAW).tree
    policy.observe(Round(tree, np.arange(1), np.array([0]), context=9))
    assert policy.learnt.chains is None
    policy.known.costs.asked.clear()
    policy.learnt.left = 0
    assert policy.chains().rounds == said.rounds
    assert {*policy.known.costs.asked} == {10}


def test_a_text_that_shares_passes_with_others_has_no_chains():
    policy = served(KnowsChains(node=0.05, layer=0.02))
    assert policy.chains() is not None
    tree = drafted(policy, LAW).tree
    policy.observe(Round(tree, np.arange(1), np.array([0]), context=9, sequences=2))
    assert policy.learnt.chains is None
    assert not policy.learnt.chained
    assert policy.learnt.drafted == 1  # it has learnt of that round


def test_passes_that_are_never_run_ahead_are_not_waited_for():
    class Unseen(KnowsChains):
        fixed = False

        def chain(self, layers):
            return None

    policy = served(Unseen(node=0.05, layer=0.02))
    assert policy.chains() is not None
    policy.learnt.drafted, policy.learnt.chains, policy.learnt.wanted = UNSEEN, None, None
    assert policy.chains() is None


def test_a_drafter_that_knows_few_tokens_is_learnt_from():
    policy = served(KnowsChains(node=0.05, layer=0.02))
    said = policy.chains()
    for law in ([[0.2, 0.8]] * 2, LAW[:2]):
        tree = drafted(policy, law).tree
        policy.observe(Round(tree, np.arange(1), np.array([0]), context=9))
    assert len(policy.learnt.notes) == 2
    assert {len(row) for note in policy.learnt.notes for row in note.logp} == {said.width}
    policy.leave_chains()
    assert policy.learnt.drafted == 2


def test_what_chains_have_taught_is_known_where_texts_are_grown_together():
    policies = [served(KnowsChains(node=0.05, layer=0.02)) for _ in range(2)]
    policies[0].chains()
    tree = drafted(policies[0], LAW).tree
    policies[0].observe(Round(tree, np.arange(1), np.array([0]), context=9))
    before = [len(seen.prob) for seen in policies[0].learnt.following.seen]
    forest = policies[0].beside(policies)
    forest.hand_back()
    assert sum(len(seen.prob) for seen in policies[0].learnt.following.seen) > sum(before)
    assert policies[0].learnt.chains is None


def test_what_is_left_of_an_account_is_handed_back_where_texts_were_grown_together():
    """As if each had been asked by itself."""
    chains, account = ChainsOfEach(1), Account(5.0, 1.0, 0.1, [1.0, 1.2], 0.9)
    chains.begin(0, Chains(9, 4, [-math.inf], [math.inf], account))
    for accepted in (0, 1, 0):
        logp = np.log([[0.6, 0.2, 0.1, 0.05]])
        chains.grown(0, ForestCandidates(np.arange(1), np.arange(1), logp, logp, 1, lambda: np.arange(4)))
        assert not len(chains.note(np.arange(1), np.array([1]), np.array([accepted])))
    left = 5.0
    for accepted in (0, 1, 0):
        left += account.of(1, 1, 1 + accepted)
    assert chains.spare(0) == left


@pytest.mark.parametrize("told", [{"runs_on": False}, {"costs": Prices(node=0.05, layer=0.02)}])
def test_nothing_is_said_where_passes_are_not_run_ahead_or_nothing_is_known_of_it(told):
    policy = served(**{"costs": KnowsChains(node=0.05, layer=0.02)} | told)
    assert policy.chains() is None
    assert len(drafted(policy, LAW).tree) > 2


def test_chains_are_said_at_any_temperature():
    policy = served(KnowsChains(node=0.05, layer=0.02), temperature=1.0)
    assert policy.chains() is not None


def test_a_policy_that_is_not_asked_for_chains_draws_trees():
    policy = served(KnowsChains(node=0.01, layer=0.02))
    tree = drafted(policy, [[0.34, 0.33, 0.33]] * 3).tree
    assert tree.parents.tolist().count(0) > 1


def test_branches_bring_less_after_each_further_node_of_a_chain():
    sure = FIRST[1]
    first, second, third = (gain_of_branches(Following(), 0.02, depth) for depth in (1, 2, 3))
    assert first == pytest.approx(sure[1] + sure[2] - 2 * 0.02)
    assert second - first == pytest.approx(sure[0] * (sure[1] + sure[2]) - 2 * 0.02)
    assert third - second == pytest.approx(sure[0] ** 2 * (sure[1] + sure[2]) - 2 * 0.02)
    assert gain_of_branches(Following(), 0.06, 2) == pytest.approx(sure[1] - 0.06 + sure[0] * sure[1] - 0.06)
    assert gain_of_branches(Following(), 0.2, 3) == 0.0


@pytest.mark.parametrize(("behind", "branches"), [(0.001, True), (0.3, False)])
def test_branches_cost_what_nodes_behind_those_of_the_chain_do(behind, branches):
    """Where the first nodes are free, and those behind them are not, a chain takes the free ones."""

    class Stepped(KnowsChains):
        def verify(self, nodes, context, batch=1):
            return 1.0 + behind * max(nodes - 1 - DEEPEST, 0)

    said = served(Stepped(node=0.0, layer=0.02)).chains()
    assert (said is None) is branches
    assert branches or said.depth == DEEPEST


@pytest.mark.parametrize("beside", [0.5, 0.0], ids=["chains", "branches"])
def test_prices_are_asked_for_once_of_each_kind(beside):
    class Asked(KnowsChains):
        def besides(self, drafted):
            return beside * drafted

    costs = Asked(node=0.05, layer=0.02)
    policy = served(costs)
    asked, prices = [], type(policy).prices
    policy_type = type(policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            policy_type, "prices", lambda self, contexts: asked.append(self.learnt.chained) or prices(self, contexts)
        )
        said = policy.chains()
        drafted(policy, LAW)
    assert (said is None) is (beside == 0.0)
    assert asked == ([True] if said is not None else [True, False])
