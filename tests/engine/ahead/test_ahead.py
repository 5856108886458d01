"""Drafting ahead: what was prepared is what the drafter would say, and what was not prepared is asked for."""

import threading
from contextlib import contextmanager
from functools import partial

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import talon_strategies
from talon_core import Engine, Frontier, PluginError, Request, TableTarget, TokenTree, TreePolicy, build
from talon_core.costs import MeasuredCosts
from talon_core.engine.ahead.drafter import NOTHING, AheadDrafter
from talon_core.engine.ahead.worker import InLine
from talon_core.engine.allocation import SharedBudget
from talon_core.plugins.specs import spelled
from talon_core.sampling import temperature_sampling
from talon_core.schedule import Outcome, Schedule
from talon_core.testing import TableDrafter
from talon_core.testing.odd_policies import CoinTosser, Erratic
from talon_drafters import Lookahead, Ngram, Pld
from talon_strategies import (
    Block,
    Branch,
    Cached,
    Chain,
    DySpec,
    Eagle2,
    Match,
    Pearl,
    SampledChain,
    Sync,
    Talon,
    TalonCost,
    TalonSampled,
)
from talon_tests.whole_texts import WholeTexts

VOCAB = 4
EVERYTHING = Cached(budget=1000, beyond=True)
GEOMETRIC = Cached(budget=3, beyond=True, allocation="geometric")
SCHEDULES = [EVERYTHING, Cached(budget=2, beyond=True), GEOMETRIC, Branch(budget=3), Pearl()]

POLICIES = [Talon(budget=6, top_k=2), Chain(length=3), Erratic(3), CoinTosser(), TalonSampled(budget=5)]


def target(seed=0):
    return TableTarget(np.random.default_rng(seed).normal(size=(VOCAB,) * 3) * 2)


def laws(seed=1, tables=11):
    return np.random.default_rng(seed).dirichlet(np.ones(VOCAB), size=tables)


def request(length=12, temperature=0.0, seed=0, prompt=(1, 2, 3), eos=frozenset()):
    return Request(np.array(prompt), length, temperature_sampling(temperature), frozenset(eos), seed=seed)


def decoded(schedule, policy=None, rule=None, drafter=None, calls=lambda: None, requests=None, **how):
    """The sequences, decoded together."""
    policy = policy if policy is not None else Talon(budget=6, top_k=2)
    drafter = drafter if drafter is not None else WholeTexts(laws())
    worker = partial(InLine, calls=calls)
    how = {"allocator": None, **how}  # which looks at the time that passes take
    engine = Engine(target(), rule or Match(), policy, drafter, schedule=schedule, worker=worker, **how)
    sequences = [engine.submit(one) for one in requests or [request()]]
    while not all(one.finished for one in sequences):
        engine.step()
    for one in sequences:
        if one.error is not None:
            raise one.error
    return sequences


def shape(round_):
    return round_.tree.tokens.tolist(), round_.tree.parents.tolist(), round_.path.tolist(), round_.tokens.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("policy", "rule"), [(Talon(budget=6, top_k=2), Match()), (Chain(length=3), Match()), (Eagle2(budget=5), Match()),
                         (SampledChain(length=2), Block())]
)  # fmt: skip
def test_a_hit_makes_the_very_tree_that_drafting_would_have_made(policy, rule, temperature):
    (plain,) = decoded(None, policy, rule, requests=[request(30, temperature)])
    (ahead,) = decoded(EVERYTHING, policy, rule, requests=[request(30, temperature)])
    assert ahead.token_ids == plain.token_ids
    assert [shape(one) for one in ahead.rounds] == [shape(one) for one in plain.rounds]
    assert all(one.hit for one in ahead.rounds[1:-1])
    assert ahead.rounds[0].hit is None


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_the_targets_with_every_schedule(schedule, temperature):
    requests = [request(20, temperature, seed, prompt) for seed, prompt in enumerate([(1, 2, 3), (0,), (3, 3)])]
    plain = decoded(None, requests=requests)
    again = [attrs.evolve(one) for one in requests]
    assert [one.token_ids for one in decoded(schedule, requests=again)] == [one.token_ids for one in plain]


def test_hits_ask_the_drafter_nothing_before_the_target_is_asked():
    drafter = WholeTexts(laws())
    (sequence,) = decoded(EVERYTHING, drafter=drafter, requests=[request(30)])
    assert all(one.draft_passes == 0 for one in sequence.rounds[1:])
    (plain,) = decoded(None, requests=[request(30)])
    assert all(one.draft_passes > 0 for one in plain.rounds[:-1])


@pytest.mark.parametrize(("policy", "rule"), [(Chain(length=4), Match()), (Talon(budget=6, top_k=2), Match())])
@pytest.mark.parametrize("calls", [None, 3])
def test_a_drafter_that_takes_paths_is_asked_along_a_tree_that_it_has_not_seen_in_one_call(policy, rule, calls):
    asked = []
    for takes_paths in (False, True):
        drafter = WholeTexts(laws(), takes_paths=takes_paths)
        (ahead,) = decoded(EVERYTHING, policy, rule, drafter, lambda: calls, [request(30)])
        asked.append((ahead, drafter.calls))
    (layers, by_layer), (paths, by_path) = asked
    assert [shape(one) for one in paths.rounds] == [shape(one) for one in layers.rounds]
    whole = [nodes for call in by_path for _, nodes in call if 0 in nodes and len(nodes) > 1]
    assert len(whole) > 3  # from the root on: nobody had asked it about these trees
    if calls is None:  # everything is prepared
        assert len(by_path) < 0.75 * len(by_layer)


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_what_was_not_prepared_in_time_is_asked_for(calls):
    (plain,) = decoded(None, requests=[request(30)])
    (ahead,) = decoded(EVERYTHING, calls=lambda: calls, requests=[request(30)])
    assert [shape(one) for one in ahead.rounds] == [shape(one) for one in plain.rounds]


@pytest.mark.parametrize("calls", [2, 3, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("policy", "rule"), [(Chain(length=4), Match()), (SampledChain(length=4), Block())])
def test_what_was_prepared_is_verified_as_far_as_it_goes(policy, rule, calls, temperature):
    given = request(40, temperature)
    (ahead,) = decoded(Cached(budget=1000), policy, rule, calls=lambda: calls, requests=[given])
    hits = [one for one in ahead.rounds if one.hit]
    assert hits
    assert all(one.draft_passes == 0 for one in hits)
    assert any(1 < len(one.tree) < 5 for one in hits)
    if policy.children == "deterministic":  # otherwise what a seed draws follows from the trees
        (plain,) = decoded(None, policy, rule, requests=[attrs.evolve(given)])
        assert ahead.token_ids == plain.token_ids


@settings(max_examples=60, deadline=None)
@given(
    script=st.lists(st.sampled_from([None, 0, 1, 2, 5]), min_size=1, max_size=9),
    schedule=st.sampled_from(SCHEDULES[:-1]),
    policy=st.sampled_from(POLICIES),
    most=st.sampled_from([None, 2, 3]),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_whenever_preparing_ends_trees_are_those_of_drafting_in_turn(script, schedule, policy, most, temperature):
    """A drafter that answers by the text alone: who has answered, and when, cannot be seen in any tree."""
    given = [request(12, temperature, seed, prompt) for seed, prompt in enumerate([(1, 2, 3), (0,)])]
    script = iter(script * 40)
    made = {
        schedule: decoded(
            schedule,
            policy,
            drafter=WholeTexts(laws(), most),
            calls=lambda: next(script),
            requests=[attrs.evolve(one) for one in given],
        )
        for schedule in (None, schedule)
    }
    for plain, ahead in zip(*made.values(), strict=True):
        assert [shape(one) for one in ahead.rounds] == [shape(one) for one in plain.rounds]


class Distinct(WholeTexts):
    """Notes the frontiers whose tree has two children of a node that hold the same token."""

    def __init__(self, *given, **how):
        super().__init__(*given, **how)
        self.alike = []

    def propose(self, frontiers):
        for one in frontiers:
            children = [*zip(one.tree.parents.tolist(), one.tree.tokens.tolist(), strict=True)]
            if len({*children}) < len(children):
                self.alike.append(children)
        return super().propose(frontiers)


def dropped(round_):
    """The drafted node that has come out of a round without having been verified; None where there is none."""
    if round_.drafted is None:
        return None
    node = int(round_.drafted.follow(round_.tokens[:-1])[-1])
    return round_.drafted.child(node, int(round_.tokens[-1]))


@pytest.mark.parametrize("takes_paths", [False, True])
@pytest.mark.parametrize(
    ("policy", "rule", "how"),
    [
        (Eagle2(budget=3, depth=2, top_k=3), Match(), {}),
        (Erratic(1), Match(), {}),
        (Talon(budget=8, top_k=3), Match(), {"allocator": SharedBudget(5)}),
        (DySpec(budget=6), Match(), {}),
    ],
)
def test_what_was_drafted_and_not_verified_is_prepared_below_where_it_stands(policy, rule, how, takes_paths):
    """Siblings hold different tokens, and no node is drafted from twice: the drafter would refuse."""
    given = [request(40, seed=seed, prompt=prompt) for seed, prompt in enumerate([(1, 2, 3), (0,)])]
    drafter = Distinct(laws(), takes_paths=takes_paths)
    ahead = decoded(EVERYTHING, policy, rule, drafter, requests=given, **how)
    assert not drafter.alike
    plain = decoded(None, policy, rule, requests=[attrs.evolve(one) for one in given], **how)
    found = 0
    for own, other in zip(ahead, plain, strict=True):
        assert [shape(one) for one in own.rounds] == [shape(one) for one in other.rounds]
        for before, one in zip(own.rounds[:-1], own.rounds[1:-1], strict=False):
            if dropped(before) is not None:
                assert one.hit
                assert one.draft_passes == 0 or policy.children != "deterministic"  # what is drawn was not foreseen
                found += 1
    assert found


def test_pearl_verifies_the_root_alone_after_a_miss():
    (sequence,) = decoded(Pearl(), Chain(length=3), requests=[request(60)])
    hits = [one.hit for one in sequence.rounds]
    assert {None, True, False} == {*hits}
    for one in sequence.rounds[:-1]:
        assert (len(one.tree) > 1) == (one.hit is True)


def test_pearl_goes_on_behind_the_end():
    """In post-verify everything was accepted, and the target went on as the drafter did."""
    (sequence,) = decoded(Pearl(), Chain(length=3), requests=[request(60)])
    for before, one in zip(sequence.rounds, sequence.rounds[1:], strict=False):
        if one.hit:
            assert before.accepted == len(before.tree) - 1


def test_a_schedule_that_prepares_nothing_leaves_the_drafter_alone():
    drafter = WholeTexts(laws())
    engine = Engine(target(), Match(), Chain(), drafter, schedule=Sync(), worker=InLine)
    assert engine.parts.drafter is drafter


@attrs.frozen
class Nonsense(Schedule):
    name = "nonsense"
    answer: object = None

    def outcomes(self, outlook):
        return self.answer if self.answer is not None else 1 / 0


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ([Outcome(99, 0)], "has nodes 0 to"),
        ([Outcome(0, VOCAB)], "tokens 0 to 3"),
        ([(0, 1)], "must be Outcomes"),
        (None, "raised ZeroDivisionError in outcomes"),
        (5, "raised TypeError in outcomes"),
    ],
)
def test_a_schedule_that_errs_costs_the_preparation_and_is_named_once(answer, says, caplog):
    (plain,) = decoded(None)
    (ahead,) = decoded(Nonsense(answer))
    assert ahead.token_ids == plain.token_ids
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == 1
    assert "schedule 'nonsense'" in said[0]
    assert says in said[0]


def test_outcomes_that_cannot_come_are_left_out():
    @attrs.frozen
    class All(Schedule):
        name = "all"

        def outcomes(self, outlook):
            found = [Outcome(node, token) for node in range(len(outlook.tree)) for token in range(VOCAB)]
            return found + found

    (plain,) = decoded(None, requests=[request(30, eos={0})])
    (ahead,) = decoded(All(), requests=[request(30, eos={0})])
    assert [shape(one) for one in ahead.rounds] == [shape(one) for one in plain.rounds]
    assert all(one.hit for one in ahead.rounds[1:-1])


class Fails(WholeTexts):
    """Fails in its n-th call, and in no other."""

    def __init__(self, at, nonsense=False):
        super().__init__(laws())
        self.at, self.nonsense = at, nonsense

    def propose(self, frontiers):
        if len(self.calls) == self.at:
            self.calls.append([])
            if self.nonsense:
                return 5
            raise MemoryError("no memory is left")
        return super().propose(frontiers)


@pytest.mark.parametrize("nonsense", [False, True])
def test_a_drafter_that_fails_while_it_prepares_costs_speed_alone(nonsense, caplog):
    def finished(engine):
        sequence = engine.submit(request(20))
        while not sequence.finished:
            engine.step()
        return sequence

    (plain,) = decoded(None, requests=[request(20)])
    drafter = Fails(5, nonsense)
    engine = Engine(target(), Match(), Chain(length=2), drafter, schedule=EVERYTHING, worker=InLine)
    first = finished(engine)
    assert first.error is None
    assert first.token_ids == plain.token_ids
    assert len(first.rounds[-1].tree) == 1
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == 1
    assert "has failed beside the target" in said[0]
    second = finished(engine)
    assert second.token_ids == plain.token_ids
    assert any(one.hit for one in second.rounds)


def test_a_drafter_that_fails_when_it_is_asked_is_refused_as_always():
    with pytest.raises(PluginError, match="Fails"):
        decoded(EVERYTHING, drafter=Fails(0))


def test_a_drafter_of_one_token_has_nothing_to_prepare():
    with pytest.raises(ValueError, match=r"drafts 1 token a round.*take the schedule sync"):
        decoded(EVERYTHING, drafter=WholeTexts(laws(), max_depth=1))


def test_a_drafter_that_runs_the_target_is_refused():
    drafter = WholeTexts(laws())
    drafter.uses_target = True
    with pytest.raises(ValueError, match="busy while the target verifies"):
        decoded(EVERYTHING, drafter=drafter)


def test_what_was_prepared_in_another_text_is_never_used():
    """A slot is left and taken by another sequence, while something is prepared for the one before."""
    engine = Engine(
        target(), Match(), Chain(length=2), WholeTexts(laws()), schedule=EVERYTHING, worker=InLine, slots=1, keep=False
    )
    first, second = engine.submit(request(20)), engine.submit(request(20, prompt=(1, 2)))
    for _ in range(3):
        engine.step()
    engine.cancel(first)
    while not second.finished:
        engine.step()
    assert second.rounds[0].hit is None
    (alone,) = decoded(None, Chain(length=2), requests=[request(20, prompt=(1, 2))])
    assert [shape(one) for one in second.rounds] == [shape(one) for one in alone.rounds]


@pytest.mark.parametrize("make", [lambda: Ngram(min_match=1).open(target()), lambda: TableDrafter(laws())])
def test_drafters_of_every_kind_go_ahead(make):
    (plain,) = decoded(None, drafter=make(), requests=[request(30)])
    (ahead,) = decoded(EVERYTHING, drafter=make(), requests=[request(30)])
    assert ahead.token_ids == plain.token_ids
    assert any(one.hit for one in ahead.rounds)


def test_a_drafter_that_asks_the_target_goes_ahead():
    drafter = Lookahead(window=2, ngram=3, guesses=2).open(target())
    (plain,) = decoded(None, drafter=Lookahead(window=2, ngram=3, guesses=2).open(target()), requests=[request(30)])
    (ahead,) = decoded(EVERYTHING, drafter=drafter, requests=[request(30)])
    assert ahead.token_ids == plain.token_ids
    assert any(one.inquired for one in ahead.rounds)


def test_rounds_and_totals_tell_of_hits_and_of_time():
    (sequence,) = decoded(Cached(budget=1), requests=[request(40)])
    result = sequence.result(None, True)
    assert result.stats.hits + result.stats.misses == len(sequence.rounds) - 2
    assert result.stats.hits > 0
    assert result.stats.misses > 0
    assert {span.part for one in sequence.rounds for span in one.spans} >= {"prepare", "draft", "verify"}
    assert result.stats.prepare_seconds > 0
    one = sequence.rounds[1]
    assert type(one).from_dict(one.as_dict()).hit is one.hit


class Told(InLine):
    """Keeps what it is told."""

    def __init__(self, drafter):
        super().__init__(drafter)
        self.jobs = []

    def prepare(self, schedule, jobs):
        self.jobs += jobs
        super().prepare(schedule, jobs)


def told_of(policy, rule=Match(), schedule=EVERYTHING, length=30, **how):  # noqa: B008 - frozen
    """A text, and what the worker was told while it was decoded."""
    made = Engine(target(), rule, policy, WholeTexts(laws()), schedule=schedule, worker=Told, allocator=None, **how)
    sequence = made.submit(request(length))
    while not sequence.finished:
        made.step()
    assert sequence.error is None
    return sequence, made.parts.drafter._worker.jobs, made


OBSERVING = [
    cls for cls in vars(talon_strategies).values()
    if isinstance(cls, type) and issubclass(cls, TreePolicy) and cls.observe is not TreePolicy.observe
]  # fmt: skip


@pytest.mark.parametrize("policy", OBSERVING, ids=lambda cls: cls.__name__)
def test_policies_that_learn_are_prepared_for_until_the_end(policy, caplog):
    rule = Block() if policy.children != "deterministic" else Match()
    sequence, jobs, _ = told_of(policy(), rule, length=10)
    assert not [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(jobs) == len(sequence.rounds)
    if rule == Match():
        (plain,) = decoded(None, policy(), rule, requests=[request(10)])
        assert sequence.token_ids == plain.token_ids


def test_preparing_knows_what_the_policy_has_learnt_and_shares_nothing_with_it():
    _, jobs, made = told_of(TalonCost(), length=12)
    assert [job.policy.learnt.drafted for job in jobs] == sorted(job.policy.learnt.drafted for job in jobs)
    assert jobs[-1].policy.learnt.drafted > 0
    assert len({id(job.policy.learnt) for job in jobs}) == len(jobs)
    for job in jobs:
        assert job.policy.known.costs is job.costs
        assert job.costs is not made.costs
    assert jobs[-1].costs.verify(1, 8) is not None


def test_sequences_are_told_of_one_copy_of_the_costs():
    made = Engine(target(), Match(), TalonCost(), WholeTexts(laws()), schedule=EVERYTHING, worker=Told)
    for seed in (1, 2):
        made.submit(request(10, seed=seed))
    made.step()
    first, second = made.parts.drafter._worker.jobs
    assert first.costs is second.costs


def test_costs_may_be_asked_beside_while_passes_are_measured():
    costs = MeasuredCosts()
    for size in (1, 4, 9):
        costs.verified(size, 10, 1, 1e-3 * size)
        costs.drafted(size, 3, 1e-4)
    then = costs.snapshot()
    expected = costs.snapshot()
    for _ in range(50):
        costs.verified(4, 10, 1, 1.0)
    assert then.verify(4, 10) == expected.verify(4, 10) == pytest.approx(4e-3, rel=0.5)
    assert costs.verify(4, 10) > 10 * then.verify(4, 10)


@attrs.define(eq=False)
class Held(Chain):
    """Cannot be copied."""

    name = "held"
    kept: object = attrs.field(factory=threading.Lock)


@pytest.mark.parametrize("policy", [Held(length=3), Chain(length=3)])
def test_pearl_drafts_as_usual_where_a_fault_kept_it_from_preparing(policy, caplog):
    schedule = Pearl() if isinstance(policy, Held) else Mistaken()
    sequence, _, _ = told_of(policy, schedule=schedule)
    assert all(len(one.tree) > 1 for one in sequence.rounds[1:-1])
    assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 1


@attrs.frozen
class Mistaken(Pearl):
    def outcomes(self, outlook):
        return 1 / 0


@attrs.frozen
class Undecided(Cached):
    name = "undecided"
    drafts_on_miss = None


def test_what_a_schedule_says_of_itself_is_checked_once():
    with pytest.raises(PluginError, match=r"'undecided' .*has a drafts_on_miss of None; it must be True or False"):
        decoded(Undecided())


def test_layers_that_were_there_before_are_not_measured():
    class Counted(MeasuredCosts):
        layers = 0

        def drafted(self, rows, width, seconds):
            Counted.layers += 1

    sequence, _, _ = told_of(Chain(length=3), costs=Counted())
    assert all(one.hit for one in sequence.rounds[1:-1])
    assert Counted.layers == 3  # of the first round


def test_rounds_that_draft_nothing_are_told_from_others_while_it_goes_ahead():
    costs = MeasuredCosts()
    told_of(Plain(), costs=costs)
    assert costs.besides(False) is not None
    assert costs.besides(True) is None


@attrs.frozen
class Plain(Chain):
    """Drafts nothing."""

    name = "plain"

    def width(self, tree):
        return 0


def test_where_nothing_was_prepared_there_is_no_law():
    with pytest.raises(ValueError, match="there is no law"):
        NOTHING.offered_law(VOCAB)


def test_the_drafter_is_not_asked_for_a_law_where_nothing_was_prepared():
    given = Frontier(0, TokenTree.root(1), np.array([0]), 1)
    wrapped = AheadDrafter(Cached(), InLine(WholeTexts(laws())), "it", VOCAB)
    wrapped.open(0, np.array([1]), 9)
    answer = wrapped._answer(given, {0: NOTHING})
    for _ in range(2):
        with pytest.raises(ValueError, match="there is no law"):
            answer.law(0)
    assert not wrapped.behind.calls


SOURCES = [Ngram(min_match=1, least=0.0), Ngram(min_match=2, max_match=2, least=0.0)]


@pytest.mark.parametrize("instant", SOURCES)
@pytest.mark.parametrize("calls", [None, 0, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_instant_source_drafts_after_a_miss_and_the_target_waits_for_no_pass(instant, calls, temperature):
    drafter = WholeTexts(laws())
    requests = [request(40, temperature, seed, prompt) for seed, prompt in enumerate([(1, 2, 3), (0,)])]
    plain = decoded(None, requests=[attrs.evolve(one) for one in requests])
    schedule = Cached(budget=2, instant=instant)
    ahead = decoded(schedule, drafter=drafter, calls=lambda: calls, requests=requests)
    assert [one.token_ids for one in ahead] == [one.token_ids for one in plain]
    rounds = [one for sequence in ahead for one in sequence.rounds[1:]]
    assert all(one.draft_passes == 0 for one in rounds)
    for one, other in zip(ahead, plain, strict=True):  # the first tree is the drafter's, as nothing was prepared
        assert shape(one.rounds[0]) == shape(other.rounds[0])
        assert one.rounds[0].draft_passes > 0
    if calls is None:
        assert any(one.hit for one in rounds)
    assert any(len(one.tree) > 1 for one in rounds if not one.hit)


def test_what_was_looked_up_is_a_tree_of_the_policys_with_laws_that_can_be_drawn_from():
    schedule = Cached(budget=1, instant=SOURCES[0])
    (sequence,) = decoded(schedule, SampledChain(length=3), Block(), calls=lambda: 0, requests=[request(40, 1.0)])
    assert any(len(one.tree) == 4 and one.tree.drawn for one in sequence.rounds)


def test_an_instant_source_goes_on_where_the_drafter_has_failed():
    schedule = Cached(budget=1000, instant=SOURCES[0])
    (sequence,) = decoded(schedule, drafter=Fails(2), requests=[request(40)])
    (plain,) = decoded(None, requests=[request(40)])
    assert sequence.token_ids == plain.token_ids
    assert any(len(one.tree) > 1 for one in sequence.rounds[-10:])


@attrs.frozen
class Shallow(Pld):
    """Refuses to be asked about more than it can say."""

    name = "shallow"

    def open(self, target):
        made = super().open(target)
        propose = made.propose

        def proposed(frontiers):
            for one in frontiers:
                assert one.tree.depths[one.nodes].max() < made.max_depth
            return propose(frontiers)

        made.propose = proposed
        return made


@pytest.mark.parametrize("policy", [Chain(length=5), Talon(budget=9, top_k=3, mu=1e-3)])
def test_a_source_of_few_tokens_is_not_asked_below_its_deepest(policy):
    schedule = Cached(budget=1, instant=Shallow(length=2))
    (sequence,) = decoded(schedule, policy, calls=lambda: 0, requests=[request(40)])
    assert max(int(one.tree.depths.max()) for one in sequence.rounds[1:]) == 2


@attrs.frozen
class FailsAtOnce(Ngram):
    name = "fails-at-once"

    def open(self, target):
        made = super().open(target)
        made.propose = lambda frontiers: 5
        return made


def test_an_instant_source_that_errs_is_named():
    with pytest.raises(PluginError, match=r"drafter 'fails-at-once'.* must return a Proposed"):
        decoded(Cached(instant=FailsAtOnce()), calls=lambda: 0)


class Listed(WholeTexts):
    """Tells of its slots, and of its session."""

    def __init__(self):
        super().__init__(laws())
        self.entered = 0

    @contextmanager
    def session(self):
        self.entered += 1
        try:
            yield
        finally:
            self.entered -= 1


@attrs.frozen
class FailsAt(Ngram):
    """A look-up of which some methods fail."""

    name = "fails-at"
    methods: tuple = ()

    def open(self, target):
        made = super().open(target)

        def failing(*_):
            raise KeyError("somewhere")

        for method in self.methods:
            setattr(made, method, failing)
        return made


class Woken(InLine):
    """Knows whether it holds anything."""

    awake = False
    fails = ()

    def wake(self):
        if "wake" in self.fails:
            raise RuntimeError("no cores")
        self.awake = True

    def stop(self):
        if "stop" in self.fails:
            raise RuntimeError("it does not end")
        return super().stop()

    def rest(self):
        self.awake = False


def ahead_of(*methods, drafter=None, **how):
    """An engine whose drafter goes ahead, with an instant source of which some methods fail."""
    drafter = drafter if drafter is not None else Listed()
    schedule = Cached(budget=4, instant=FailsAt(min_match=1, least=0.0, methods=methods))
    how = {"allocator": None, "keep": False, "schedule": schedule, "worker": Woken, **how}
    return Engine(target(), Match(), Chain(length=2), drafter, **how), drafter


@pytest.mark.parametrize("method", ["open", "propose", "commit", "close"])
def test_whatever_fails_in_an_instant_source_leaves_no_slot_of_the_drafter_open(method):
    engine, drafter = ahead_of(method)
    sequence = engine.submit(request(12))
    while not sequence.finished:
        engine.step()
    assert (sequence.error is None) == (method == "close")
    assert not drafter.texts
    assert not drafter.entered
    assert not engine.parts.drafter._worker.awake


def test_a_text_that_cannot_be_taken_over_by_an_instant_source_leaves_no_slot_of_the_drafter_open():
    engine, drafter = ahead_of("resume", keep=True)
    for prompt in ((1, 2, 3, 1), (1, 2, 3, 2)):
        sequence = engine.submit(request(2, prompt=prompt))
        while not sequence.finished:
            engine.step()
    assert isinstance(sequence.error, PluginError)
    engine.forget()
    assert not drafter.texts


def test_an_instant_source_hears_nothing_that_the_drafter_was_not_told():
    """The drafter is told first: what fails in a look-up is none of its affairs."""
    engine, drafter = ahead_of("commit")
    sequence = engine.submit(request(12))
    told = []
    commit = drafter.commit
    drafter.commit = lambda committed: (told.append(1), commit(committed))
    while not sequence.finished:
        engine.step()
    assert told


@pytest.mark.parametrize("where", ["wake", "session"])
def test_a_session_that_cannot_be_entered_is_left(where):
    engine, drafter = ahead_of(*(["session"] if where == "session" else []))
    worker = engine.parts.drafter._worker
    worker.fails = (where,)
    engine.submit(request(12))
    with pytest.raises(Exception, match=r"no cores|somewhere"):
        engine.step()
    assert not drafter.entered
    assert not worker.awake


def interrupted(engine, worker):
    """A session that ends while something is prepared that does not end."""
    with engine.session():
        engine.step()
        engine.parts.drafter._preparing = [0]
        worker.fails = ("stop",)


def test_a_session_is_left_whatever_keeps_preparing_from_its_end():
    engine, drafter = ahead_of()
    worker = engine.parts.drafter._worker
    engine.submit(request(12))
    with pytest.raises(RuntimeError, match="it does not end"):
        interrupted(engine, worker)
    assert not drafter.entered
    assert not worker.awake


def test_an_instant_source_reads_texts_alone():
    with pytest.raises(ValueError, match=r"'lookahead'.* needs more than the text; take one .* such as ngram"):
        decoded(Cached(instant=Lookahead(window=2, ngram=3, guesses=2)))


def test_sources_are_written_as_parts_of_a_spec():
    made = build("schedule", "cached:budget=4,instant=ngram[min_match=2;least=0.0]")
    assert made == Cached(budget=4, instant=Ngram(min_match=2, least=0.0))
    assert build("schedule", "cached:instant=none") == build("schedule", "cached") == Cached()
    assert spelled(made) == "cached:budget=4,instant=ngram[min_match=2;least=0.0]"
    with pytest.raises(ValueError, match="instant: no drafter 'n-gram'; did you mean 'ngram'"):
        build("schedule", "cached:instant=n-gram")
    with pytest.raises(ValueError, match="instant is 5; it must be a drafter"):
        Cached(instant=5)
