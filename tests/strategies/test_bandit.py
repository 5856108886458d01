"""One of several policies a round: who drafts, what is learnt of whom, and that nobody drafts otherwise than alone."""

from collections import Counter

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core import (
    Drafter,
    Engine,
    PluginError,
    Request,
    SequenceInfo,
    SourceChooser,
    TableTarget,
    TreePolicy,
    build,
)
from talon_core.certificates.standing import is_proved
from talon_core.certificates.subject import is_own
from talon_core.certify.exact import Given
from talon_core.choices import SeededChoices
from talon_core.costs import MeasuredCosts
from talon_core.decoding.decoder import Decoder
from talon_core.plugins import specs
from talon_core.plugins.registry import Registered, Registry, load_registry
from talon_core.plugins.specs import spelled
from talon_core.policy import Growth
from talon_core.rounds import Round
from talon_core.testing import TableDrafter, certify, check_tree_policy
from talon_core.tree import TokenTree
from talon_strategies import Bandit, Block, Chain, Eagle2, GammaTune, Match, SampledChain, Talon, TalonCost, Taps
from talon_strategies.ucb import Arm, next_arm
from talon_tests.prices import Prices

DRAFTER = TableDrafter([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
ONE_AND_FOUR = "chain[length=1]+chain[length=4]"


def served(policy, costs=None):
    info = SequenceInfo(prompt_length=30, max_new_tokens=64, temperature=1.0)
    return policy.begin(info if costs is None else attrs.evolve(info, costs=costs))


def told(tree, accepted, drafted=None):
    """What becomes of a tree of which a node and the path to it are accepted."""
    path = tree.path(accepted)
    return Round(tree, path, np.zeros(len(path), dtype=np.int64), drafted=drafted, context=30)


@pytest.mark.parametrize(
    "of",
    [
        "chain[length=2]+chain[length=5]+talon[budget=16]",
        "none+talon-cost[budget=8]+gammatune[length=4]",
        "sampled-chain[length=1]+sampled-chain[length=3]+none",
        "sequoia[budget=6;depth=2]+dyspec[budget=8;depth=3]",
        "none",
    ],
)
@pytest.mark.parametrize("reward", ["speed", "blend"])
def test_keeps_the_contract(of, reward):
    check_tree_policy(lambda: Bandit(of, reward=reward), max_examples=8)


ALONE = [Chain(3), Talon(budget=7, top_k=2), Eagle2(budget=6, depth=2, top_k=2), GammaTune(length=4)]
ALONE += [TalonCost(budget=8), SampledChain(3)]


@pytest.mark.parametrize("policy", ALONE, ids=spelled)
@settings(max_examples=20)
@given(places=st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_a_bandit_of_one_policy_drafts_what_that_one_does(draft, policy, places):
    costs = Prices(node=0.05, layer=0.1)
    own, alone = served(Bandit((policy,)), costs), served(policy, costs)
    assert (own.budget, own.draft_budget) == (policy.budget, policy.draft_budget)
    for place in places:
        mine, theirs = (draft(one, DRAFTER, SeededChoices(place)) for one in (own, alone))
        assert mine.tree.as_dict() == theirs.tree.as_dict()
        assert mine.drafted.as_dict() == theirs.drafted.as_dict()
        path = mine.tree.path(place % len(mine.tree))
        for one in (own, alone):
            one.observe(Round(mine.tree, path, np.zeros(len(path), dtype=np.int64), drafted=mine.drafted, context=30))


def test_each_policy_keeps_to_its_own_budget(draft):
    policy = served(Bandit("chain[length=2]+talon[budget=9]+eagle2[budget=4;depth=2;top_k=3]"))
    assert (policy.budget, policy.draft_budget) == (9, max(9, Eagle2(4, 2, 3).draft_budget))
    sizes = []
    for _ in range(3):
        tree = draft(policy, DRAFTER).tree
        sizes.append(len(tree))
        policy.observe(told(tree, 0))
    assert sizes == [3, 9, 4]


def by_definition(gains, costs, bound, explore):
    """Who is played in each round, and once more; of each round its gain by arm, of each arm its cost."""
    known, played = [Arm() for _ in costs], []
    for brought in gains:
        played.append(next_arm(known, costs, bound, explore))
        known[played[-1]].brought(brought[played[-1]])
    return [*played, next_arm(known, costs, bound, explore)]


@given(
    accepted=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), max_size=14),
    reward=st.sampled_from(["speed", "tokens", "blend"]),
    bound=st.sampled_from(["tuned", "ucb1", "ucbspec"]),
    explore=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_who_drafts_follows_from_what_was_brought(draft, accepted, reward, bound, explore):
    policy = served(Bandit(ONE_AND_FOUR, reward, bound, explore), Prices(node=1 / 16, layer=1 / 8))
    played, rounds, deepest = [], [], 1
    for outcome in accepted:
        tree = draft(policy, DRAFTER).tree
        played.append({2: 0, 5: 1}[len(tree)])
        policy.observe(told(tree, outcome[played[-1]]))
        deepest = max(deepest, len(tree) - 1)
        blend = [(one / deepest + one / length) / 2 for length, one in zip((1, 4), outcome, strict=True)]
        rounds.append(blend if reward == "blend" else [1.0 + one for one in outcome])
    played.append({2: 0, 5: 1}[len(draft(policy, DRAFTER).tree)])
    costs = [length / 8 + 1 + length / 16 if reward == "speed" else 1.0 for length in (1, 4)]  # nothing is rounded
    assert played == by_definition(rounds, costs, bound, explore)


def rewards(policy):
    """Of each policy that was played its mean reward, as it is known now."""
    players = zip(policy.learnt.players, policy._costs(), strict=True)
    return [player.mean / cost for player, cost in players if player.rounds]


def test_rewards_by_hand(draft):
    # 1 + 3 tokens of a chain of 4, in 0.4 + 1.2 passes; and 3 of 4, the longest chain so far
    first = {"speed": 4 / 1.6, "tokens": 4.0, "blend": 0.5 * (3 / 4 + 3 / 4)}
    second = {"speed": 2 / 1.15, "tokens": 2.0, "blend": 0.5 * (1 / 4 + 1)}
    for reward in first:
        policy = served(Bandit("chain[length=4]+chain[length=1]", reward), Prices(node=0.05, layer=0.1))
        policy.observe(told(draft(policy, DRAFTER).tree, 3))
        policy.observe(told(draft(policy, DRAFTER).tree, 1))
        assert rewards(policy) == pytest.approx([first[reward], second[reward]])


def test_while_nothing_is_known_a_layer_costs_a_tenth_and_a_node_a_twentieth(draft):
    policy = served(Bandit("chain[length=4]"))
    policy.observe(told(draft(policy, DRAFTER).tree, 3))
    assert rewards(policy) == pytest.approx([4 / (4 * 0.1 + 1 + 4 * 0.05)])


def test_what_becomes_known_later_prices_earlier_rounds(draft):
    """As while one decodes: the sizes of the first tree are all that is known after it, and then others are."""
    costs = MeasuredCosts()
    policy = served(Bandit("chain[length=3]+none", reward="speed"), costs)
    tree = draft(policy, DRAFTER).tree
    costs.verified(nodes=4, context=30, batch=1, seconds=0.04)
    policy.observe(told(tree, 1))
    assert rewards(policy) == pytest.approx([2 / 0.04], rel=0.15)
    tree = draft(policy, DRAFTER).tree
    costs.verified(nodes=1, context=30, batch=1, seconds=0.03)
    costs.drafted(rows=1, width=1, seconds=0.01)
    policy.observe(told(tree, 0))
    assert rewards(policy) == pytest.approx([2 / (0.04 + 3 * 0.01), 1 / 0.03], rel=0.15)


def test_a_round_in_which_nobody_was_asked_counts_for_no_policy(draft):
    policy = served(Bandit("chain[length=2]+none"))
    policy.observe(told(TokenTree.root(0), 0))
    assert [player.rounds for player in policy.learnt.players] == [0, 0]
    policy.observe(told(draft(policy, DRAFTER).tree, 1))
    draft(policy, DRAFTER)  # by none
    policy.observe(told(TokenTree.root(0), 0))
    assert [player.rounds for player in policy.learnt.players] == [1, 1]


def test_the_policy_that_pays_is_soon_the_only_one(draft):
    """All is accepted; a layer is cheap and a node is not, or the other way round."""
    for costs, best in ((Prices(node=0.02, layer=0.02), 1), (Prices(node=0.9, layer=0.5), 2)):
        policy, played = served(Bandit("chain[length=1]+chain[length=6]+none", explore=0.3), costs), Counter()
        for _ in range(60):
            drafted = draft(policy, DRAFTER).tree
            played[policy.learnt.place] += 1
            policy.observe(told(drafted, len(drafted) - 1 if best == 1 else 0))
        assert played[best] > 45
        assert min(played[place] for place in range(3)) >= 1


@attrs.define
class Notes:
    heard: list[int] = attrs.field(factory=list)
    asked: int = 0


@attrs.frozen
class Listens(TreePolicy):
    """Drafts `nodes` tokens and keeps what it is told."""

    name = "listens"
    nodes: int = 1
    told_of: SequenceInfo | None = None
    notes: Notes = attrs.field(init=False, eq=False, repr=False, factory=Notes)

    @property
    def budget(self):
        return 1 + self.nodes

    def begin(self, sequence):
        sequence.machine.setdefault("begun", []).append(self.nodes)
        return attrs.evolve(self, told_of=sequence)

    def width(self, tree):
        self.notes.asked += len(tree) == 1
        return 1

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1))

    def observe(self, round_):
        self.notes.heard.append(len(round_.tree) - 1)


def test_a_policy_is_told_of_the_sequence_and_of_the_rounds_that_it_drafted(draft):
    info = SequenceInfo(prompt_length=7, max_new_tokens=9, temperature=0.5)
    policy = Bandit((Listens(1), Listens(2), Listens(3)), explore=0.1, reward="tokens").begin(info)
    for _ in range(9):
        tree = draft(policy, DRAFTER).tree
        policy.observe(told(tree, len(tree) - 1))
    first, second, third = policy.of
    said = [attrs.astuple(one.told_of, recurse=False) for one in policy.of]
    assert said == [attrs.astuple(info, recurse=False)] * 3
    assert info.machine == {"begun": [1, 2, 3]}
    assert (first.notes.heard, second.notes.heard, third.notes.heard) == ([1], [2], [3] * 7)
    assert third.notes.asked == 7


def test_a_round_in_which_the_drafter_had_nothing_counts_for_nobody(draft):
    policy = served(Bandit(ONE_AND_FOUR))
    nothing = TokenTree.root(0)
    for _ in range(3):
        policy.width(nothing)
        policy.observe(told(nothing, 0))
    assert [player.rounds for player in policy.learnt.players] == [0, 0]
    assert len(draft(policy, DRAFTER).tree) == 2


def test_a_round_that_was_drafted_for_nothing_counts(draft):
    """`finish` may keep the root alone; the layers were paid for all the same."""
    policy = served(Bandit("caddtree[budget=8]+chain"), Prices(node=3.0, layer=0.5))
    drafted = draft(policy, DRAFTER)
    assert len(drafted.tree) == 1 < len(drafted.drafted)
    policy.observe(told(drafted.tree, 0, drafted.drafted))
    assert policy._costs()[0] == 1.5


def test_plain_decoding_counts_as_what_it_is(draft):
    policy = served(Bandit("none+chain"), Prices(node=0.1, layer=0.1))
    tree = draft(policy, DRAFTER).tree
    assert len(tree) == 1
    policy.observe(told(tree, 0))
    assert policy._costs()[0] == 1.0
    assert len(draft(policy, DRAFTER).tree) == 6


def test_each_text_begins_anew(draft):
    policy = Bandit(ONE_AND_FOUR)
    first = served(policy)
    first.observe(told(draft(first, DRAFTER).tree, 1))
    assert len(draft(first, DRAFTER).tree) == 5
    assert len(draft(served(policy), DRAFTER).tree) == len(draft(served(first), DRAFTER).tree) == 2


# Which policies go together


def test_children_and_default_rule_are_those_of_the_policies():
    assert (Bandit().children, Bandit().default_rule) == ("deterministic", "match")
    drawn = Bandit("none+sampled-chain[length=1]+sampled-chain[length=2]")
    assert (drawn.children, drawn.default_rule) == ("sampled-chain", "block")
    assert Bandit("none").children == "deterministic"


@pytest.mark.parametrize(
    ("of", "says"),
    [
        ("chain+sampled-chain", "whose children differ: those of chain are deterministic, those of sampled-chain are"),
        ("", "it must be different policies joined by"),
        ("chain+chain", "it must be different policies"),
        ("chain+chian", "no tree policy 'chian'; did you mean 'chain'"),
        ("chain[length=0]", "length"),
        ("chain+bandit", "has a bandit among its policies"),
        ("chain+taps[of=bandit]", "has a bandit among its policies"),
        ("taps[of=taps[of=bandit[of=chain]]]", "has a bandit among its policies"),
        ((Chain(), Taps(of=Bandit())), "has a bandit among its policies"),
        ((), "it must be one or more policies"),
        (5, "it must be one or more policies"),
        ((Chain(), "talon"), "it must be one or more policies"),
    ],
)
def test_policies_that_cannot_be_are_refused_in_words(of, says):
    with pytest.raises(ValueError, match=says):
        Bandit(of)


@pytest.mark.parametrize("options", [{"reward": "luck"}, {"bound": "none"}, {"explore": -0.1}, {"explore": "much"}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Bandit(**options)


def test_its_spec_is_written_as_it_is_read():
    written = "bandit:of=ddd[checked=5;7;threshold=0.2]+none+talon[budget=9;mu=0.1],reward=tokens"
    made = build("tree policy", written)
    assert spelled(made) == written
    assert made.of[2] == Talon(budget=9, mu=0.1)
    assert build("tree policy", "bandit") == Bandit()


def test_plugins_policies_and_presets_can_be_played():
    entries = load_registry().entries
    listens = Registered("tree policy", "listens", Listens, "theirs:plugin")
    registry = Registry({**entries, "tree policy": {**entries["tree policy"], "listens": listens}}, {})
    made = specs.build(registry, "tree policy", "bandit:of=listens[nodes=3]+default[budget=7]")
    assert made.of[0] == Listens(3)
    assert made.of[1].budget == 7


# That it is lossless


@pytest.mark.parametrize(
    ("of", "rule"),
    [
        ("sampled-chain[length=1]+none+sampled-chain[length=2]", "block"),
        ("sequoia[budget=3;depth=2]+dyspec[budget=3;depth=2]", "traversal"),
        ("talon[budget=4;top_k=2]+chain[length=1]", "match"),
    ],
)
def test_the_law_of_the_output_is_the_targets(of, rule):
    certificate = certify(f"bandit:of={of}", rule, worlds=25)
    assert certificate.certified
    assert certificate.accepting > 5


def test_a_bandit_of_others_policies_is_not_talons_own():
    @attrs.frozen
    class Theirs(SampledChain):
        name = "theirs"

    assert is_own(Bandit())
    assert is_proved(Block(), Bandit((SampledChain(1), SampledChain(2))))
    assert not is_own(Bandit((SampledChain(1), Theirs())))
    assert not is_proved(Block(), Bandit((SampledChain(1), Theirs())))
    assert is_proved(Match(), Bandit((SampledChain(1), Theirs())))


def test_it_decodes_what_the_target_says():
    target, drafter = TableTarget(np.tile([0.0, 9.0, 0.0], (3, 1))), Given(TableDrafter([[0.05, 0.9, 0.05]]))
    (result,) = Decoder(target, Match(), Bandit(ONE_AND_FOUR), drafter).run_all([Request(np.array([0]), 60)])
    assert result.token_ids == [1] * 60
    assert result.stats.target_passes < 30


@attrs.frozen
class Raises(TreePolicy):
    """Fails where it is told to."""

    name = "raises"
    where: str
    budget: int = 4

    def _does(self, where):
        if where == self.where:
            raise KeyError("no such thing")

    def begin(self, sequence):
        self._does("begin")
        return self

    def width(self, tree):
        self._does("width")
        return 1

    def grow(self, tree, candidates, choices):
        self._does("grow")
        return Growth(candidates.best(1))

    def finish(self, tree):
        self._does("finish")
        return tree

    def observe(self, round_):
        self._does("observe")


@pytest.mark.parametrize("where", ["begin", "width", "grow", "finish", "observe"])
def test_a_policy_that_fails_is_named_and_not_the_bandit(where):
    target, drafter = TableTarget(np.zeros((3, 3))), Given(TableDrafter([[0.5, 0.3, 0.2]]))
    decoder = Decoder(target, Match(), Bandit(of=(Raises(where), Chain(length=1))), drafter)
    with pytest.raises(PluginError, match=rf"tree policy 'raises' .* KeyError in {where}: 'no such thing'"):
        decoder.run_all([Request(np.array([0]), 6)])


TWO = ("model", "look-up")


def asking(of="chain[length=2]", costs=None, sources=TWO, **options):
    info = SequenceInfo(prompt_length=30, max_new_tokens=64, temperature=1.0, sources=sources)
    return Bandit(of, drafters=True, **options).begin(info if costs is None else attrs.evolve(info, costs=costs))


def test_keeps_the_contract_with_drafters_among_its_arms():
    check_tree_policy(lambda: Bandit(ONE_AND_FOUR, drafters=True), max_examples=8)


def test_each_drafter_is_an_arm_of_each_policy_and_all_together_are(draft):
    policy, played = asking("chain[length=1]+none+chain[length=4]"), []
    for _ in range(7):
        tree = draft(policy, DRAFTER).tree
        played.append((policy.source(), len(tree) - 1))
        policy.observe(told(tree, 0))
    assert played == [(source, length) for source in (None, 0, 1) for length in (1, 0, 4) if length or source is None]


@pytest.mark.parametrize("options", [{"sources": ()}, {"sources": ("alone",)}])
def test_where_there_are_no_several_drafters_the_arms_are_policies(draft, options):
    policy = asking(ONE_AND_FOUR, **options)
    for _ in range(4):
        assert policy.source() is None
        policy.observe(told(draft(policy, DRAFTER).tree, 0))
    assert len(policy.of) == len(policy.learnt.players) == 2


def test_without_the_option_nobody_is_chosen():
    info = SequenceInfo(prompt_length=30, max_new_tokens=64, temperature=1.0, sources=TWO)
    policy = Bandit(ONE_AND_FOUR).begin(info)
    assert (policy.chooses_source, policy.source(), len(policy.of)) == (False, None, 2)


def test_each_drafter_has_costs_of_its_own(draft):
    costs = MeasuredCosts()
    costs.verified(nodes=3, context=30, batch=1, seconds=0.02)
    costs.drafted(rows=1, width=1, seconds=0.01)
    costs.drafted_alone(0, rows=1, width=1, seconds=0.01)
    costs.drafted_alone(1, rows=1, width=1, seconds=1e-6)
    policy = asking(costs=costs)
    for _ in range(3):
        policy.observe(told(draft(policy, DRAFTER).tree, 1))
    assert rewards(policy) == pytest.approx([2 / 0.04, 2 / 0.04, 2 / 0.02], rel=0.15)


@pytest.mark.parametrize("right", [0, 1])
def test_a_drafter_that_brings_nothing_is_asked_ever_less_often_and_again_where_the_other_fails(draft, right):
    """Alone each takes half the time of both together; only one of them is right at a time."""
    costs = MeasuredCosts()
    costs.verified(nodes=3, context=30, batch=1, seconds=0.02)
    costs.drafted(rows=1, width=1, seconds=0.005)
    for source in range(2):
        costs.drafted_alone(source, rows=1, width=1, seconds=0.0025)
    policy, asked = asking(costs=costs), []
    for number in range(120):
        source = policy.source()
        tree = draft(policy, DRAFTER).tree
        came = right if number < 60 else 1 - right
        asked.append(source)
        policy.observe(told(tree, len(tree) - 1 if source in (None, came) else 0))
    assert Counter(asked[10:60])[1 - right] <= 5
    assert Counter(asked[60:])[1 - right] + Counter(asked[60:])[None] > 40


def test_having_nothing_to_offer_counts_among_several_drafters():
    policy = asking()
    for source in (None, 0, 1):
        assert policy.source() == source
        assert policy.width(TokenTree.root(0)) == 1
        policy.observe(told(TokenTree.root(0), 0))
    assert [player.rounds for player in policy.learnt.players] == [1, 1, 1]
    policy.observe(told(TokenTree.root(0), 0))  # nobody asked
    assert [player.rounds for player in policy.learnt.players] == [1, 1, 1]


class OfTwo(Drafter):
    """Whoever is asked says the same; it notes who that is, and at which layer."""

    sources = TWO

    def __init__(self):
        self.asked = []

    def open(self, slot, prompt, room):
        pass

    def propose(self, frontiers):
        self.asked += [(one.slot, len(one.tree) - 1, one.source) for one in frontiers]
        return DRAFTER.propose(frontiers)

    def commit(self, committed):
        pass


TARGET = np.log([[0.05, 0.9, 0.05], [0.05, 0.05, 0.9], [0.9, 0.05, 0.05]])


def test_an_engine_asks_the_one_that_is_chosen_at_all_layers_and_measures_it_alone():
    drafter, costs = OfTwo(), MeasuredCosts()
    policy = Bandit("chain[length=2]", drafters=True, reward="tokens")
    engine = Engine(TableTarget(TARGET), Match(), policy, drafter, costs=costs)
    sequence = engine.submit(Request(np.array([0, 1]), max_new_tokens=40))
    while not sequence.finished:
        engine.step()
    trees = [[one for _, _, one in drafter.asked[start : start + 2]] for start in range(0, 6, 2)]
    assert trees == [[None, None], [0, 0], [1, 1]]
    assert costs.draft(1, 1) is not None
    assert all(costs.of_source(source).draft(1, 1) is not None for source in (None, 0, 1))


def test_what_is_learnt_of_texts_with_one_source_alone_is_kept_apart_and_a_look_up_reads_nothing(draft):
    costs = MeasuredCosts()
    for _ in range(3):
        costs.verified(1, 1001, 1, 1.0)
        costs.verified(2, 1001, 1, 1.01)
        costs.drafted(1, 4, 0.01)
        costs.drafted_alone(0, 1, 4, 0.01)
        costs.drafted_alone(1, 1, 4, 0.01)
        costs.caught_up(1000, 5.0, 0)  # the model, and not the look-up
    info = SequenceInfo(1001, 999, 0.0, costs, unread=1000, sources=("eagle3", "ngram"), drafter="hybrid")
    policy = Bandit("talon-cost", drafters=True).begin(info)
    for _ in policy.learnt.players:
        tree = draft(policy, DRAFTER).tree
        policy.observe(told(tree, len(tree) - 1))
    others = [player.policy.learnt.others for player in policy.learnt.players]
    assert [player.source for player in policy.learnt.players] == [None, 0, 1]
    assert [one.texts for one in others] == [1, 1, 1]
    both, model, look_up = (one.credit for one in others)
    assert both == pytest.approx(model)
    assert look_up - model == pytest.approx(5.0, rel=0.1)


def test_a_policy_whose_trees_depend_on_rounds_that_it_does_not_hear_of_is_not_planned(draft):
    """Its forest would go by the length of the text, and it by the length after its own latest round."""
    assert served(Bandit("chain+none")).plan() is not None
    for listens in ("caddtree", "bastion"):
        assert served(Bandit(f"{listens}+none"), Prices(node=0.1, layer=0.1)).plan() is None


def test_sequences_of_a_batch_choose_each_for_itself():
    drafter, costs = OfTwo(), MeasuredCosts()
    engine = Engine(TableTarget(TARGET), Match(), Bandit("chain[length=1]", drafters=True), drafter, costs=costs)
    first = engine.submit(Request(np.array([0, 1]), max_new_tokens=40))
    engine.step()
    engine.step()
    second = engine.submit(Request(np.array([2, 1]), max_new_tokens=40))
    drafter.asked.clear()
    engine.step()
    sources = {slot: source for slot, _, source in drafter.asked}
    assert sorted(map(str, sources.values())) == ["1", "None"]  # the third round of one, the first of the other
    for one in (first, second):
        while not one.finished:
            engine.step()
    alone = Engine(TableTarget(TARGET), Match())
    for one, start in ((first, 0), (second, 2)):
        plain = alone.submit(Request(np.array([start, 1]), max_new_tokens=40))
        while not plain.finished:
            alone.step()
        assert one.token_ids == plain.token_ids


def test_a_drafter_that_is_not_several_is_refused():
    policy = Bandit("chain[length=2]", drafters=True)
    one = OfTwo()
    one.sources = one.sources[:1]
    for drafter in (DRAFTER, one):
        with pytest.raises(
            ValueError, match="'bandit' chooses among several drafters, and there is one; take a drafter"
        ):
            Engine(TableTarget(TARGET), Match(), policy, drafter)


@pytest.mark.parametrize("of", [lambda one: Taps(of=one), lambda one: Bandit((one,))])
def test_a_policy_within_another_is_told_that_no_pass_is_run_ahead_of_what_it_says(of):
    """Nobody asks it for pauses and chains, so it must not price its rounds as such."""
    told = []

    class Listens(Chain):
        def begin(self, sequence):
            told.append(sequence)
            return super().begin(sequence)

    of(Listens()).begin(SequenceInfo(9, 9, 0.0, runs_on=True, draws_on=True, rests_on=True))
    assert [(one.runs_on, one.draws_on, one.rests_on) for one in told] == [(False, False, False)]


@attrs.frozen
class Astray(Bandit):
    name = "astray"

    def source(self):
        return 2


def test_a_source_that_is_not_there_is_the_policy_s_error():
    engine = Engine(TableTarget(TARGET), Match(), Astray("chain", drafters=True), OfTwo())
    sequence = engine.submit(Request(np.array([0, 1]), max_new_tokens=4))
    engine.step()
    assert isinstance(sequence.error, PluginError)
    assert "returned 2 from source; it must be None, or a whole number from 0 to 1" in str(sequence.error)
    with pytest.raises(PluginError, match="returned 2 from source"):
        check_tree_policy(lambda: Astray("chain", drafters=True), max_examples=2)


@attrs.frozen
class AlwaysFirst(SourceChooser):
    """A policy of somebody else that asks the first source alone."""

    name = "always-first"
    budget: int = 3

    @property
    def chooses_source(self):
        return True

    def source(self):
        return 0

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1))


def test_any_policy_may_choose_and_none_within_another_does():
    check_tree_policy(AlwaysFirst, max_examples=5)
    drafter = OfTwo()
    engine = Engine(TableTarget(TARGET), Match(), AlwaysFirst(), drafter)
    sequence = engine.submit(Request(np.array([0, 1]), max_new_tokens=9))
    while not sequence.finished:
        engine.step()
    assert {source for _, _, source in drafter.asked} == {0}
    with pytest.raises(ValueError, match="of has a policy that chooses who drafts by itself"):
        Bandit((AlwaysFirst(), Chain(2)))
    with pytest.raises(ValueError, match="of is 'bandit', which chooses who drafts; name taps within it"):
        Taps(Bandit("chain", drafters=True))
    assert Bandit("taps[of=talon]", drafters=True).chooses_source
