"""Passes that are run ahead of their rounds: the bits of passes that are run one by one, whatever happens between."""

import signal
from itertools import pairwise

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import TopKLogitsWarper

from talon_core.choices import SeededChoices
from talon_core.costs import MeasuredCosts
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import FINAL_STATE, Drafter
from talon_core.engine.plain import RootAlone
from talon_core.errors import PluginError
from talon_core.hf.target import HFTarget
from talon_core.plugins.parts import Parts
from talon_core.policy import Growth, TreePolicy
from talon_core.request import Request
from talon_core.runtime import executor as executors
from talon_core.sampling import Sampling, Temperature, temperature_sampling
from talon_core.source_chooser import SourceChooser
from talon_core.target import NO_TOKEN, Behind, DrawnTests, Further, NodeDraws
from talon_core.tree import TokenTree
from talon_drafters.hybrid.drafter import HybridDrafter
from talon_drafters.ngram.drafter import NgramDrafter
from talon_kernels import NativeAccelerator, NativeAttention
from talon_strategies.talon_cost import TalonCost
from talon_tests.tiny_models import tiny_model

HEADS = {"head_dim": 32}
PROMPT = np.arange(5, 40)
NO_END: frozenset[int] = frozenset()
STATES = (0, 2, FINAL_STATE)
ROOMY = 100.0
"""Seconds: as many passes are run ahead as are asked for, however slow the machine is just now."""


@pytest.fixture(autouse=True)
def _as_many_as_are_asked_for(monkeypatch):
    monkeypatch.setattr(executors, "SECONDS_AHEAD", ROOMY)


def target_of(architecture="llama", features=STATES, **more):
    model = tiny_model(architecture, **(more or HEADS))
    return HFTarget(model, NativeAttention(), NativeAccelerator(), features)


def begin(target, texts, room=200):
    """Open a slot for each text, read it, and have the passes over roots recorded."""
    for slot, text in enumerate(texts):
        target.open(slot, room)
        target.read({slot: np.asarray(text[:-1])})
    return {slot: int(text[-1]) for slot, text in enumerate(texts)}


def step(target, roots, further=0, ends=NO_END):
    """One round over roots alone: what was verified."""
    trees = {slot: TokenTree.root(token) for slot, token in roots.items()}
    verified = target.verify(trees, dict.fromkeys(roots, ends), **({"further": Further(further)} if further else {}))
    assert verified.accepted.keys() == roots.keys()
    return verified


def tokens_of(verified):
    return {slot: one.token for slot, one in verified.accepted.items()}


def rounds(target, roots, furthers, ends=NO_END):
    """Several rounds, as many as there are numbers of further ones; of each what was verified."""
    found = []
    for further in furthers:
        found.append(step(target, roots, further, ends))
        roots = tokens_of(found[-1])
    return found


def features_of(target, verified):
    return torch.cat([verified.accepted[slot].features for slot in sorted(verified.accepted)]).clone()


def rows(target, slot, length):
    return [buffer[slot, :, :length].clone() for buffer in target.runner.cache.buffers()]


def warmed(target, roots):
    """The roots after so many rounds that passes are recorded and compared."""
    return tokens_of(rounds(target, roots, [0] * 6)[-1])


def same_bits(ones, others):
    return all(
        torch.equal(one.view(torch.int32), other.view(torch.int32)) for one, other in zip(ones, others, strict=True)
    )


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral-window", "gemma3", "granite"])
@pytest.mark.parametrize("texts", [[PROMPT], [PROMPT, PROMPT[:7], PROMPT[3:20]]])
def test_passes_run_ahead_have_the_bits_of_passes_run_one_by_one(library, architecture, texts):
    target = target_of(architecture)
    made = []
    for furthers in ([0] * 20, [*range(19, -1, -1)]):
        with target.session():
            roots = warmed(target, begin(target, texts))
            found = rounds(target, roots, furthers)
            lengths = target.runner.cache.lengths
            made.append(
                (
                    [tokens_of(one) for one in found],
                    [features_of(target, one) for one in found],
                    [row for slot in range(len(texts)) for row in rows(target, slot, lengths[slot])],
                    [one.passes for one in found],
                )
            )
            for slot in range(len(texts)):
                target.close(slot)
    (tokens, features, kept, passes), (own_tokens, own_features, own_kept, own_passes) = made
    assert own_tokens == tokens
    assert same_bits(own_features, features)
    assert same_bits(own_kept, kept)
    assert passes == [1] * 20
    assert own_passes == [20] + [0] * 19


def test_where_pytorch_has_the_last_word_passes_run_one_by_one(library):
    target = target_of("gemma2")  # whose scores are bent behind the head
    with target.session():
        roots = warmed(target, begin(target, [PROMPT]))
        assert target.runner.executor.recorded == 1
        assert [one.passes for one in rounds(target, roots, [3, 2, 1, 0])] == [1] * 4


OPERATIONS = st.one_of(
    st.tuples(st.just("roots"), st.integers(0, 6)),
    st.tuples(st.just("tree"), st.integers(0, 96)),
    st.tuples(st.just("other text"), st.integers(2, 30)),
    st.tuples(st.just("resume"), st.integers(1, 60)),
    st.tuples(st.just("reads"), st.integers(1, 3)),
    st.tuples(st.just("one slot"), st.integers(0, 6)),
    st.tuples(st.just("another token"), st.integers(0, 96)),
    st.tuples(st.just("session"), st.just(0)),
    st.tuples(st.just("given up"), st.integers(0, 96)),
    st.tuples(st.just("more room"), st.integers(200, 900)),
    st.tuples(st.just("as long"), st.integers(0, 96)),
)


def check_the_same(operations):
    """Two targets are asked the same; to one of them it is said, rightly or not, how many rounds are to come."""
    plain, ahead = (target_of(features=(1,)) for _ in range(2))
    told = [_asked(target, operations, says) for target, says in ((plain, False), (ahead, True))]
    assert told[0][0] == told[1][0]
    assert same_bits(told[0][1], told[1][1])


@settings(deadline=None, max_examples=25)
@given(operations=st.lists(OPERATIONS, min_size=4, max_size=25))
def test_whatever_comes_between_rounds_they_find_what_they_find_without(operations):
    check_the_same(operations)


@pytest.mark.parametrize("between", [(kind, 7) for kind in ("given up", "as long", "reads", "tree", "another token")])
@pytest.mark.parametrize("further", [4, 6])
def test_what_was_run_ahead_is_forgotten_where_the_text_goes_on_otherwise(library, between, further):
    check_the_same([("roots", further), between])


def test_what_was_run_ahead_is_forgotten_where_it_lies_in_other_memory(library):
    check_the_same([("roots", 6), ("more room", 900)])


@pytest.mark.parametrize("length", [14, 15, 16])  # of the text that was there before: 15
def test_what_was_run_ahead_is_forgotten_where_a_text_is_taken_over(library, length):
    check_the_same([("roots", 6), ("resume", length)])


def _asked(target, operations, says):
    tokens, features = [], []

    def took(verified):
        tokens.append(tokens_of(verified))
        features.append(features_of(target, verified))
        return tokens[-1]

    first = session = target.session()
    session.__enter__()
    roots = warmed(target, begin(target, [PROMPT, PROMPT[:9]]))
    for kind, number in operations:
        if kind == "roots":
            roots = took(step(target, roots, number * says))
        elif kind == "tree":
            tree = TokenTree(np.array([roots[0], number, 5]), np.array([-1, 0, 1]), np.zeros(3))
            roots = took(target.verify({0: tree, 1: TokenTree.root(roots[1])}, dict.fromkeys((0, 1), NO_END)))
        elif kind == "other text":
            target.close(1)
            target.open(1, 200)
            target.read({1: PROMPT[:number]})
        elif kind == "resume":  # a text that began as the other one did, and whose last token is the one that is next
            length = min(number, target.runner.cache.lengths[0])
            target.resume(1, 200, 0, length)
        elif kind == "reads":
            target.read({1: PROMPT[:number]})
        elif kind == "one slot":
            roots |= took(step(target, {0: roots[0]}, number * says))
        elif kind == "another token":
            roots = {**roots, 1: number}
        elif kind == "given up":  # it has been written behind the prefix, and is forgotten
            tree = TokenTree(np.array([roots[0], number]), np.array([-1, 0]), np.zeros(2))
            target.verify({0: tree})
            target.commit({0: np.arange(0)})
        elif kind == "more room":
            target.runner.cache.make_room(number)
        elif kind == "as long":  # another text, with as many rows and the same root
            length = target.runner.cache.lengths[1]
            target.close(1)
            target.open(1, 200)
            target.read({1: np.resize([number, 3, 11], length)})
        else:
            session.__exit__(None, None, None)
            session = first.again()
            session.__enter__()
    for _ in range(12):  # further than anything was run ahead
        roots = took(step(target, roots))
    session.__exit__(None, None, None)
    return tokens, features


@pytest.mark.parametrize("ahead", [0, 9])
@pytest.mark.parametrize("fails", ["read", "verify"])
def test_a_pass_that_fails_on_the_way_has_written_over_what_was_run_ahead(library, monkeypatch, ahead, fails):
    target, found = target_of(), []
    with target.session():
        roots = tokens_of(step(target, warmed(target, begin(target, [PROMPT])), ahead))
        with monkeypatch.context() as patch:
            layer = target.model.model.layers[2]
            patch.setattr(layer, "forward", lambda *_, **__: (_ for _ in ()).throw(MemoryError("full")))
            tree = TokenTree(np.array([roots[0], 5]), np.array([-1, 0]), np.zeros(2))
            with pytest.raises(Exception, match="full"):
                target.read({0: PROMPT}) if fails == "read" else target.runner.executor.run(
                    target.runner.executor.inputs({0: (tree, 0)}), target.runner._outputs, "another kind"
                )
        for _ in range(14):
            found.append(step(target, roots))
            roots = tokens_of(found[-1])
    assert found[0].passes == 1
    target = target_of()
    with target.session():
        roots = tokens_of(step(target, warmed(target, begin(target, [PROMPT]))))
        assert [tokens_of(one) for one in rounds(target, roots, [0] * 14)] == [tokens_of(one) for one in found]


def test_a_tree_is_walked_as_far_as_it_is_right_whatever_was_run_ahead(library):
    target = target_of()
    with target.session():
        roots = warmed(target, begin(target, [PROMPT]))
        found = rounds(target, roots, [6, 0, 0])
        known = [tokens_of(one)[0] for one in rounds(target, tokens_of(found[-1]), [0] * 4)]
        target.close(0)
        assert warmed(target, begin(target, [PROMPT])) == roots
        last = tokens_of(rounds(target, roots, [6, 0, 0])[-1])[0]
        chain = TokenTree(np.array([last, *known[:2]]), np.array([-1, 0, 1]), np.zeros(3))
        verified = target.verify({0: chain}, {0: NO_END}, further=Further(5))
    assert verified.passes == 1
    assert (verified.accepted[0].path.tolist(), verified.accepted[0].token) == ([0, 1, 2], known[2])


def test_each_sort_of_pass_is_checked_before_it_is_run_ahead(library):
    target = target_of()
    with target.session():
        roots = warmed(target, begin(target, [PROMPT]))
        target.open(1, 200)
        target.read({1: PROMPT[:9]})
        found = rounds(target, {**roots, 1: 5}, [7, 6, *[0] * 5])
    assert [one.passes for one in found] == [1, 7] + [0] * 5


def test_nothing_is_run_ahead_while_a_model_has_hooks(library):
    target, seen = target_of(), []
    with target.session():
        roots = warmed(target, begin(target, [PROMPT]))
    handle = target.model.model.layers[1].register_forward_hook(lambda *_: seen.append(1))
    with target.session():
        found = rounds(target, roots, [4, 3, 2, 1])
    handle.remove()
    assert [one.passes for one in found] == [1] * 4
    assert len(seen) >= 4


@pytest.mark.parametrize("slot", [0, 7])
def test_a_slot_that_is_not_open_is_refused(library, slot):
    target = target_of()
    with target.session():
        roots = warmed(target, begin(target, [PROMPT]))
        step(target, roots, 4)
        target.close(0)
        with pytest.raises(ValueError, match=f"slot {slot} is not open"):
            step(target, {slot: 5}, 4)


def test_slots_that_take_no_part_stay_as_they_are(library):
    target = target_of()
    with target.session():
        roots = warmed(target, begin(target, [PROMPT, PROMPT[:8], PROMPT[4:9]]))
        two = {2: roots[2], 0: roots[0]}
        expected = [tokens_of(one) for one in rounds(target, two, [0] * 6)]
        length = target.runner.cache.lengths[1]
        others = tokens_of(step(target, {1: roots[1]}))
        for slot in range(3):
            target.close(slot)
        again = warmed(target, begin(target, [PROMPT, PROMPT[:8], PROMPT[4:9]]))
        assert again == roots
        found = rounds(target, two, [5, *[0] * 5])
        assert [tokens_of(one) for one in found] == expected
        assert [one.passes for one in found] == [6] + [0] * 5
        assert target.runner.cache.lengths[1] == length
        assert tokens_of(step(target, {1: roots[1]})) == others


def test_it_ends_with_the_first_text_that_ends(library):
    target = target_of()
    with target.session():
        roots = warmed(target, begin(target, [PROMPT, PROMPT[:9]]))
        texts = [tokens_of(one) for one in rounds(target, roots, [0] * 10)]
        firsts = [one[0] for one in texts]
        place = next(at for at, one in enumerate(texts) if at and one[1] not in firsts[: at + 1])
        for slot in range(2):
            target.close(slot)
        roots = warmed(target, begin(target, [PROMPT, PROMPT[:9]]))
        end = frozenset([texts[place][1]])
        before = [at for at, one in enumerate(texts) if end & {*one.values()}]
        assert step(target, roots, 9, end).passes == before[0] + 1


def test_a_text_in_a_new_slot_has_rows_of_its_own(library):
    target = target_of()
    with target.session():
        roots = warmed(target, begin(target, [PROMPT], room=300))
        expected = [tokens_of(one)[0] for one in rounds(target, roots, [0] * 8)]
        target.open(1, 300)
        found = rounds(target, {1: 5}, [7, *[0] * 7])
        target.close(0)
    other = target_of()
    with other.session():
        warmed(other, begin(other, [PROMPT], room=300))
        other.close(0)
        other.open(0, 300)
        alone = rounds(other, {0: 5}, [0] * 8)
    assert [tokens_of(one)[1] for one in found] == [tokens_of(one)[0] for one in alone]
    assert found[0].passes == 8
    assert len(expected) == 8


def test_positions_are_known_as_far_as_passes_are_run(library):
    target = target_of(max_position_embeddings=1024, **HEADS)
    with target.session():
        warmed(target, begin(target, [PROMPT], room=60))
        target.close(0)
        roots = begin(target, [PROMPT], room=700)
        found = rounds(target, roots, [600, *[0] * 600])
        assert found[0].passes == 601
        target.close(0)
        roots = begin(target, [PROMPT], room=700)
        assert [tokens_of(one) for one in rounds(target, roots, [0] * 601)] == [tokens_of(one) for one in found]


def test_fewer_are_run_where_rounds_were_not_as_was_said(library):
    target, run = target_of(), []
    with target.session():
        roots = warmed(target, begin(target, [PROMPT]))
        for _ in range(3):
            found = step(target, roots, 30)
            run.append(found.passes)
            target.read({0: PROMPT[:1]})
            roots = tokens_of(found)
        for _ in range(4):
            found = rounds(target, roots, [30, *[0] * 30])
            run += [one.passes for one in found if one.passes > 1]
            roots = tokens_of(found[-1])
    assert run[:3] == [31, 2, 2]
    assert run[3] == 2
    assert max(run[3:]) <= 31


def test_an_end_that_no_token_can_be_is_no_end(library, passes):
    decoder = decoder_of("none")
    for _ in range(2):
        passes.clear()
        text = decoder.run_all([Request(PROMPT, 12, eos=frozenset([2**70, -3]))])[0]
    assert len(text.token_ids) == 12
    assert passes == [12] + [0] * 11


@pytest.fixture
def told(monkeypatch):
    """Of each round, how many others were said to follow."""
    found = []
    verify = HFTarget.verify

    def noted(self, *args, **more):
        further = more.get("further")
        found.append(0 if further is None else further.rounds)
        return verify(self, *args, **more)

    monkeypatch.setattr(HFTarget, "verify", noted)
    return found


def test_nothing_is_said_of_rounds_in_which_others_take_part(library, told):
    decoder = decoder_of("none")
    engine = decoder.engine
    with engine.session():
        first, second = engine.submit(Request(PROMPT, 9)), engine.submit(Request(PROMPT[:9], 9))
        engine.step()
        told.clear()
        for only in ([first], [second], [first], [second]):
            engine.step(only)
        assert told == [0] * 4
        engine.step()
        assert told[-1] > 0
        while not (first.finished and second.finished):
            engine.step()


def test_nothing_is_said_of_rounds_in_which_the_rule_draws_a_token(library, told):
    decoder = decoder_of("none")
    looks = temperature_sampling(0.9, [lambda ids, scores: scores])
    decoder.run_all([Request(PROMPT, 6), Request(PROMPT[:9], 6, looks)])
    assert len(told) >= 6
    assert not any(told)


def test_no_round_is_run_ahead_of_a_drafter_that_asks_beside_the_tree(library, told):
    decoder = decoder_of(Rests(50), "lookahead:window=3,ngram=3")
    plain = decoder_of("none").generate(PROMPT, max_new_tokens=30).token_ids
    told.clear()
    assert decoder.generate(PROMPT, max_new_tokens=30).token_ids == plain
    assert not any(told)


def test_no_pass_is_run_behind_an_end(library):
    target = target_of()
    with target.session():
        roots = warmed(target, begin(target, [PROMPT]))
        expected = [tokens_of(one)[0] for one in rounds(target, roots, [0] * 10)]
        target.close(0)
        roots = warmed(target, begin(target, [PROMPT]))
        end = expected[4]
        first = expected.index(end)
        found = rounds(target, roots, [9] + [0] * first, frozenset([end]))
    assert [tokens_of(one)[0] for one in found] == expected[: first + 1]
    assert [one.passes for one in found] == [first + 1] + [0] * first


def test_another_end_is_another_round(library):
    target = target_of()
    with target.session():
        roots = warmed(target, begin(target, [PROMPT]))
        found = step(target, roots, 5)
        assert found.passes == 6
        assert step(target, tokens_of(found), 0, frozenset([3])).passes == 1


def test_only_as_many_are_run_as_there_is_time_for(library, monkeypatch):
    target = target_of()
    with target.session():
        roots = warmed(target, begin(target, [PROMPT]))
        monkeypatch.setattr(executors, "SECONDS_AHEAD", 3.5 * target.runner.executor._seconds)
        assert step(target, roots, 50).passes == 3
        monkeypatch.setattr(executors, "SECONDS_AHEAD", 0.0)
        roots = tokens_of(step(target, roots))
        assert step(target, roots, 50).passes == 1


def test_only_as_many_are_run_as_there_is_room_for(library):
    target = target_of()
    with target.session():
        roots = warmed(target, begin(target, [PROMPT], room=len(PROMPT) + 10))
        buffers = target.runner.cache.reallocations
        assert step(target, roots, 50).passes == 5
        assert target.runner.cache.reallocations == buffers


def test_weights_that_change_between_sessions_are_read_anew(library):
    found = []
    for further in (0, 9):
        target = target_of()
        with target.session():
            roots = tokens_of(step(target, warmed(target, begin(target, [PROMPT])), further))
        with torch.no_grad():
            target.model.model.layers[1].mlp.down_proj.weight.mul_(-3.0)
        with target.session():
            verified = step(target, roots)
        assert verified.passes == 1
        found.append(features_of(target, verified))
    assert torch.equal(*found)


def test_what_is_kept_of_a_pass_stays_as_it_is(library):
    target = target_of()
    with target.session():
        found = rounds(target, warmed(target, begin(target, [PROMPT])), [4, 3, 2, 1, 0, 4, 3])
        kept = [features_of(target, one) for one in found]
        rounds(target, tokens_of(found[-1]), [2, 1, 0, 0])
        assert same_bits([features_of(target, one) for one in found], kept)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_nothing(library, monkeypatch, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    target = target_of("qwen3")
    with target.session():
        found = rounds(target, warmed(target, begin(target, [PROMPT])), [7, *[0] * 7])
        slow = target_of("qwen3")
    with slow.session():
        expected = rounds(slow, warmed(slow, begin(slow, [PROMPT])), [0] * 8)
    assert [tokens_of(one) for one in found] == [tokens_of(one) for one in expected]
    assert same_bits([features_of(target, one) for one in found], [features_of(slow, one) for one in expected])


def decoder_of(policy=None, drafter=None):
    return decoder_for_model(tiny_model("llama", **HEADS), None, Parts(drafter, policy))


@pytest.fixture
def passes(monkeypatch):
    """How many passes the rounds of targets have run, in their order; of rounds without a draft."""
    run: list[int] = []
    verify = HFTarget.verify

    def noted(self, trees, *args, **more):
        verified = verify(self, trees, *args, **more)
        if all(len(tree) == 1 for tree in trees.values()):
            run.append(verified.passes)
        return verified

    monkeypatch.setattr(HFTarget, "verify", noted)
    return run


def test_plain_decoding_runs_its_passes_ahead(library, passes):
    decoder = decoder_of("none")
    decoder.generate(PROMPT, max_new_tokens=12)
    passes.clear()
    text = decoder.generate(PROMPT, max_new_tokens=30)
    assert passes == [30] + [0] * 29
    assert len(text.rounds) == text.stats.target_passes == 30


def test_texts_of_a_batch_run_ahead_until_the_first_is_over(library, passes):
    decoder = decoder_of("none")
    decoder.generate([PROMPT, PROMPT[:9]], max_new_tokens=12)
    requests = [Request(PROMPT, 10), Request(PROMPT[:9], 25)]
    alone = [decoder.run(one) for one in requests]
    for one in alone:
        one.finish()
    passes.clear()
    together = decoder.run_all([Request(PROMPT, 10), Request(PROMPT[:9], 25)])
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert passes == [10] + [0] * 9 + [15] + [0] * 14


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 1.0, "top_p": 0.9, "seed": 3},
        {"max_time": 1000.0},
        {"stopping_criteria": [lambda ids, scores=None, **_: False]},
        {"repetition_penalty": 1.3},
    ],
)
def test_what_looks_at_each_token_is_asked_before_the_next_pass(library, passes, how):
    decoder = decoder_of("none")
    decoder.generate(PROMPT, max_new_tokens=12, **how)
    passes.clear()
    decoder.generate(PROMPT, max_new_tokens=12, **how)
    assert passes == [1] * 12


def test_nothing_is_run_ahead_of_a_stream(library, passes):
    decoder = decoder_of("none")
    decoder.generate(PROMPT, max_new_tokens=12)
    passes.clear()
    generation = decoder.run(Request(PROMPT, 12))
    for _ in generation:
        pass
    assert passes == [1] * 12


def test_a_text_that_is_let_in_ends_what_was_run_ahead(library, passes):
    decoder = decoder_of("none")
    decoder.generate([PROMPT, PROMPT[:9]], max_new_tokens=12)
    expected = [decoder.run_all([Request(ids, 20)])[0].token_ids for ids in (PROMPT, PROMPT[:9])]
    engine = decoder.engine
    passes.clear()
    with engine.session():
        first = engine.submit(Request(PROMPT, 20))
        for _ in range(4):
            engine.step()
        second = engine.submit(Request(PROMPT[:9], 20))
        while not (first.finished and second.finished):
            engine.step()
    assert [first.token_ids, second.token_ids] == expected
    assert sum(passes) > 20 + 4


@attrs.frozen
class Rests(TreePolicy):
    """Drafts a chain of two each third round, and says what it is told to say."""

    name = "rests"
    says: object = 1
    budget: int = attrs.field(default=3, init=False)
    done: list[int] = attrs.field(factory=list, init=False, eq=False)

    def width(self, tree):
        return int(len(self.done) % 3 == 0 and len(tree) < 3)

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1))

    def rests(self):
        return (2 - len(self.done) % 3) if self.says == 1 else self.says

    def observe(self, round_):
        self.done.append(len(round_.tokens))


@attrs.frozen
class Overlooks(TreePolicy):
    """Drafts the likeliest token where it is likely enough, and perhaps says so."""

    name = "overlooks"
    level: float = -1.0
    says: bool = True
    budget: int = attrs.field(default=2, init=False)
    asked: list[float] = attrs.field(factory=list, init=False, eq=False)

    def begin(self, sequence):
        return self

    def width(self, tree):
        return int(len(tree) == 1)

    def grow(self, tree, candidates, choices):
        best = candidates.path_logp.item(0)
        self.asked.append(best)
        return Growth(np.arange(int(best >= self.level)))

    def overlooks(self):
        return self.level if self.says else None


def told_of(result):
    return [(one.tree.tokens.tolist(), one.path.tolist(), one.tokens.tolist()) for one in result.rounds]


REPEATS = [*range(5, 40), *range(5, 25)]


@pytest.mark.parametrize("how", [{}, {"temperature": 0.9, "do_sample": True, "seed": 3}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("level", [-np.inf, -1.0, -0.3, 0.0, np.inf])
def test_what_a_policy_overlooks_is_not_asked_for_and_runs_ahead(library, passes, level, how):
    plain = decoder_of("none").generate(REPEATS, max_new_tokens=60, **how).token_ids
    found = {}
    for says in (False, True):
        policy = Overlooks(level, says)
        decoder = decoder_of(policy, "ngram")
        for _ in range(2):
            decoder.generate(REPEATS, max_new_tokens=60, **how)
        policy.asked.clear()
        passes.clear()
        found[says] = decoder.generate(REPEATS, max_new_tokens=60, **how), [*policy.asked], [*passes]
    (asked_result, asked, _), (result, heard, run) = found[False], found[True]
    assert result.token_ids == asked_result.token_ids == plain
    if level == -np.inf:  # all that is offered is likely enough, and nothing else is overlooked
        assert heard == asked
    if level > -np.inf:
        assert heard == [] or min(heard) >= level
        assert len(heard) < len(asked)
        assert max(run) > 1
    if level in (0.0, np.inf):
        assert told_of(result) == told_of(asked_result)


@pytest.fixture
def foretold(monkeypatch):
    """Behind which tokens `ngram` was asked how likely its best guess is."""
    asked, likeliest = [], NgramDrafter.likeliest

    def noted(self, slot, tokens):
        asked.append([*tokens])
        return likeliest(self, slot, tokens)

    monkeypatch.setattr(NgramDrafter, "likeliest", noted)
    return asked


def test_what_was_overlooked_ahead_is_not_asked_again_in_its_round(library, monkeypatch, foretold):
    monkeypatch.setattr(NgramDrafter, "guessable", Drafter.guessable)  # which is everywhere
    decoder = decoder_of(Overlooks(np.inf), "ngram")
    for _ in range(2):
        foretold.clear()
        found = decoder.generate(REPEATS, max_new_tokens=30).token_ids
    assert foretold == [[REPEATS[-1]], *([REPEATS[-1], *found[:end]] for end in range(1, 30))]


@pytest.mark.parametrize("how", [{}, {"temperature": 0.9, "do_sample": True, "seed": 3}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("level", [-3.0, -0.7, -0.2])
def test_a_drafter_is_not_asked_where_it_has_said_that_nothing_is_likely_enough(library, monkeypatch, level, how):
    asked, behind, found = [], [], {}
    likeliest, guessable = NgramDrafter.likeliest, NgramDrafter.guessable

    def told(self, slot, tokens):
        place = len(self._texts[slot].automaton) - len(REPEATS) + len(tokens) - 1  # new tokens before it
        asked.append((place, [*tokens], behind[-1] if behind else None))
        return likeliest(self, slot, tokens)

    def placed(self, slot, least):
        behind.append(guessable(self, slot, least))
        return behind[-1]

    monkeypatch.setattr(NgramDrafter, "likeliest", told)
    for says in (False, True):
        monkeypatch.setattr(NgramDrafter, "guessable", placed if says else Drafter.guessable)
        decoder = decoder_of(Overlooks(level), "ngram")
        for _ in range(2):
            asked.clear()
            behind.clear()
            result = decoder.generate(REPEATS, max_new_tokens=60, **how)
        begins = np.cumsum([0, *(len(one.tokens) for one in result.rounds)]).tolist()
        guesses = [any(span.work == "guess" for span in one.spans) for one in result.rounds]
        booked = {place for place, guess in zip(begins, guesses, strict=False) if guess}
        places = [place for place, _, _ in asked]
        assert len({*places}) == len(places)  # it is asked nothing twice, whatever it has said
        assert {*places} & {*begins[:-1]} <= booked  # where the answer was yes, too
        assert any(guess and len(one.tree) > 1 for one, guess in zip(result.rounds, guesses, strict=True))
        found[says] = told_of(result), len(asked)
    assert found[True][0] == found[False][0]
    assert found[True][1] < found[False][1]
    for _, tokens, known in asked:
        if len(tokens) > 1:
            before, token = tokens[-2:]
            assert token in known.tokens or (before << 32) + token in known.pairs


@pytest.mark.parametrize(
    "how",
    [
        {"stopping_criteria": [lambda ids, scores: torch.zeros(len(ids), dtype=torch.bool)]},
        {"max_time": 1000.0},
        {"do_sample": True, "seed": 3, "logits_processor": [lambda ids, scores: scores]},
    ],
    ids=["criterion", "time", "processor"],
)
def test_nothing_is_overlooked_where_something_has_to_be_asked_between_rounds(library, foretold, how):
    decoder = decoder_of(Overlooks(np.inf), "ngram")
    decoder.generate(REPEATS, max_new_tokens=12, **how)
    assert not foretold


def test_in_company_nothing_is_overlooked(library, foretold):
    policy = Overlooks(np.inf)
    engine = decoder_of(policy, "ngram").engine
    with engine.session():
        first = engine.submit(Request(np.array(REPEATS), 60))
        for _ in range(8):
            engine.step()
        assert sum(guess.overlooked for guess in first.guessed) > 20
        assert foretold
        second = engine.submit(Request(np.array(REPEATS[:-3]), 10))
        foretold.clear()
        policy.asked.clear()
        while not second.finished:
            engine.step()
        assert not foretold
        assert len(policy.asked) > 3  # where anything is found
        engine.step()
        assert foretold


@attrs.frozen
class Chooses(Overlooks, SourceChooser):
    chooses_source = True

    def source(self):
        return 0


def test_nothing_is_overlooked_of_a_source_that_a_policy_chooses(library, monkeypatch):
    asked = []
    monkeypatch.setattr(HybridDrafter, "likeliest", lambda self, slot, tokens: asked.append(tokens) or -9.0)
    for policy, overlooks in (Overlooks(0.0), True), (Chooses(0.0), False):
        asked.clear()
        decoder_of(policy, "hybrid:of=ngram+pld").generate(REPEATS, max_new_tokens=12)
        assert bool(asked) == overlooks


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("drafter", ["ngram", None])
def test_ctrl_c_while_passes_are_run_ahead_is_not_lost(library, monkeypatch, drafter):
    """A signal that comes while C runs a pass, and one that comes while nobody but the policy is asked."""
    decoder = decoder_of(Overlooks(np.inf) if drafter else "none", drafter)
    expected = [decoder.generate(REPEATS, max_new_tokens=150).token_ids for _ in range(2)][1]
    real, calls = library.walk_on, []

    def interrupted(*given):
        calls.append(given)
        found = real(*given)
        if len(calls) == (5 if drafter else 1):
            signal.raise_signal(signal.SIGINT)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(library, "walk_on", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.generate(REPEATS, max_new_tokens=150)
    assert decoder.generate(REPEATS, max_new_tokens=150).token_ids == expected


@pytest.mark.parametrize("says", [np.nan, "likely", [1.0], 2.0, True, -1])
def test_a_policy_that_overlooks_no_log_probability_is_named(library, says):
    policy = Overlooks(says)
    with pytest.raises(PluginError, match=r"tree policy 'overlooks' .* overlooks"):
        decoder_of(policy, "ngram").generate(REPEATS, max_new_tokens=5)


@pytest.mark.parametrize("says", [np.nan, "likely", np.array([-1.0, -2.0]), 3.0, torch.tensor(-1.0)])
def test_a_drafter_whose_best_guess_is_no_log_probability_is_named(library, monkeypatch, says):
    monkeypatch.setattr(NgramDrafter, "likeliest", lambda self, slot, tokens: says)
    with pytest.raises(PluginError, match=r"drafter 'ngram' .* from likeliest; it must return a log-probability"):
        decoder_of(Overlooks(-1.0), "ngram").generate(REPEATS, max_new_tokens=5)


@pytest.mark.parametrize("says", [[3], Behind(np.zeros(2), np.zeros(0, dtype=np.int64)), "everywhere"])
def test_a_drafter_that_guesses_at_no_places_is_named(library, monkeypatch, says):
    monkeypatch.setattr(NgramDrafter, "guessable", lambda self, slot, least: says)
    with pytest.raises(PluginError, match=r"drafter 'ngram' .* from guessable; it must return None, or a Behind"):
        decoder_of(Overlooks(-1.0), "ngram").generate(REPEATS, max_new_tokens=30)


@pytest.mark.parametrize("error", [ValueError("no such text"), RuntimeError("none"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_what_a_drafter_raises_while_passes_are_run_ahead_is_raised(library, monkeypatch, error, at):
    decoder = decoder_of(Overlooks(0.0), "ngram")
    expected = [decoder.generate(REPEATS, max_new_tokens=30).token_ids for _ in range(2)][1]
    asked, likeliest = [], NgramDrafter.likeliest

    def raising(self, slot, tokens):
        asked.append(tokens)
        if len(asked) == at:
            raise error
        return likeliest(self, slot, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(NgramDrafter, "likeliest", raising)
        with pytest.raises((PluginError, KeyboardInterrupt)) as raised:
            decoder.generate(REPEATS, max_new_tokens=30)
    assert f"raised {type(error).__name__} in likeliest" in str(raised.value) or not error.args
    assert any(len(tokens) > 1 for tokens in asked) or at == 1
    assert decoder.generate(REPEATS, max_new_tokens=30).token_ids == expected


@pytest.mark.parametrize("says", [1, 0, 50])
def test_a_policy_may_say_how_long_it_rests(library, passes, says):
    """Also where it is wrong: what was run ahead for nothing is forgotten."""
    plain = decoder_of("none").generate(PROMPT, max_new_tokens=40).token_ids
    decoder = decoder_of(Rests(says), "draft-model:skip=1-2")
    decoder.generate(PROMPT, max_new_tokens=30)
    passes.clear()
    assert decoder.generate(PROMPT, max_new_tokens=40).token_ids == plain
    assert {1: 2 in passes, 0: {*passes} == {1}, 50: max(passes) > 2}[says]


@pytest.mark.parametrize("says", [-1, 1.5, None, "long"])
def test_a_policy_that_rests_for_no_number_of_rounds_is_named(library, says):
    decoder = decoder_of(Rests(says), "draft-model:skip=1-2")
    with pytest.raises(PluginError, match=r"tree policy 'rests.*from rests; it must be .* at least 0"):
        decoder.generate(PROMPT, max_new_tokens=30)


def test_costs_are_told_what_one_pass_takes(library, monkeypatch):
    told = []
    monkeypatch.setattr(MeasuredCosts, "verified", lambda self, *given: told.append(given))
    decoder = decoder_of("none")
    decoder.generate(PROMPT, max_new_tokens=12)
    told.clear()
    text = decoder.generate(PROMPT, max_new_tokens=30)
    assert len(told) == 30  # each round as if its pass had been run in it: all count alike
    ((nodes, batch, seconds),) = {(nodes, batch, seconds) for nodes, _, batch, seconds in told}
    assert (nodes, batch) == (1, 1)
    verified = [one.verify_seconds for one in text.rounds]
    assert seconds == pytest.approx(verified[0], rel=0.1)
    assert all(one >= 0.99 * seconds for one in verified)


def test_rounds_follow_each_other_and_take_the_time_of_the_text(library):
    decoder = decoder_of("none")
    decoder.generate(PROMPT, max_new_tokens=12)
    text = decoder.generate(PROMPT, max_new_tokens=30)
    spans = [span for one in text.rounds for span in one.spans]
    assert all(one.end <= next_.start + 1e-9 for one, next_ in pairwise(spans))
    whole = spans[-1].end - spans[0].start
    assert 0.5 * (text.stats.seconds - text.stats.prefill_seconds) < whole < text.stats.seconds
    assert text.stats.other_seconds < 0.9 * text.stats.seconds


def test_a_paused_policy_of_ours_says_how_long():
    policy = TalonCost()
    assert policy.rests() == 0
    policy.learnt.left = 5
    assert policy.rests() == 4
    policy.learnt.left, policy.learnt.begun, policy.learnt.most_new = 0, False, 33
    assert policy.rests() == 33
    assert RootAlone().rests() > 10**9


WARPED = [(), (Temperature(0.7),), (TopKLogitsWarper(5), Temperature(1.3))]


def drawn_step(target, roots, draws, further=0, ends=NO_END, warpers=WARPED[1]):
    """One round over roots alone, whose tokens are drawn; `draws` are the choices of each slot."""
    trees = {slot: TokenTree.root(token) for slot, token in roots.items()}
    asked = {
        slot: NodeDraws(warpers, ends, choices.ahead(1), ahead=choices.ahead)
        for slot, choices in draws.items()
        if slot in roots
    }
    verified = target.verify(trees, drawn=asked, **({"further": Further(further)} if further else {}))
    assert verified.accepted.keys() == roots.keys()
    for slot in asked:
        draws[slot].used(1)
    return verified


def drawn_rounds(target, roots, furthers, seed=0, **more):
    draws, found = {slot: SeededChoices(seed + slot) for slot in roots}, []
    for further in furthers:
        found.append(drawn_step(target, roots, draws, further, **more))
        roots = tokens_of(found[-1])
    return found


@pytest.mark.parametrize("warpers", WARPED)
@pytest.mark.parametrize("texts", [[PROMPT], [PROMPT, PROMPT[:7], PROMPT[3:20]]])
def test_drawn_passes_run_ahead_have_the_bits_and_tokens_of_those_run_one_by_one(library, warpers, texts):
    target = target_of()
    made = []
    for furthers in ([0] * 20, [*range(19, -1, -1)]):
        with target.session():
            roots = tokens_of(drawn_rounds(target, begin(target, texts), [0] * 6, 50)[-1])
            found = drawn_rounds(target, roots, furthers, warpers=warpers)
            lengths = target.runner.cache.lengths
            kept = [row for slot in range(len(texts)) for row in rows(target, slot, lengths[slot])]
            made.append(([tokens_of(one) for one in found], [features_of(target, one) for one in found], kept))
            assert [one.passes for one in found] == ([1] * 20 if not furthers[0] else [20] + [0] * 19)
            for slot in range(len(texts)):
                target.close(slot)
    (tokens, features, kept), (own_tokens, own_features, own_kept) = made
    assert own_tokens == tokens
    assert len({*map(str, tokens)}) > 5
    assert same_bits(own_features, features)
    assert same_bits(own_kept, kept)


@pytest.mark.parametrize("changed", ["numbers", "temperature", "greedy", "tests"])
def test_what_was_drawn_ahead_is_forgotten_where_something_else_is_drawn(library, changed):
    """One round is drawn in another way than was known; that and those behind it are what they are without."""
    made = []
    for further in (0, 9):
        target = target_of()
        with target.session():
            roots = tokens_of(drawn_rounds(target, begin(target, [PROMPT]), [0] * 6, 50)[-1])
            roots = tokens_of(step(target, roots))  # and what is not drawn is written down, too
            roots = warmed(target, roots)
            draws = {0: SeededChoices(3)}
            first = drawn_step(target, roots, draws, further)
            assert first.passes == 1 + further
            roots = tokens_of(first)
            if changed == "numbers":
                draws = {0: SeededChoices(77)}
                other = drawn_step(target, roots, draws, further)
            elif changed == "temperature":
                other = drawn_step(target, roots, draws, further, warpers=(Temperature(3.0),))
            elif changed == "greedy":
                other = step(target, roots, further)
            else:
                own = TokenTree.root(roots[0])
                asked = NodeDraws((), NO_END, draws[0].ahead(2), DrawnTests("in-turn", own))
                other = target.verify({0: own}, drawn={0: asked}, further=Further(further) if further else None)
                assert other.accepted.keys() == {0}
            found = drawn_rounds(target, tokens_of(other), [0] * 8, 9)
            made.append([tokens_of(one) for one in (first, other, *found)])
    assert made[0] == made[1]


@pytest.mark.parametrize("policy", ["none", Rests(3), "chain:length=2", "talon-cost"])
@pytest.mark.parametrize("sampling", [temperature_sampling(0.8), Sampling(True, WARPED[2], 1.3)])
def test_a_text_is_the_same_whoever_draws_it(library, monkeypatch, policy, sampling):
    drafter = None if policy == "none" else "draft-model:skip=1-2"
    decoder = decoder_of(policy, drafter)
    asked = [Request(PROMPT[: 9 + seed], 24, sampling, seed=seed) for seed in range(6)]
    found = [decoder.run_all([one])[0] for one in asked]
    assert any(round_.laws_on_host == 0 for text in found for round_ in text.rounds)
    together = decoder.run_all(asked)
    monkeypatch.setattr(HFTarget, "draws", lambda self, warpers: False)
    by_rule = decoder_of(policy, drafter).run_all(asked)
    assert all(round_.laws_on_host for text in by_rule for round_ in text.rounds)
    assert [one.token_ids for one in found] == [one.token_ids for one in by_rule]
    assert [one.token_ids for one in together] == [one.token_ids for one in by_rule]
    assert len({str(one.token_ids) for one in found}) == 6


def test_drawn_rounds_to_come_are_run_together(library, passes):
    decoder = decoder_of("none")
    for _ in range(2):
        passes.clear()
        text = decoder.run_all([Request(PROMPT, 12, temperature_sampling(1.0), seed=1)])[0]
    assert len(text.token_ids) == 12
    assert passes == [12] + [0] * 11


def test_a_text_whose_law_is_none_ends_where_it_would(library):
    target = target_of()
    with torch.no_grad():
        target.model.lm_head.weight[:] = float("nan")
    with target.session():
        roots = begin(target, [PROMPT])
        for _ in range(7):
            assert drawn_step(target, roots, {0: SeededChoices(0)}).accepted[0].token == NO_TOKEN
        ahead = drawn_step(target, roots, {0: SeededChoices(0)}, 8)
    assert (ahead.accepted[0].token, ahead.passes) == (NO_TOKEN, 1)
