"""Several sequences at a time: each comes out as it does alone, whatever its neighbours do."""

import threading
from functools import cache

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessor

from talon_core import PluginError, Request, TableTarget, TreePolicy, load
from talon_core.certify.exact import Given
from talon_core.choices import SeededChoices
from talon_core.decoding.decoder import Decoder, is_batch
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build
from talon_core.policy import Growth
from talon_core.sampling import Sampling
from talon_core.testing.odd_policies import Erratic
from talon_core.testing.strategies import laws, table_drafters
from talon_strategies import Match, Talon
from talon_tests.tiny_models import tiny_model

VOCAB = 5


@st.composite
def requests(draw):
    """One sequence: some end at once, some go on for long."""
    return Request(
        ids=np.array(draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)), dtype=np.int64),
        max_new_tokens=draw(st.integers(1, 14)),
        sampling=Sampling(draw(st.booleans())),
        eos=draw(st.sampled_from([frozenset(), frozenset({2})])),
        seed=draw(st.integers(0, 9)),
    )


@settings(deadline=None, max_examples=100)
@given(
    st.lists(laws(VOCAB), min_size=VOCAB, max_size=VOCAB),
    table_drafters(VOCAB),
    st.none() | st.just(Talon(budget=6, top_k=2)) | st.builds(Erratic, seed=st.integers(0, 99), budget=st.just(6)),
    st.lists(requests(), min_size=1, max_size=5),
    st.integers(1, 6),
    st.booleans(),
)
def test_each_sequence_comes_out_as_it_does_alone(rows, drafter, policy, together, size, allocate):
    with np.errstate(divide="ignore"):
        target = TableTarget(np.log(np.stack(rows)))
    decoder = Decoder(target, Match(), policy, Given(drafter))
    if not allocate:
        decoder.engine.allocator = None  # so trees are those of a sequence alone
    batch = decoder.batch(together, size, [SeededChoices(of.seed) for of in together])
    steps = list(batch)
    assert max(map(len, steps)) <= size
    assert batch.target_passes == len(steps)
    begun = []
    for sequence, request, result in zip(batch.sequences, together, batch.results(), strict=True):
        alone = Decoder(target, Match(), policy, Given(drafter)).run_all([request])[0]
        assert result.token_ids == alone.token_ids
        assert result.finish_reason == alone.finish_reason
        of_own = [at for at, step in enumerate(steps) if sequence in step]
        begun.append(of_own[0])
        assert of_own == [*range(begun[-1], begun[-1] + len(of_own))]  # none is left out once it has begun
        if allocate:
            continue
        assert [steps[at][sequence].tokens.tolist() for at in of_own] == [one.tokens.tolist() for one in alone.rounds]
        assert [one.tree.tokens.tolist() for one in result.rounds] == [one.tree.tokens.tolist() for one in alone.rounds]
    assert begun == sorted(begun)
    assert begun[:size] == [0] * len(begun[:size])


PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [11], [20, 21, 22, 23, 20, 21], [9, 9, 9]]


@cache
def two_decoders(architecture, drafter):
    return [load(tiny_model(architecture), drafter=drafter, policy="talon:budget=8,top_k=3") for _ in range(2)]


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("drafter", ["ngram", "draft-model:skip=1+2"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_a_list_of_prompts_is_decoded_as_each_of_them(architecture, drafter, do_sample):
    decoder, other = two_decoders(architecture, drafter)
    options = {"max_new_tokens": 10, "do_sample": do_sample, "seed": 4}
    results = decoder.generate(PROMPTS, **options)
    assert [result.prompt_ids.tolist() for result in results] == PROMPTS
    for at, (prompt, result) in enumerate(zip(PROMPTS, results, strict=True)):
        assert result.token_ids == other.generate(prompt, **{**options, "seed": 4 + at}).token_ids
    two = decoder.generate(PROMPTS, batch_size=2, **options)
    assert [result.token_ids for result in two] == [result.token_ids for result in results]


def test_sixty_four_sequences_of_all_lengths_at_once():
    decoder = load(tiny_model("llama"), drafter="ngram", policy="talon:budget=6,top_k=2")
    rng = np.random.default_rng(7)
    prompts = [rng.integers(3, 20, int(rng.integers(1, 90))).tolist() for _ in range(64)]
    together = decoder.generate(prompts, batch_size=64, max_new_tokens=12)
    assert len(decoder.target.runner.cache.lengths) == 64
    for prompt, result in zip(prompts, together, strict=True):
        assert result.token_ids == decoder.generate(prompt, max_new_tokens=12).token_ids


def test_a_sequence_that_is_over_is_not_verified_any_more(monkeypatch):
    decoder = load(tiny_model("llama"), policy=None)
    seen = []
    verify = decoder.target.verify
    monkeypatch.setattr(
        decoder.target, "verify", lambda trees, greedy, **more: seen.append([*trees]) or verify(trees, greedy, **more)
    )
    requests = [Request(np.array([3, 4]), 1), Request(np.array([5]), 3)]
    results = decoder.run_all(requests)
    assert [len(result.token_ids) for result in results] == [1, 3]
    assert seen == [[0, 1], [1], [1]]


def test_the_next_of_a_list_takes_the_place_of_one_that_is_over(monkeypatch):
    decoder = load(tiny_model("llama"), policy=None)
    seen = []
    verify = decoder.target.verify
    monkeypatch.setattr(
        decoder.target, "verify", lambda trees, ends, **more: seen.append(len(trees)) or verify(trees, ends, **more)
    )
    lengths = [1, 5, 2, 2]
    batch = decoder.batch([Request(np.array([at + 3]), length) for at, length in enumerate(lengths)], 2)
    batch.finish()
    assert [len(result.token_ids) for result in batch.results()] == lengths
    assert seen == [2] * 5  # 1 + 2 + 2 tokens beside the 5


def test_one_that_fails_ends_the_batch_and_the_decoder_goes_on():
    def fails(ids, scores):
        raise ZeroDivisionError

    decoder = load(tiny_model("llama"), drafter="ngram", policy="talon:budget=6,top_k=2")
    options = [{"logits_processor": [fails]}, {}, {}]
    requests = [decoder.frontend.request(PROMPTS[0], {"max_new_tokens": 9, **of}) for of in options]
    batch = decoder.batch(requests, 2)
    with pytest.raises(ZeroDivisionError):
        batch.finish()
    assert batch.finished
    assert list(batch) == []
    assert {result.finish_reason for result in batch.results()} == {"interrupted"}
    assert decoder.run_all(requests[1:])[0].token_ids == load(tiny_model("llama")).run_all(requests[1:])[0].token_ids


@attrs.frozen
class Counting(TreePolicy):
    """Chains of a length that grows by one each round: what it remembers must be of its own sequence."""

    name = "counting"
    budget: int = 9
    _rounds: list[int] = attrs.field(factory=list, init=False, eq=False)

    def observe(self, round_):
        self._rounds.append(len(round_.tokens))

    def grow(self, tree, candidates, choices):
        wanted = int(candidates.best(1)[0]) if len(tree) <= len(self._rounds) else None
        return Growth(np.array([] if wanted is None else [wanted], dtype=np.int64))


def test_each_sequence_has_a_policy_of_its_own():
    policy = Counting()
    decoder = load(tiny_model("llama"), drafter="draft-model:skip=1", policy=policy)
    decoder.engine.allocator = None
    together = decoder.generate(PROMPTS, max_new_tokens=12)
    for prompt, result in zip(PROMPTS, together, strict=True):
        alone = decoder.generate(prompt, max_new_tokens=12)
        assert [len(one.tree) for one in result.rounds] == [len(one.tree) for one in alone.rounds]
        assert len({len(one.tree) for one in result.rounds}) > 1
    assert policy._rounds == []  # it makes policies, and serves nobody itself


def test_what_is_a_list_of_prompts():
    ids = np.array([1, 2])
    assert all(map(is_batch, (["a", "b"], [[1, 2], [3]], [ids], [torch.tensor([1]), "a"], [[{"role": "user"}]])))
    assert not any(map(is_batch, ("a", [1, 2], ids, [{"role": "user"}], [], torch.tensor([[1]]), [torch.tensor(1)])))


def test_a_bad_prompt_of_a_list_is_found_before_another_is_decoded(monkeypatch):
    decoder = load(tiny_model("llama"))
    monkeypatch.setattr(decoder.engine, "step", lambda *_: pytest.fail("something was decoded"))
    for wrong, sentence in (([99], "token 99"), ([1] * 300, "300 tokens"), ([], "empty")):
        with pytest.raises(ValueError, match=sentence):
            decoder.generate([[1, 2], wrong])
    with pytest.raises(ValueError, match="batch_size is 0"):
        decoder.generate([[1, 2]], batch_size=0)


class Counted(LogitsProcessor):
    """Forbids a token that depends on how often it was asked: it must be of one sequence."""

    def __init__(self):
        self.calls = 0

    def __call__(self, ids, scores):
        self.calls += 1
        scores[:, self.calls % 97] = -torch.inf
        scores[:, (5 * self.calls + int(ids[0, -1])) % 97] += 9.0
        return scores


def test_each_sequence_has_processors_and_criteria_of_its_own():
    decoder = load(tiny_model("llama"), policy=None)
    together = decoder.generate(PROMPTS, max_new_tokens=12, logits_processor=[Counted()])
    for prompt, result in zip(PROMPTS, together, strict=True):
        alone = decoder.generate(prompt, max_new_tokens=12, logits_processor=[Counted()])
        assert result.token_ids == alone.token_ids


def test_one_prompt_beyond_a_draft_models_context_leaves_the_others_drafted():
    model = tiny_model("llama")
    drafter = build(load_registry(), "drafter", "draft-model:skip=1")
    decoder = load(model, drafter=drafter, policy="talon:budget=8,top_k=3")
    decoder.drafter._context = 20
    long, short = decoder.generate([[7] * 30, [5, 6, 7]], max_new_tokens=10)
    assert {len(one.tree) for one in long.rounds} == {1}
    assert max(len(one.tree) for one in short.rounds) > 1


@attrs.frozen
class Locked(Counting):
    """Cannot be copied, and need not be: another lock is as good."""

    name = "locked"
    _lock: object = attrs.field(factory=threading.Lock, init=False, eq=False)


class Handmade(TreePolicy):
    """No class of attrs, so that one for each sequence is a copy; this one has none."""

    name = "handmade"
    budget = 4

    def __init__(self):
        self.lock = threading.Lock()

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1))


def test_a_policy_that_cannot_be_copied_is_named():
    decoder = load(tiny_model("llama"), policy=Locked())
    assert len(decoder.generate(PROMPTS[0], max_new_tokens=4).token_ids) == 4
    decoder = load(tiny_model("llama"), policy=Handmade())
    for prompts in (PROMPTS, PROMPTS[0]):
        with pytest.raises(PluginError, match=r"'handmade'.* raised TypeError in begin: cannot pickle"):
            decoder.generate(prompts, max_new_tokens=4)


def test_a_numpy_seed_counts_up_as_any_other():
    decoder = load(tiny_model("llama"), policy=None)
    options = {"max_new_tokens": 8, "do_sample": True}
    ours, theirs = (decoder.generate([[3, 4], [3, 4]], seed=seed, **options) for seed in (5, np.int64(5)))
    assert [one.token_ids for one in ours] == [one.token_ids for one in theirs]
    assert ours[0].token_ids != ours[1].token_ids
