"""The loop: where it stops, what it refuses, whom it calls in which order, and what it writes down."""

import re

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core import (
    AcceptanceRule,
    Accepted,
    Candidates,
    Growth,
    PluginError,
    Request,
    Stats,
    TableTarget,
    TreePolicy,
)
from talon_core.certify.exact import Given
from talon_core.decoding.decoder import Decoder
from talon_core.sampling import Sampling
from talon_core.table import Memoryless
from talon_strategies.chain import Chain
from talon_strategies.rules.match import Match
from talon_strategies.schedules.cached import Cached

VOCAB = 6
COUNTING = TableTarget(np.roll(np.eye(VOCAB), 1, axis=1) * 9)
"""After token t comes t + 1, and after the last comes 0; when sampled, almost surely."""


class Knows(Memoryless):
    """A drafter that knows how COUNTING goes on, and remembers what it is told."""

    def __init__(self):
        self.calls = []

    def offer(self, tree, frontier, width):
        laws = np.full((len(frontier), VOCAB), 1e-3)
        laws[np.arange(len(frontier)), (tree.tokens[frontier] + 1) % VOCAB] = 1 - 1e-3 * (VOCAB - 1)
        return Candidates.from_logits(tree, frontier, np.log(laws), width)

    def open(self, slot, prompt, room):
        self.calls.append(("open", slot, prompt.tolist(), room))

    def read(self, parts):
        self.calls.append(("read", {slot: (part.start, part.count, part.features) for slot, part in parts.items()}))

    def propose(self, frontiers):
        self.calls.append(("propose", {one.slot: len(one.tree) for one in frontiers}))
        return super().propose(frontiers)

    def commit(self, committed):
        self.calls.append(
            ("commit", {slot: (one.tokens.tolist(), one.nodes.tolist()) for slot, one in committed.items()})
        )

    def close(self, slot):
        self.calls.append(("close", slot))


def decode(prompt=(0,), policy=None, target=COUNTING, rule=None, drafter=None, choices=None, **request):
    """Run to the end; the generation, not only its result."""
    made = Request(ids=np.array(prompt, dtype=np.int64), **{"max_new_tokens": 7, **request})
    decoder = Decoder(target, rule or Match(), policy, Given(drafter or Knows()) if policy else None)
    generation = decoder.run(made, choices)
    for _ in generation:
        pass
    return generation


def chain(length):
    return Chain(length=length)


def test_a_drafter_that_is_opened_decodes_as_its_options_do():
    request = Request(ids=np.array([0]), max_new_tokens=7)
    decoders = [Decoder(COUNTING, Match(), chain(3), drafter) for drafter in (Knows(), Given(Knows()))]
    opened, by_options = ([round_.tokens.tolist() for round_ in decoder.run(request)] for decoder in decoders)
    assert opened == by_options == [[1, 2, 3, 4], [5, 0, 1]]
    assert decoders[0].drafter_spec is None
    assert isinstance(decoders[0].drafter, Knows)


class ProposesAList(Knows):
    def propose(self, frontiers):
        return []


class HasNoSession(Knows):
    def session(self):
        return None


class IsTooShallow(Knows):
    max_depth = -1


class ResumesTooMuch(Knows):
    def resume(self, slot, prompt, room, source, length):
        return length + 1


@pytest.mark.parametrize(
    ("drafter", "complaint"),
    [
        (ProposesAList, "returned list from propose"),
        (HasNoSession, "returned NoneType from session"),
        (IsTooShallow, "has a max_depth of -1"),
        (ResumesTooMuch, "returned 3 from resume"),
    ],
)
def test_an_opened_drafter_that_breaks_its_contract_is_named_by_its_class(drafter, complaint):
    decoder = Decoder(COUNTING, Match(), chain(3), drafter())
    name = drafter.__name__
    requests = [Request(ids=np.array(prompt), max_new_tokens=5) for prompt in ([0, 1, 2], [0, 1, 3])]  # begin alike
    with pytest.raises(PluginError, match=rf"^drafter '{name}' \(.*{name}\) {complaint}"):
        _ = [decoder.run_all([request]) for request in requests]


POLICIES = pytest.mark.parametrize("policy", [None, chain(1), chain(3), chain(20)], ids=["none", "1", "3", "20"])


# Where it stops


@POLICIES
def test_the_text_is_cut_at_an_end_token_inside_an_accepted_path(policy):
    done = decode((0,), policy, eos=frozenset({3}), max_new_tokens=20)
    assert (done.token_ids, done.finish_reason) == ([1, 2, 3], "eos")


@POLICIES
def test_the_first_of_several_end_tokens_counts(policy):
    done = decode((2,), policy, eos=frozenset({1, 5}), max_new_tokens=20)
    assert (done.token_ids, done.finish_reason) == ([3, 4, 5], "eos")


def test_a_tree_of_a_policy_that_looks_past_the_end_is_still_cut():
    class Blind(Match):
        """Follows the tree without asking whether the text ends."""

        def walk(self, tree, laws, choices):
            path = [0]
            while (child := tree.child(path[-1], token := laws.draw(path[-1], choices))) is not None:
                path.append(child)
            return Accepted(np.array(path), token)

    @attrs.frozen
    class Stubborn(TreePolicy):
        name = "stubborn"
        budget: int = 8

        def grow(self, tree, candidates, choices):
            return Growth(np.array([], dtype=np.int64))

        def finish(self, tree):
            ahead = (tree.tokens[0] + np.arange(1, 8)) % VOCAB
            return tree.extend(ahead, np.arange(7), np.zeros(7))

    done = decode((0,), Stubborn(), rule=Blind(), eos=frozenset({3}), max_new_tokens=20)
    assert (done.token_ids, done.finish_reason) == ([1, 2, 3], "eos")
    assert done.rounds[0].tokens.tolist() == [1, 2, 3]


@POLICIES
@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 9])
def test_no_more_tokens_come_than_were_asked_for(policy, tokens):
    done = decode((0,), policy, max_new_tokens=tokens)
    assert (done.token_ids, done.finish_reason) == ([(1 + i) % VOCAB for i in range(tokens)], "length")


@POLICIES
@pytest.mark.parametrize(("context", "prompt", "room"), [(9, 4, 5), (5, 4, 1), (100, 1, 7)])
def test_prompt_and_output_stay_within_the_context(policy, context, prompt, room):
    target = TableTarget(COUNTING.logits, context_length=context)
    done = decode(range(prompt), policy, target, max_new_tokens=7)
    assert (len(done.token_ids), done.finish_reason) == (room, "length")


def test_no_tree_is_deeper_than_what_may_still_come():
    for round_ in decode((0,), chain(20), max_new_tokens=9).rounds:
        assert round_.tree.depths.max() <= 8


@POLICIES
def test_an_end_token_at_the_limit_is_an_end(policy):
    assert decode((0,), policy, eos=frozenset({3}), max_new_tokens=3).finish_reason == "eos"


@POLICIES
def test_a_criterion_is_asked_after_each_token_with_all_before_it(policy):
    seen = []

    def stops(ids):
        seen.append(ids[0].tolist())
        return len(seen) == 4

    done = decode((4, 5, 0), policy, criteria=(stops,), max_new_tokens=20)
    assert (done.token_ids, done.finish_reason) == ([1, 2, 3, 4], "stop")
    assert seen == [[4, 5, 0, *done.token_ids[:count]] for count in range(1, 5)]


def test_every_criterion_is_asked_though_one_says_stop():
    asked = []
    criteria = tuple(lambda ids, name=name: asked.append(name) or name == "first" for name in ("first", "second"))
    assert decode(criteria=criteria).finish_reason == "stop"
    assert asked == ["first", "second"]


def test_a_criterion_at_the_limit_is_a_stop():
    assert decode(criteria=(lambda ids: ids.shape[1] == 4,), max_new_tokens=3).finish_reason == "stop"


def test_a_criterion_that_fails_is_the_users_error():
    def fails(ids):
        raise ZeroDivisionError("my criterion")

    with pytest.raises(ZeroDivisionError, match="my criterion"):
        decode(criteria=(fails,))


# What it refuses


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"ids": []}, r"the prompt is empty; it must have at least one token"),
        ({"ids": [0, 6]}, r"the prompt holds token 6; the target's vocabulary has ids 0 to 5"),
        ({"ids": [-1, 0]}, r"the prompt holds token -1; the target's vocabulary has ids 0 to 5"),
        ({"ids": [0] * 8}, r"the prompt has 8 tokens; the target's context holds 8, .* must be shorter"),
        ({"ids": [0] * 9}, r"the prompt has 9 tokens"),
        ({"ids": [0], "max_new_tokens": 0}, r"max_new_tokens is 0; it must be at least 1"),
        ({"ids": [0], "max_new_tokens": -4}, r"max_new_tokens is -4"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_before_anything_runs(request_, sentence):
    target = TableTarget(COUNTING.logits, context_length=8)
    drafter = Knows()
    decoder = Decoder(target, Match(), chain(2), Given(drafter))
    request = Request(**{"max_new_tokens": 3, **request_, "ids": np.array(request_["ids"], dtype=np.int64)})
    with pytest.raises(ValueError, match=sentence):
        decoder.run(request)
    assert drafter.calls == []


@pytest.mark.parametrize("method", ["run", "batch", "run_all", "limit"])
def test_what_is_no_request_or_no_sampling_is_refused_in_words(method):
    decoder = Decoder(TableTarget(COUNTING.logits), Match(), chain(2), Given(Knows()))
    several = {"batch": lambda one: decoder.batch([one], 1), "run_all": lambda one: decoder.run_all([one])}
    decode = several.get(method) or getattr(decoder, method)
    with pytest.raises(ValueError, match=r"^the request is 'hi'; it must be an object of class Request"):
        decode("hi")
    with pytest.raises(ValueError, match=r"sampling is 0\.5; it must be an object of class Sampling"):
        decode(Request(np.array([0]), 3, sampling=0.5))


def test_a_target_whose_context_is_shortened_says_why():
    target = TableTarget(COUNTING.logits, context_length=8)
    target.context_reason = "beyond it the wind turns"
    with pytest.raises(ValueError, match=r"context holds 8 \(beyond it the wind turns\), the output included, so"):
        decode([0] * 8, None, target)


def test_a_target_makes_room_for_a_modest_tree_only():
    class Roomy(TableTarget):
        def open(self, slot, room):
            told.append(room)
            super().open(slot, room)

    told = []
    for length in (3, 60_000):
        decode((0,), chain(length), Roomy(COUNTING.logits), max_new_tokens=7)
    assert told == [1 + 7 + 4, 1 + 7 + 256]


def test_a_policy_without_a_drafter_is_refused():
    with pytest.raises(ValueError, match=r"tree policy 'chain' \(.*Chain\) needs a drafter, and there is none"):
        Decoder(COUNTING, Match(), chain(2))


def test_a_drafter_without_a_policy_drafts_nothing_and_a_warning_says_so(caplog):
    decoder = Decoder(COUNTING, Match(), None, Given(Knows()))
    assert decoder.drafter is None
    (warning,) = caplog.messages
    assert re.search(r"^drafter 'given' .* drafts nothing: there is no tree policy$", warning)


@pytest.mark.parametrize("policy", [None, chain(2)])
@pytest.mark.parametrize("draft_on", ["cpu:1", "cuda:0"])
def test_a_place_without_a_schedule_is_refused(policy, draft_on):
    with pytest.raises(
        ValueError, match=f"draft_on is '{draft_on}', and the schedule drafts and verifies in turn; name"
    ):
        Decoder(COUNTING, Match(), policy, Given(Knows()), draft_on=draft_on)


def test_a_schedule_without_a_policy_is_refused():
    sentence = "the schedule is Cached.*, and there is no tree policy, so that nothing is drafted; name a policy"
    with pytest.raises(ValueError, match=sentence):
        Decoder(COUNTING, Match(), None, Given(Knows()), schedule=Cached())


def test_a_rule_that_is_not_exact_for_the_policys_trees_is_refused_before_the_first_token():
    @attrs.frozen
    class OnlySampled(AcceptanceRule):
        name = "only-sampled"
        exact_for = frozenset({"sampled"})

        def walk(self, tree, laws, choices):
            pytest.fail("a token was decoded")

    drafter = Knows()
    with pytest.raises(ValueError, match=r"'only-sampled' .* not exact for the deterministic trees .* for sampled"):
        Decoder(COUNTING, OnlySampled(), chain(2), Given(drafter))
    assert drafter.calls == []
    Decoder(COUNTING, OnlySampled())  # without a policy there is no tree to be wrong about


def test_a_decoder_without_a_frontend_says_what_it_takes():
    with pytest.raises(ValueError, match="no frontend: give it token ids through `run`"):
        Decoder(COUNTING, Match()).generate("hello")


# Whom it calls


@attrs.frozen
class Listening(Chain):
    """A chain that writes down what it is told, in one list for all sequences."""

    told: list = attrs.field(factory=list)

    def begin(self, sequence):
        self.told.append("begin")
        return self

    def observe(self, round_):
        self.told.append(round_)


def content(round_):
    """All that a round holds, so that rounds can be compared."""
    arrays = [round_.tree.tokens, round_.tree.parents, round_.tree.path_logp, round_.path, round_.tokens]
    numbers = [value for value in attrs.asdict(round_, recurse=False).values() if isinstance(value, int | float)]
    return [*(array.tolist() for array in arrays), *numbers]


def test_a_policy_is_told_of_each_round_and_of_each_new_sequence():
    policy = Listening(length=2)
    decoder = Decoder(COUNTING, Match(), policy, Given(Knows()))
    request = Request(ids=np.array([0]), max_new_tokens=7)
    expected = []
    for _ in range(2):
        generation = decoder.run(request)
        assert len(policy.told) == len(expected)
        expected += ["begin", *map(content, generation)]
        assert [one if one == "begin" else content(one) for one in policy.told] == expected


def test_a_policy_has_observed_a_round_before_the_caller_sees_it():
    policy = Listening(length=2)
    for round_ in Decoder(COUNTING, Match(), policy, Given(Knows())).run(Request(np.array([0]), 7)):
        assert content(policy.told[-1]) == content(round_)


def test_a_drafter_hears_of_every_token_but_those_of_the_last_round():
    drafter = Knows()
    done = decode((4, 5), chain(2), drafter=drafter, max_new_tokens=7)
    assert done.token_ids == [0, 1, 2, 3, 4, 5, 0]
    assert drafter.calls == [
        ("open", 0, [4, 5], 2 + 7),
        ("read", {0: (0, 1, None)}),
        ("propose", {0: 1}),
        ("propose", {0: 2}),
        ("commit", {0: ([0, 1, 2], [0, 1, 2])}),
        ("propose", {0: 1}),
        ("propose", {0: 2}),
        ("commit", {0: ([3, 4, 5], [0, 1, 2])}),
    ]


def test_a_drafter_keeps_a_text_that_is_over_until_it_is_forgotten():
    drafter = Knows()
    decoder = Decoder(COUNTING, Match(), chain(2), Given(drafter))
    decoder.run_all([Request(ids=np.array([4, 5]), max_new_tokens=3)])
    assert ("close", 0) not in drafter.calls
    decoder.engine.forget()
    assert drafter.calls[-1] == ("close", 0)


def test_a_drafter_is_told_where_in_its_own_tree_the_accepted_tokens_stand():
    @attrs.frozen
    class Reversing(TreePolicy):
        """Drafts two worse candidates before the best, and sends the best alone."""

        name = "reversing"
        budget: int = 2
        draft_budget = 4

        def grow(self, tree, candidates, choices):
            return Growth(candidates.best(3)[::-1], frontier=[])

        def finish(self, tree):
            return tree.keep([0, 3]) if len(tree) > 3 else tree

    drafter = Knows()
    decode((0,), Reversing(), drafter=drafter, max_new_tokens=3)
    assert drafter.calls[2] == ("commit", {0: ([1, 2], [0, 3])})


@pytest.mark.parametrize("path", [[0], np.array([0.0]), np.array([[0]]), np.array([0, -1]), np.array([True]), None])
def test_what_is_no_path_of_node_indices_is_blamed_on_the_rule(path):
    @attrs.frozen
    class Wrong(Match):
        name = "wrong"

        def walk(self, tree, laws, choices):
            return Accepted(path, 1)

    with pytest.raises(PluginError, match=r"^rule 'wrong' .* accepted"):
        decode((0,), chain(1), rule=Wrong())


# What it writes down


@POLICIES
@pytest.mark.parametrize("do_sample", [False, True])
def test_the_records_of_the_rounds_add_up_to_the_totals(policy, do_sample):
    done = decode((0,), policy, max_new_tokens=30, sampling=Sampling(do_sample), seed=3)
    rounds, stats = done.rounds, done.result().stats
    assert [token for round_ in rounds for token in round_.tokens.tolist()] == done.token_ids
    assert stats.new_tokens == len(done.token_ids) == 30
    assert stats.rounds == stats.target_passes == len(rounds)
    assert stats.nodes_verified == sum(len(round_.tree) for round_ in rounds)
    assert stats.draft_passes == 0  # a table is no model
    assert stats.mean_accepted_tokens == 30 / len(rounds)
    parts = ("draft_seconds", "policy_seconds", "verify_seconds", "accept_seconds", "commit_seconds")
    for part in parts:
        assert getattr(stats, part) == pytest.approx(sum(getattr(round_, part) for round_ in rounds))
    accounted = stats.prefill_seconds + stats.other_seconds + sum(getattr(stats, part) for part in parts)
    assert accounted == pytest.approx(stats.seconds)
    assert stats.tokens_per_second == pytest.approx(30 / stats.seconds)
    for round_ in rounds:
        path = round_.path
        assert path[0] == 0
        assert round_.tree.parents[path[1:]].tolist() == path[:-1].tolist()
        assert round_.tokens[: round_.accepted].tolist() == round_.tree.tokens[path[1:]][: len(round_.tokens)].tolist()
        assert len(round_.tree) <= round_.drafted_nodes
    roots = [0, *(int(round_.tokens[-1]) for round_ in rounds[:-1])]
    assert [int(round_.tree.tokens[0]) for round_ in rounds] == roots


def test_a_drafter_that_is_always_right_gives_a_token_for_each_node():
    done = decode((0,), chain(4), max_new_tokens=20)
    assert [round_.accepted for round_ in done.rounds] == [4] * 4
    assert done.result().stats.mean_accepted_tokens == 5


def test_no_rounds_add_up_to_nothing():
    stats = Stats.of([], 0.0, 0.0)
    assert set(stats.as_dict().values()) == {0}
    stats = Stats.of([], 2.0, 1.5)
    assert (stats.mean_accepted_tokens, stats.tokens_per_second, stats.other_seconds) == (0, 0, 0.5)


def test_a_generation_that_is_stopped_early_has_the_result_so_far():
    generation = Decoder(COUNTING, Match(), chain(2), Given(Knows())).run(Request(np.array([0]), max_new_tokens=20))
    assert generation.result().finish_reason == "interrupted"
    assert generation.result().stats.new_tokens == 0
    next(generation)
    generation.close()
    result = generation.result()
    assert (result.token_ids, result.finish_reason, result.text) == ([1, 2, 3], "interrupted", None)
    assert (result.stats.rounds, len(result.rounds)) == (1, 1)
    assert list(generation) == []


def test_a_generation_that_fails_has_the_result_so_far():
    def fails(ids):
        if ids.shape[1] > 5:
            raise KeyboardInterrupt
        return False

    generation = Decoder(COUNTING, Match(), chain(2), Given(Knows())).run(
        Request(np.array([0]), max_new_tokens=20, criteria=(fails,))
    )
    with pytest.raises(KeyboardInterrupt):
        list(generation)
    assert (generation.result().token_ids, generation.result().finish_reason) == ([1, 2, 3], "interrupted")


def test_a_finished_generation_gives_nothing_more():
    done = decode()
    assert list(done) == []
    assert done.result().finish_reason == "length"


def test_a_seed_makes_sampling_reproducible():
    flat = TableTarget(np.zeros((VOCAB, VOCAB)))
    runs = [decode((0,), chain(2), flat, sampling=Sampling(True), seed=seed, max_new_tokens=30) for seed in (5, 5, 6)]
    assert runs[0].token_ids == runs[1].token_ids != runs[2].token_ids


# Processors


def prefixes_seen(policy, target=COUNTING, **request):
    """What a processor is shown, and the tokens that come out."""
    seen = []

    def watch(ids, scores):
        seen.append(ids[0].tolist())
        return scores

    sampling = Sampling(request.pop("do_sample", False), (watch,))
    done = decode((0, 3), policy, target, sampling=sampling, **request)
    return seen, done.token_ids


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 2**16),
    st.sampled_from([chain(1), chain(4)]),
    st.booleans(),
    st.frozensets(st.integers(0, 5), max_size=1),
)
def test_a_processor_sees_the_prefixes_of_plain_decoding_once_each(seed, policy, do_sample, eos):
    target = TableTarget(np.random.default_rng(seed).standard_normal((VOCAB, VOCAB)))
    options = {"do_sample": do_sample, "eos": eos, "seed": seed, "max_new_tokens": 12}
    seen, tokens = prefixes_seen(policy, target, **options)
    assert seen == [[0, 3, *tokens[:count]] for count in range(len(tokens))]
    if not do_sample:
        assert (seen, tokens) == prefixes_seen(None, target, **options)


def test_a_processor_with_a_memory_does_what_it_does_in_plain_decoding():
    def forbids_every_third_call():
        calls = []

        def process(ids, scores):
            calls.append(1)
            if len(calls) % 3 == 0:
                scores[:, int(scores.argmax())] = -torch.inf  # it may write into what it is given
            return scores

        return process

    plain = decode((0,), None, sampling=Sampling(False, (forbids_every_third_call(),)), max_new_tokens=20)
    fast = decode((0,), chain(4), sampling=Sampling(False, (forbids_every_third_call(),)), max_new_tokens=20)
    assert fast.token_ids == plain.token_ids
    assert len(fast.rounds) < len(plain.rounds)


def test_a_processor_is_called_once_at_a_node_however_often_a_rule_asks():
    @attrs.frozen
    class Forgetful(Match):
        """Asks for the same law again and again."""

        def walk(self, tree, laws, choices):
            for _ in range(3):
                assert laws.at(0).sum() == pytest.approx(1)
            laws.at(0)[:] = 0  # what a rule does to its copy changes nothing
            return super().walk(tree, laws, choices)

    seen = []

    def watch(ids, scores):
        seen.append(ids.shape[1])
        return scores + 0

    for do_sample in (False, True):
        seen.clear()
        done = decode(
            (0,), chain(2), rule=Forgetful(), sampling=Sampling(do_sample, (watch,)), max_new_tokens=9, seed=0
        )
        assert seen == list(range(1, len(done.token_ids) + 1))


def failing(ids, scores):
    raise LookupError("my processor")


def shapeless(ids, scores):
    return scores[0]


def forgetful(ids, scores):
    return None


def complex_ones(ids, scores):
    return scores + 0j


def sparse(ids, scores):
    return scores.to_sparse()


def without_data(ids, scores):
    return scores.to("meta")


def forbidding(ids, scores):
    return torch.full_like(scores, -torch.inf)


def exploding(ids, scores):
    return scores + torch.tensor([torch.inf, 0, 0, 0, 0, 0])


@POLICIES
@pytest.mark.parametrize("do_sample", [False, True])
def test_a_processor_that_fails_is_the_users_error_and_not_the_rules(policy, do_sample):
    with pytest.raises(LookupError, match=r"^'?my processor'?$"):
        decode((0,), policy, sampling=Sampling(do_sample, (failing,)))


def test_a_processor_that_raises_a_plugin_error_keeps_it():
    def plugin(ids, scores):
        raise PluginError("my plugin")

    with pytest.raises(PluginError, match=r"^my plugin$"):
        decode((0,), chain(2), sampling=Sampling(False, (plugin,)))


@pytest.mark.parametrize(
    ("processor", "sentence"),
    [
        (shapeless, r"processor 'shapeless' returned scores of shape \(6,\); it must return scores of shape \(1, 6\)"),
        (forgetful, r"processor 'forgetful' returned None; it must return scores of shape \(1, 6\)"),
        (
            complex_ones,
            r"'complex_ones' returned scores that are torch\.complex\d+ .*; it must return real numbers in a",
        ),
        (sparse, r"'sparse' returned scores that are torch\.float\d+ and torch\.sparse_coo, .*; it must return real"),
        (without_data, r"'without_data' returned scores that .* on the device meta; it must return real numbers in a"),
    ],
)
@pytest.mark.parametrize("do_sample", [False, True])
def test_a_processor_that_returns_nonsense_is_named(processor, sentence, do_sample):
    with pytest.raises(ValueError, match=sentence):
        decode((0,), chain(2), sampling=Sampling(do_sample, (processor,)))


@POLICIES
@pytest.mark.parametrize("do_sample", [False, True])
def test_scores_that_a_gradient_could_go_through_are_scores(policy, do_sample):
    def guided(ids, scores):
        with torch.enable_grad():
            return (scores * torch.ones(6, dtype=scores.dtype, requires_grad=True)) + 0

    found = decode((0,), policy, sampling=Sampling(do_sample, (guided,)), seed=0)
    assert found.token_ids == decode((0,), policy, sampling=Sampling(do_sample), seed=0).token_ids


@pytest.mark.parametrize("processors", [(forbidding,), (exploding,)])
def test_scores_that_leave_no_law_to_draw_from_are_refused_in_words(processors):
    with pytest.raises(ValueError, match=r"no law to draw from.*after 1 tokens"):
        decode((0,), chain(2), sampling=Sampling(True, processors))
