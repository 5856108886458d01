"""Passes that were written down and are walked by C: the same bits as the passes themselves, whatever comes."""

from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList

from talon_core.decoding.loading import decoder_for_model
from talon_core.plugins.parts import Parts
from talon_core.runtime import repeating
from talon_core.runtime.cache import TreeCache
from talon_core.runtime.executor import Numbers
from talon_core.runtime.inputs import pass_inputs
from talon_core.tree import TokenTree
from talon_kernels.likeliest_tokens import Screen
from talon_kernels.recorded import screening
from talon_kernels.recorded.plan import arrange, set_waits
from talon_kernels.recorded.recorder import NativeRecorder, Walked
from talon_kernels.recorded.steps import Op, Operand, Step
from talon_kernels.recorded.tape import CannotRecord, Tape
from talon_tests.tiny_models import ARCHITECTURES, tiny_model

HEADS = {"head_dim": 32}
RECORDED = {
    "llama": HEADS,
    "qwen2": {},
    "qwen3": HEADS,
    "mistral-window": HEADS,
    "gemma2": HEADS,
    "gemma3": HEADS,
    "olmo2": {},
    "granite": HEADS,
    "smollm3": HEADS,
}
"""Architectures whose passes can be written down, with heads that are wide enough."""

WIDE = {"hidden_size": 128}
"""Four heads of 32."""

PROMPT = [*range(5, 40)]


@pytest.fixture(autouse=True)
def _every_pass_is_compared(monkeypatch):
    monkeypatch.setattr(repeating, "CHECKED", 10**9)


@pytest.fixture
def screened(monkeypatch):
    """Heads of any size are screened where the most likely tokens alone are wanted."""
    monkeypatch.setattr(screening, "LEAST", 0)
    monkeypatch.setattr(screening, "SHARE", 2.0)


def made(architecture="llama", drafter="draft-model:skip=1-2", policy="talon:budget=12", **more):
    return decoder_for_model(tiny_model(architecture, **(more or HEADS)), None, Parts(drafter, policy))


def passes_of(executor):
    """How many passes were walked, each of them compared with the pass itself."""
    assert executor.failure is None
    return sum(sum(kind.checked.values()) for kind in executor._passes._kinds.values())


def recorded_pass(executor):
    """The only pass that was written down: the one that is walked."""
    (found,) = (kind.recorded for kind in executor._passes._kinds.values() if kind.recorded is not None)
    return found


def test_a_few_walked_passes_have_the_bits_of_the_pass(library):
    decoder = made("qwen3", policy="chain:length=2")
    decoder.generate(PROMPT[:9], max_new_tokens=8)
    assert passes_of(decoder.target.runner.executor) >= 2
    assert passes_of(decoder.drafter.executor) >= 3


def test_a_pass_stays_written_down_when_another_model_is_loaded(library):
    decoder = made(policy="chain:length=2")
    decoder.generate(PROMPT[:9], max_new_tokens=8)
    passes = [recorded_pass(one) for one in (decoder.target.runner.executor, decoder.drafter.executor)]
    made("qwen3")
    decoder.generate(PROMPT[:9], max_new_tokens=8)
    assert [recorded_pass(one) for one in (decoder.target.runner.executor, decoder.drafter.executor)] == passes


@pytest.mark.parametrize("architecture", RECORDED)
def test_a_walked_pass_has_the_bits_of_the_pass(library, architecture):
    decoder = made(architecture, **(RECORDED[architecture] or WIDE))
    decoder.generate(PROMPT, max_new_tokens=40)
    assert passes_of(decoder.target.runner.executor) >= 5
    assert passes_of(decoder.drafter.executor) >= 20


@pytest.mark.parametrize("architecture", sorted({*ARCHITECTURES} - {*RECORDED}))
def test_what_cannot_be_written_down_runs_as_it_is_and_says_why(library, architecture):
    decoder = made(architecture, **({} if architecture == "gpt2" else {"pad_token_id": 0}))
    plain = decoder_for_model(decoder.target.model, None, Parts(policy="none"))
    executor = decoder.target.runner.executor
    assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == plain.generate(PROMPT, max_new_tokens=12).token_ids
    assert executor.failure is not None
    assert not executor.recorded


@settings(deadline=None, max_examples=6)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    tokens=st.integers(12, 30),
    policy=st.sampled_from(["chain:length=5", "talon:budget=24", "eagle2:budget=40"]),
)
def test_batches_of_any_trees_have_the_bits_of_the_pass(library, lengths, tokens, policy):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(repeating, "RECORDED_AFTER", 1)
        decoder = made("qwen3", policy=policy)
        decoder.generate([PROMPT[:length] for length in lengths], max_new_tokens=tokens)
    assert passes_of(decoder.target.runner.executor) >= 1
    assert passes_of(decoder.drafter.executor) >= 1


def test_two_threads_make_the_bits_of_one(library, threads, monkeypatch):
    walked = []
    answer = Walked._answer

    def noted(self, program, counts):
        made = answer(self, program, counts)
        walked.append([each.clone() for each in made if isinstance(each, torch.Tensor)])
        return made

    monkeypatch.setattr(Walked, "_answer", noted)
    found = []
    for count in (1, 2):
        threads(count)
        walked.clear()
        decoder = made("gemma3")
        decoder.generate([PROMPT, PROMPT[:9]], max_new_tokens=12)
        assert passes_of(decoder.target.runner.executor) >= 1
        assert passes_of(decoder.drafter.executor) >= 5
        found.append([*walked])
    one, two = found
    assert len(one) == len(two) >= 6
    assert any(each.dtype is torch.float32 and each.numel() for each in one[0])
    assert all(same_bits(first, second) for first, second in zip(one, two, strict=True))


def same_bits(one, two):
    pairs = zip(one, two, strict=True)
    return all(torch.equal(first.view(torch.uint8), second.view(torch.uint8)) for first, second in pairs)


@pytest.mark.parametrize(
    ("architecture", "more"),
    [("qwen3", {}), ("mistral-window", {"sliding_window": 700}), ("gemma3", {"sliding_window": 300})],
)
def test_a_pass_over_texts_of_several_parts_has_the_bits_of_the_pass(library, architecture, more):
    """Attention sums up parts of 256 positions on their own, and leaves out those that a window hides."""
    decoder = made(architecture, policy="talon:budget=12", **HEADS, **more, max_position_embeddings=2304)
    decoder.generate([PROMPT * 61, PROMPT * 20], max_new_tokens=12)  # 2,135 and 700 tokens
    assert passes_of(decoder.target.runner.executor) >= 2
    assert passes_of(decoder.drafter.executor) >= 5


@pytest.mark.parametrize("count", [1, 2])
def test_a_pass_whose_attention_goes_by_bands_has_the_bits_of_the_pass(library, threads, monkeypatch, count):
    """Of 128 heads, what parts of 2,135 positions find is kept for about 200 nodes at a time."""
    threads(count)
    monkeypatch.setattr(repeating, "RECORDED_AFTER", 1)
    heads = {"num_attention_heads": 128, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2560}
    decoder = made("qwen3", "draft-model:skip=1-2", "eagle2:budget=240,depth=3,top_k=16", **heads)
    found = decoder.generate(PROMPT * 61, max_new_tokens=12)
    assert max(len(round_.tree) for round_ in found.rounds[2:]) > 220
    assert passes_of(decoder.target.runner.executor) >= 1


def test_more_nodes_than_the_tape_has_are_written_down_again(library):
    decoder = made(policy="talon:budget=8")
    executor = decoder.target.runner.executor
    decoder.generate(PROMPT, max_new_tokens=20)
    small = recorded_pass(executor)
    wide = decoder_for_model(decoder.target.model, None, Parts("draft-model:skip=1-2", "eagle2:budget=100"))
    executor = wide.target.runner.executor
    wide.generate(PROMPT, max_new_tokens=40)
    large = recorded_pass(executor)
    assert passes_of(executor) >= 5
    assert small._most[0] < 100 < large._most[0]


def test_a_longer_text_has_other_buffers_and_more_positions(library):
    decoder = made()
    for length in (20, 90):
        decoder.generate(PROMPT[:5], max_new_tokens=length)
        decoder.generate(PROMPT * 3, max_new_tokens=length)
    assert passes_of(decoder.target.runner.executor) >= 20


@pytest.mark.parametrize("known", [10**6, 160])
def test_texts_that_are_ever_longer_have_the_angles_of_positions_made_seldom(library, monkeypatch, known):
    """Also where a model knows fewer positions than twice as many as before."""
    reached, make = [], Walked._make_tables

    def made_as_far_as_known(self, positions):
        if positions > known:
            raise CannotRecord(f"positions up to {positions} are too far")
        make(self, positions)
        reached.append(positions)

    monkeypatch.setattr(Walked, "_make_tables", made_as_far_as_known)
    decoder = made()
    for length in range(8, 140, 6):
        decoder.generate(np.arange(length) % 50, max_new_tokens=8)
    assert passes_of(decoder.target.runner.executor) >= 20
    assert 140 < max(reached) <= known
    assert len(reached) <= 12  # of each kind of pass; twice as many texts came


@pytest.mark.parametrize("how", ["in place", "another tensor", "through data"])
def test_a_model_that_has_changed_is_written_down_anew(library, how):
    model = tiny_model("llama", **HEADS)
    decoder = decoder_for_model(model, None, Parts("draft-model:skip=1-2", "chain:length=3"))
    before = decoder.generate(PROMPT, max_new_tokens=20).token_ids
    weight = model.model.layers[1].mlp.down_proj.weight
    with torch.no_grad():
        if how == "in place":
            weight.mul_(-3)
        elif how == "through data":
            weight.data.mul_(-3)
        else:
            model.model.layers[1].mlp.down_proj.weight = torch.nn.Parameter(weight * -3)
    after = decoder.generate(PROMPT, max_new_tokens=20).token_ids
    assert passes_of(decoder.target.runner.executor) >= 3
    assert after != before
    assert after == decoder_for_model(model, None, Parts(policy="none")).generate(PROMPT, max_new_tokens=20).token_ids


def test_weights_may_be_views_of_one_tensor(library):
    model = tiny_model("llama", **HEADS)
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.nn.utils.vector_to_parameters(flat, model.parameters())
    decoder = decoder_for_model(model, None, Parts("draft-model:skip=1-2", "talon:budget=12"))
    decoder.generate(PROMPT, max_new_tokens=30)
    assert passes_of(decoder.target.runner.executor) >= 5


def test_memory_that_a_written_down_pass_reads_lasts_where_a_weight_is_given_another(library):
    decoder = made(policy="chain:length=2")
    decoder.generate(PROMPT[:9], max_new_tokens=8)
    weight = decoder.target.model.model.norm.weight
    before = weight.data_ptr()
    weight.data = torch.zeros_like(weight.data)
    assert before in {held.data_ptr() for held in recorded_pass(decoder.target.runner.executor)._tape.held}


def test_what_asks_for_a_number_of_the_positions_is_not_repeated(library):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    decoder = made("llama", **HEADS, rope_parameters=rope, max_position_embeddings=128)
    plain = decoder_for_model(decoder.target.model, None, Parts(policy="none"))
    expected = plain.generate(PROMPT, max_new_tokens=20).token_ids
    assert decoder.generate(PROMPT, max_new_tokens=20).token_ids == expected
    assert decoder.target.runner.executor.failure is not None


def test_one_large_pass_does_not_end_the_small_ones(library):
    decoder = made("qwen3", policy="eagle2:budget=60")
    executor = decoder.target.runner.executor
    decoder.generate(PROMPT, max_new_tokens=10)
    decoder.generate([PROMPT[: 5 + at] for at in range(6)], max_new_tokens=6)
    before = passes_of(executor)
    decoder.generate(PROMPT, max_new_tokens=10)
    assert passes_of(executor) > before


def test_tokens_that_a_table_does_not_have_are_refused_as_by_the_pass_itself(library):
    decoder = made()
    target = decoder.target
    tree = TokenTree(np.array([5]), np.array([-1]), np.zeros(1))
    beyond = TokenTree(np.array([10**6]), np.array([-1]), np.zeros(1))
    with target.session():
        target.open(0, 60)
        target.read({0: np.arange(5, 20)})
        for _ in range(6):
            target.verify({0: tree})
            target.commit({0: np.arange(0)})
        assert passes_of(target.runner.executor)
        with pytest.raises(IndexError):
            target.verify({0: beyond})


def test_few_kinds_of_passes_are_kept(library, monkeypatch):
    monkeypatch.setattr(repeating, "MOST_KINDS", 2)
    decoder = made(policy="talon:budget=8")
    executor = decoder.target.runner.executor
    passes = executor._passes
    plainly = {name: (lambda name=name: name) for name in ("one", "two", "three")}
    decoder.generate(PROMPT, max_new_tokens=4)
    inputs = executor.inputs({})
    for name in ("one", "two", "one", "three"):
        assert passes.run(inputs, None, name, {}, plainly[name], lambda: None) == name
    assert [*passes._kinds] == ["one", "three"]


def test_hooks_of_the_model_are_called_in_each_pass(library):
    decoder = made(policy="chain:length=2")
    decoder.generate(PROMPT, max_new_tokens=12)
    assert passes_of(decoder.target.runner.executor)
    seen = []
    hook = decoder.target.model.model.layers[1].register_forward_hook(lambda *_: seen.append(1))
    ran = decoder.generate(PROMPT, max_new_tokens=12)
    assert len(seen) >= ran.stats.target_passes
    assert "hooks" in decoder.target.runner.executor.failure
    hook.remove()
    decoder.generate(PROMPT, max_new_tokens=12)
    assert passes_of(decoder.target.runner.executor)


def test_positions_that_a_model_does_not_know_are_told_in_words(library):
    decoder = made("gpt2", n_positions=32)
    decoder.generate(PROMPT[:6], max_new_tokens=12)
    assert decoder.target.runner.executor.failure is not None


def test_a_pass_that_gives_other_numbers_is_given_up(library, monkeypatch):
    answer = Walked._answer
    monkeypatch.setattr(
        Walked,
        "_answer",
        lambda self, *given: tuple(
            each + 1 if isinstance(each, torch.Tensor) else each for each in answer(self, *given)
        ),
    )
    decoder = made()
    expected = decoder_for_model(decoder.target.model, None, Parts(policy="none")).generate(PROMPT, max_new_tokens=20)
    assert decoder.generate(PROMPT, max_new_tokens=20).token_ids == expected.token_ids
    assert "other numbers" in decoder.target.runner.executor.failure


def test_rows_are_taken_of_what_the_pass_has_made_wherever_that_lies(library):
    table = torch.randn(40, 24, generator=torch.Generator().manual_seed(0))
    tree = TokenTree([3, 39, 7, 3, 9], [-1, 0, 1, 2, 3], np.zeros(5))

    def work(view):
        first = table.index_select(0, view.ids)
        second = first + first
        return first, second.index_select(0, view.more["ends"])

    cache = TreeCache()
    cache.open(0, 5)
    more = {"ends": Numbers(np.array([4, 1]))}
    recorded = NativeRecorder(library).record(work, cache, 5, more)
    first, ends = recorded.run(pass_inputs({0: (tree, 0)}, [0]), more)
    assert torch.equal(first, table[tree.tokens.tolist()])
    assert torch.equal(ends, 2 * table[[9, 39]])


@pytest.mark.parametrize("seen", [None, "somebody looks at each pass"])
@pytest.mark.parametrize("how", [{}, {"eos_token_id": [7, 8, 9, 10, 11, 12]}])
def test_greedy_paths_are_chosen_and_committed_with_the_pass(library, monkeypatch, seen, how):
    """By a pass that is walked as by one that runs as it is; and they are those of the rule, whose turn never comes."""
    decoder = made("qwen3", policy="talon:budget=12")
    plain = decoder_for_model(decoder.target.model, None, Parts(policy="none"))
    expected = plain.generate(PROMPT, max_new_tokens=30, **how).token_ids
    executor = decoder.target.runner.executor
    monkeypatch.setattr(executor, "let_be_seen", lambda _: setattr(executor._passes, "seen", seen))
    batch = [PROMPT, PROMPT[:7], PROMPT[3:20]]
    together = decoder.generate(batch, max_new_tokens=30, **how)
    assert together[0].token_ids == expected
    assert all(round_.accept_seconds == 0 for one in together for round_ in one.rounds)
    assert any(round_.accepted for one in together for round_ in one.rounds)
    assert bool(executor.recorded) is (seen is None)


def test_a_processor_is_asked_about_each_node_whatever_the_pass_could_choose(library):
    decoder = made("qwen3", policy="talon:budget=12")
    ban = LogitsProcessorList([lambda ids, scores: scores.index_fill(1, torch.tensor([3]), -torch.inf)])
    plain = decoder_for_model(decoder.target.model, None, Parts(policy="none"))
    expected = plain.generate(PROMPT, max_new_tokens=20, logits_processor=ban).token_ids
    found = decoder.generate(PROMPT, max_new_tokens=20, logits_processor=ban)
    assert found.token_ids == expected
    assert all(round_.accept_seconds > 0 for round_ in found.rounds)


def choosing_ops(decoder):
    """What the steps of the target's only recorded pass do where the most likely tokens alone are wanted."""
    return [step.op for step in recorded_pass(decoder.target.runner.executor)._program(choosing=True).steps]


def test_a_few_most_likely_tokens_are_those_of_the_pass(library, screened):
    decoder = made("qwen3", policy="chain:length=2")
    decoder.generate(PROMPT[:9], max_new_tokens=8)
    assert passes_of(decoder.target.runner.executor) >= 2
    assert Op.LIKELIEST in choosing_ops(decoder)
    assert Op.LARGEST not in choosing_ops(decoder)


@pytest.mark.parametrize("architecture", RECORDED)
def test_most_likely_tokens_are_those_of_the_pass(library, screened, architecture):
    """Also of models that change the scores of the head before anybody chooses: of these all are computed."""
    decoder = made(architecture, **(RECORDED[architecture] or WIDE))
    plain = decoder_for_model(decoder.target.model, None, Parts(policy="none"))
    prompts = [PROMPT, PROMPT[:9]]
    found = decoder.generate(prompts, max_new_tokens=40)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain.generate(prompts, max_new_tokens=40)]
    assert passes_of(decoder.target.runner.executor) >= 5
    assert (Op.LIKELIEST in choosing_ops(decoder)) == (architecture not in ("gemma2", "granite"))


def test_both_ways_are_tried_for_each_number_of_rows_and_choose_the_same(library, screened):
    """Every pass is compared, and what they took is noted: seconds of each way, and how often it was tried."""
    decoder = made("qwen3", policy="chain:length=2")
    decoder.generate(PROMPT, max_new_tokens=60)
    program = recorded_pass(decoder.target.runner.executor)._program(choosing=True)
    (step,) = (step for step in program.steps if step.op is Op.LIKELIEST)
    ways = program.more[step.operands[5].piece]
    seconds, tries = ways.view(torch.float64)[:, :2], ways[:, 2:]
    assert tries.max() == 4
    assert tries[3].tolist() == [4, 4]
    assert not tries[0].any()
    assert not tries[4:].any()
    assert torch.equal(seconds > 0, tries > 0)


def test_two_threads_choose_the_tokens_of_one(library, screened, threads):
    found = []
    for count in (1, 2):
        threads(count)
        decoder = made("gemma3", policy="eagle2:budget=30")  # more rows than are ever screened, and fewer
        found.append([one.token_ids for one in decoder.generate([PROMPT, PROMPT[:9]], max_new_tokens=40)])
        assert passes_of(decoder.target.runner.executor) >= 3
        assert Op.LIKELIEST in choosing_ops(decoder)
    assert found[0] == found[1]


@pytest.mark.parametrize("how", ["in place", "another tensor", "through data"])
def test_a_head_that_has_changed_is_screened_anew(library, screened, how):
    decoder = made("qwen3", policy="chain:length=3")
    model = decoder.target.model
    before = decoder.generate(PROMPT, max_new_tokens=20).token_ids
    head = model.get_output_embeddings()
    with torch.no_grad():
        if how == "in place":
            head.weight.mul_(-3)
        elif how == "through data":
            head.weight.data.mul_(-3)
        else:
            head.weight = torch.nn.Parameter(head.weight * -3)
    after = decoder.generate(PROMPT, max_new_tokens=20).token_ids
    assert passes_of(decoder.target.runner.executor) >= 3
    assert after != before
    assert after == decoder_for_model(model, None, Parts(policy="none")).generate(PROMPT, max_new_tokens=20).token_ids
    assert Op.LIKELIEST in choosing_ops(decoder)


def test_a_head_that_changes_while_a_text_is_streamed_is_screened_anew(library, screened, monkeypatch):
    """As without a screen: steps of one text read what stands there."""
    said = {}
    for share in (2.0, 0.0):
        monkeypatch.setattr(repeating, "CHECKED", 1)
        monkeypatch.setattr(screening, "SHARE", share)
        decoder = made("qwen3", policy="chain:length=2")
        head = decoder.target.model.get_output_embeddings()
        said[share] = []
        for at, chunk in enumerate(decoder.stream(PROMPT, max_new_tokens=60)):
            said[share] += chunk.round.tokens.tolist()
            if at == 8:
                with torch.no_grad():
                    head.weight.mul_(-3)
        assert (Op.LIKELIEST in choosing_ops(decoder)) == bool(share)
    assert said[2.0] == said[0.0]
    assert len(said[2.0]) == 60


def test_a_tape_that_is_a_little_off_is_given_up_in_greedy_texts(library, screened, monkeypatch):
    """Though the most likely tokens, which alone are wanted, are the same: all numbers are compared first."""
    monkeypatch.setattr(repeating, "CHECKED", 1)
    attend = Tape.attend
    monkeypatch.setattr(
        Tape, "attend", lambda self, *given, scale, **more: attend(self, *given, scale=scale * 1.0001, **more)
    )
    decoder = made("qwen3", drafter="ngram", policy="chain:length=2")
    plain = decoder_for_model(decoder.target.model, None, Parts(policy="none"))
    assert decoder.generate(PROMPT, max_new_tokens=20).token_ids == plain.generate(PROMPT, max_new_tokens=20).token_ids
    assert "other numbers" in decoder.target.runner.executor.failure


def test_a_wrong_choice_is_found_as_well(library, screened, monkeypatch):
    monkeypatch.setattr(repeating, "CHECKED", 1)
    answer = Walked._answer

    def wrong(self, program, counts):
        made = answer(self, program, counts)
        return made if program is self._all else (made[0] + 1, *made[1:])

    monkeypatch.setattr(Walked, "_answer", wrong)
    decoder = made("qwen3", drafter="ngram", policy="chain:length=2")
    plain = decoder_for_model(decoder.target.model, None, Parts(policy="none"))
    assert decoder.generate(PROMPT, max_new_tokens=20).token_ids == plain.generate(PROMPT, max_new_tokens=20).token_ids
    assert "other numbers" in decoder.target.runner.executor.failure


@pytest.mark.parametrize(
    ("greedy", "unwalked", "choosing"),
    [
        ({0: frozenset(), 1: frozenset()}, {}, True),
        ({0: frozenset()}, {}, False),
        ({0: frozenset(), 1: frozenset()}, {1: 1}, False),
    ],
    ids=["all greedy", "one is drawn", "nodes of one are looked at"],
)
def test_scores_are_there_where_somebody_needs_them(library, screened, monkeypatch, greedy, unwalked, choosing):
    """Of a pass of two texts; where all are walked to their end the most likely tokens alone are wanted."""
    monkeypatch.setattr(repeating, "CHECKED", 1)
    asked, run = [], Walked.run
    monkeypatch.setattr(Walked, "run", lambda self, *given: asked.append(given[2]) or run(self, *given))
    target = made("qwen3", drafter="ngram").target
    tree = TokenTree(np.array([5, 6, 7]), np.array([-1, 0, 0]), np.zeros(3))
    with target.session():
        for slot in (0, 1):
            target.open(slot, 90)
            target.read({slot: np.arange(5, 20)})
        for _ in range(8):
            verified = target.verify({0: tree, 1: tree}, greedy, unwalked)
            target.commit({slot: np.arange(1) for slot in {0, 1} - verified.accepted.keys()})
    assert passes_of(target.runner.executor)
    assert asked[-1] is choosing
    assert {*verified.outputs} == (set() if choosing else {1})
    if not choosing:
        assert verified.outputs[1].logits.isfinite().all()


@pytest.mark.parametrize(("name", "value"), [("LEAST", 10**9), ("SHARE", 1e-3)])
def test_a_small_head_and_one_that_is_most_of_the_model_are_not_screened(library, screened, monkeypatch, name, value):
    monkeypatch.setattr(screening, name, value)
    decoder = made("qwen3", policy="chain:length=2")
    decoder.generate(PROMPT, max_new_tokens=12)
    assert Op.LARGEST in choosing_ops(decoder)
    assert Op.LIKELIEST not in choosing_ops(decoder)


@pytest.mark.parametrize("lacking", ["a finite number", "memory"])
def test_a_head_without_a_screen_has_all_its_scores_computed(library, screened, monkeypatch, lacking):
    decoder = made("qwen3", drafter="ngram", policy="chain:length=2")
    model = decoder.target.model
    if lacking == "memory":
        monkeypatch.setattr(Screen, "at", MagicMock(side_effect=MemoryError))
    else:
        with torch.no_grad():
            model.get_output_embeddings().weight[9, 3] = torch.inf
    decoder.generate(PROMPT, max_new_tokens=12)
    assert Op.LARGEST in choosing_ops(decoder)
    assert Op.LIKELIEST not in choosing_ops(decoder)


def test_threads_wait_before_another_product_is_screened():
    """What they have found of rows has one place for all such steps of a pass."""
    steps = [Step(Op.LIKELIEST, 0, [place(at), *[None] * 7, place(at + 5)]) for at in (1, 2)]
    set_waits(steps)
    assert [step.waits for step in steps] == [False, True]


def test_threads_wait_between_attention_and_attention():
    """What they have found of parts of a text has one place for all such steps of a pass."""
    attends = [Step(Op.ATTEND, 0, [place(at), place(at + 1)]) for at in (1, 3, 5)]
    steps = [attends[0], attends[1], linear(7, 9), attends[2]]
    set_waits(steps)
    assert [step.waits for step in steps] == [False, True, True, True]


def place(piece):
    return Operand(piece)


def linear(to, of):
    return Step(Op.LINEAR, 0, [place(to), place(of)])


def added(to, *of):
    return Step(Op.ADD, 0, [place(to), *map(place, of)])


def test_threads_wait_where_rows_and_columns_meet_and_nowhere_else():
    steps = [added(1, 0, 0), added(2, 1, 0), linear(3, 2), linear(4, 2), linear(5, 4), added(6, 5, 3), added(7, 6, 6)]
    assert set_waits(steps) == [0, 0, 1, 1, 2, 3, 3]
    assert [step.waits for step in steps] == [False, False, True, False, True, True, False]


def test_taking_rows_waits_for_whoever_wrote_them():
    steps = [added(1, 0, 0), Step(Op.GATHER, 1, [place(2), place(1), place(9)]), added(3, 2, 2)]
    set_waits(steps)
    assert [step.waits for step in steps] == [False, True, True]


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40), st.data())
def test_what_is_used_at_one_time_never_shares_memory(choices, data):
    steps = [
        linear(at + 1, max(0, at - back)) if columns else added(at + 1, max(0, at - back), max(0, at - other))
        for at, (columns, back, other) in enumerate(choices)
    ]
    made_pieces = {piece: data.draw(st.sampled_from([16, 100, 320])) for piece in range(1, len(steps) + 1)}
    lasting = data.draw(st.sets(st.sampled_from([*made_pieces]), max_size=3))
    phases = set_waits(steps)
    places, size = arrange(steps, phases, made_pieces, lasting)
    lives = {}
    for step, phase in zip(steps, phases, strict=True):
        for operand in step.operands:
            if operand.piece in made_pieces:
                first, _ = lives.get(operand.piece, (phase, phase))
                lives[operand.piece] = first, 10**6 if operand.piece in lasting else phase
    assert all(places[piece] + made_pieces[piece] <= size for piece in lives)
    for one, (begin, end) in lives.items():
        for other, (from_, to) in lives.items():
            apart = places[one] + made_pieces[one] <= places[other] or places[other] + made_pieces[other] <= places[one]
            assert one == other or apart or end < from_ or to < begin


def test_steps_are_packed_as_c_reads_them(library):
    from talon_kernels.recorded.steps import NUMBERS, OPERANDS, RANK, STEP

    sizes = np.zeros(4, dtype=np.int64)
    library.step_sizes(sizes.ctypes.data)
    assert sizes.tolist() == [STEP.itemsize, RANK, OPERANDS, NUMBERS]
