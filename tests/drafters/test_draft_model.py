"""Drafting with a causal LM: its laws are the plain model's, its cache forgets what was not accepted."""

import copy
import re
import warnings

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import talon_core
from talon_core import TableTarget, TokenTree
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import Frontier
from talon_core.hf.runner import ModelRunner
from talon_core.plugins.parts import Parts
from talon_core.runtime.device import executor_for
from talon_core.runtime.fewer_layers import without_layers
from talon_core.runtime.staging import MANY_PENDING
from talon_core.runtime.states import decoder_layers
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_drafters import DraftModel
from talon_drafters.draft_model.drafter import PART, ModelDrafter
from talon_tests.tiny_models import tiny_model

VOCAB = 97
ARCHITECTURES = ["llama", "gemma3", "mistral-window"]
PROMPT = np.random.default_rng(2).integers(3, VOCAB, 18)
"""Longer than the tiny models' sliding window of 12."""


def tokenizer(words=VOCAB, prefix="t"):
    """One token for each word `t0`, `t1`, ..."""
    made = Tokenizer(models.WordLevel({f"{prefix}{number}": number for number in range(words)}, unk_token=f"{prefix}0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def target_of(model, its_tokenizer=None):
    return decoder_for_model(model, its_tokenizer, Parts(policy=None)).target


def saved(folder, model, its_tokenizer):
    """The folder, as text, with the model and its tokenizer in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    its_tokenizer.save_pretrained(folder)
    return str(folder)


def drafter_of(model, recorded=False):
    """A drafter that runs the model itself; recorded and repeated, as on a device, or not."""
    if recorded:
        return ModelDrafter(
            ModelRunner(model, executor_for(TapedBackend(PlainDevice()), model.device, TapeRecorder())), VOCAB
        )
    return ModelDrafter(ModelRunner(model, target_of(model).executor()), VOCAB)


def plain_laws(model, prefix, tree):
    """The plain model's law at each node, shape `(nodes, vocab)`, each path run alone; `prefix` ends at the root."""
    laws = []
    with torch.inference_mode():
        for node in range(len(tree)):
            ids = np.concatenate([prefix, tree.tokens[tree.path(node)[1:]]])
            logits = model(input_ids=torch.as_tensor(ids)[None], use_cache=False).logits[0, -1]
            laws.append(torch.softmax(logits.double(), dim=-1).numpy())
    return np.stack(laws)


def with_prefixes(one, laws):
    """For each round of a sequence in which something was drafted: the tokens up to its root, the tree and its laws."""
    return [(one.committed(at), tree, laws[at]) for at, tree in enumerate(one.trees) if one.drafts[at]]


def check_laws(model, drafted):
    """Four times the error of the plain float32 model against itself in float64, plus one rounding step.

    `drafted` holds for each tree the tokens up to its root, the tree, and the laws that were drafted.
    """
    exact = copy.deepcopy(model).double()
    truths = [plain_laws(exact, prefix, tree) for prefix, tree, _ in drafted]
    plain = [plain_laws(model, prefix, tree) for prefix, tree, _ in drafted]
    error = max(np.abs(one - truth).max() for one, truth in zip(plain, truths, strict=True))
    for (_, _, laws), truth in zip(drafted, truths, strict=True):
        assert np.abs(laws - truth).max() <= 4 * error + np.finfo(np.float32).eps


def with_fewer_layers(model, skip):
    """A model that was really built with fewer layers, and then given the weights of those that stay."""
    layers = decoder_layers(model)
    kept = [layer for layer in range(len(layers)) if layer not in skip]
    path = next(name for name, module in model.named_modules() if module is layers)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [model.config.layer_types[layer] for layer in kept]
    built = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    weights = {}
    for name, weight in model.state_dict().items():
        if not name.startswith(f"{path}."):
            weights[name] = weight
            continue
        number, _, rest = name.removeprefix(f"{path}.").partition(".")
        if int(number) in kept:
            weights[f"{path}.{kept.index(int(number))}.{rest}"] = weight
    built.load_state_dict(weights)
    return built


# Laws


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_laws_are_the_plain_models_at_every_node_over_several_rounds(architecture, shared):
    model = tiny_model(architecture)
    drafter = drafter_of(model)
    one = shared.Rounds.random(3, VOCAB, len(PROMPT), (9, 1, 6, 12))
    with drafter.session():
        (laws,) = shared.draft(drafter, [one], [None], VOCAB)
    check_laws(model, with_prefixes(one, laws))  # outside the session the model is plain again


@pytest.mark.parametrize("skip", [(2,), (0, 3), (1, 2)])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gpt2", "mixtral"])
def test_leaving_layers_out_gives_the_model_that_was_built_without_them(architecture, skip):
    model = tiny_model(architecture)
    ids = torch.as_tensor(PROMPT)[None]
    built, skipped = with_fewer_layers(model, skip), without_layers(model, skip)
    with torch.inference_mode():
        expected = built(input_ids=ids, use_cache=False).logits
        assert torch.equal(skipped(input_ids=ids, use_cache=False).logits, expected)  # the same operations
        assert not torch.allclose(model(input_ids=ids, use_cache=False).logits, expected)


def test_what_a_model_without_layers_has_of_its_own_is_in_evaluation_mode():
    model = tiny_model("llama").train()
    whole = {*model.modules()}
    own = [module for module in without_layers(model, [1]).modules() if module not in whole]
    assert len(own) == 3  # the model, its decoder and the list of layers
    assert not any(module.training for module in own)
    assert all(module.training for module in whole)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_drafting_without_layers_has_the_laws_of_the_model_built_without_them(architecture, shared):
    model = tiny_model(architecture)
    target = target_of(model)
    drafter = DraftModel(skip="0+3").open(target)
    one = shared.Rounds.random(5, VOCAB, len(PROMPT), (9,))
    with target.session(), drafter.session():
        (laws,) = shared.draft(drafter, [one], [None], VOCAB)
    check_laws(with_fewer_layers(model, (0, 3)), with_prefixes(one, laws))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_target_is_as_it_was_after_drafting_without_some_of_its_layers(architecture):
    model = tiny_model(architecture)
    weights = {name: (weight.data_ptr(), weight.clone()) for name, weight in model.state_dict().items()}
    modules = dict(model.named_modules())
    config = model.config.to_dict()
    implementations = {
        id(part.config): part.config._attn_implementation for part in modules.values() if hasattr(part, "config")
    }
    decoder = decoder_for_model(model, None, Parts("draft-model:skip=1-2", "chain:length=2"))
    decoder.generate(PROMPT, max_new_tokens=10)
    assert dict(model.named_modules()) == modules
    assert model.config.to_dict() == config
    assert implementations == {
        id(part.config): part.config._attn_implementation for part in modules.values() if hasattr(part, "config")
    }
    for name, weight in model.state_dict().items():
        assert weight.data_ptr() == weights[name][0]
        assert torch.equal(weight, weights[name][1])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules.values())


# Decoding


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_very_same_model_from_a_folder_gets_every_draft_accepted(architecture, tmp_path):
    folder = saved(tmp_path, tiny_model(architecture), tokenizer())
    decoder = talon_core.load(folder, drafter=f"draft-model:model={folder}", policy="chain:length=4")
    result = decoder.generate(PROMPT, max_new_tokens=30)
    assert [round_.accepted for round_ in result.rounds] == [4] * 6
    assert result.stats.mean_accepted_tokens == 5
    assert result.stats.draft_passes == sum(round_.draft_passes for round_ in result.rounds) == 24
    assert decoder.generate(PROMPT, max_new_tokens=30).token_ids == result.token_ids


def test_a_model_that_shares_nothing_with_the_target_changes_nothing_of_the_output(tmp_path):
    model = tiny_model("llama")
    folder = saved(tmp_path, tiny_model("gemma3", seed=9), tokenizer())
    plain = decoder_for_model(model, tokenizer(), Parts(policy=None)).generate(PROMPT, max_new_tokens=30)
    drafted = decoder_for_model(
        model, tokenizer(), Parts(f"draft-model:model={folder}", "eagle2:budget=8,depth=3,top_k=2")
    ).generate(PROMPT, max_new_tokens=30)
    assert drafted.token_ids == plain.token_ids


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("prompt", [5, 40])
def test_where_its_context_ends_a_drafter_knows_nothing_and_decoding_goes_on(architecture, prompt, tmp_path):
    model = tiny_model("llama")
    small = tiny_model(architecture, seed=1)
    config = copy.deepcopy(small.config)
    config.max_position_embeddings = 32
    small = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    folder = saved(tmp_path, small, tokenizer())
    ids = np.random.default_rng(1).integers(3, VOCAB, prompt)
    decoder = decoder_for_model(model, None, Parts(f"draft-model:model={folder}", "chain:length=3"))
    result = decoder.generate(ids, max_new_tokens=50)
    assert (
        result.token_ids
        == decoder_for_model(model, None, Parts(policy=None)).generate(ids, max_new_tokens=50).token_ids
    )
    length = prompt
    for round_ in result.rounds:
        deepest = int(round_.tree.depths.max())
        assert (deepest > 0) == (length <= 32)  # the root stands at position length - 1
        assert deepest == 0 or length - 1 + deepest <= 32  # the last draft follows a token at position 31
        length += len(round_.tokens)


def test_a_draft_model_that_cannot_be_accelerated_as_the_target_is_says_so(tmp_path, monkeypatch, caplog):
    target = target_of(tiny_model("llama"), tokenizer())
    folder = saved(tmp_path, tiny_model("llama", seed=1), tokenizer())
    monkeypatch.setattr(type(target.accelerator), "unavailable", lambda self, device, dtype: "it is tired")
    caplog.clear()  # of what the target said
    DraftModel(model=folder).open(target)
    assert caplog.messages == [f"draft model '{folder}' runs without accelerator 'native': it is tired"]


# Batches


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_sequence_gets_the_laws_it_gets_alone_whoever_comes_and_goes(architecture, recorded, shared):
    drafter = drafter_of(tiny_model(architecture), recorded)
    with drafter.session():
        shared.check_turns(drafter, lambda ids: None, VOCAB)


@pytest.mark.parametrize("recorded", [False, True])
def test_nodes_that_were_passed_over_may_be_drafted_from_later(recorded, shared):
    drafter = drafter_of(tiny_model("llama"), recorded)
    with drafter.session():
        shared.check_any_order(drafter, lambda ids: None, VOCAB)


def test_a_sequence_that_is_not_drafted_for_in_a_round_catches_up_in_the_next(shared):
    model = tiny_model("llama")
    drafter = drafter_of(model)
    both = [shared.Rounds.random(4, VOCAB, 18, (3, 0, 5)), shared.Rounds.random(5, VOCAB, 7, (0, 0, 5))]
    with drafter.session():
        drafted = shared.draft(drafter, both, [None, None], VOCAB)
    assert np.isnan(drafted[1][0]).all()
    assert np.isnan(drafted[0][1]).all()  # nobody is drafted for at all
    check_laws(model, [law for one, laws in zip(both, drafted, strict=True) for law in with_prefixes(one, laws)])


def test_a_prompt_is_read_when_it_is_first_drafted_from_and_taken_over_unread(shared):
    drafter = drafter_of(tiny_model("llama"))
    ids = np.arange(3, 15)
    root = [Frontier(2, TokenTree.root(int(ids[-1])), np.array([0]), 4)]
    with drafter.session():
        shared.start(drafter, ids[:9])
        shared.tell(drafter, ids[9:])  # in a round in which nothing was drafted
        assert drafter.resume(2, ids, 60, 0, 10) == 10  # so the target need not read it again
        assert drafter.executor.cache.lengths[0] == drafter.executor.cache.lengths[2] == 0
        reading = drafter.propose(root).reading
        assert reading.tokens == len(ids) - 1
        assert drafter.executor.cache.lengths[2] == len(ids) - 1
        shared.tell(drafter, [7], [0], slot=2)
        assert drafter.propose(root).reading is None


def test_what_waits_is_read_in_parts_where_there_is_time_to_spare_and_nothing_twice(shared):
    drafter = drafter_of(tiny_model("llama"))
    ids = np.arange(PART + 40) % VOCAB

    def root():
        return drafter.propose([Frontier(0, TokenTree.root(3), np.array([0]), 4)])

    with drafter.session():
        assert not drafter.catch_up()
        drafter.open(0, ids, 400)
        lengths = [drafter.executor.cache.lengths[0] for _ in range(3) if drafter.catch_up()]
        assert lengths == [PART, len(ids) - 1]
        shared.tell(drafter, [5, 4, 3])  # in a round in which nothing was drafted
        assert not drafter.catch_up()  # so few are read with the tree
        assert root().reading is None
        shared.tell(drafter, [3])
        for _ in range(2):  # rounds in which nothing is drafted
            shared.tell(drafter, np.arange(MANY_PENDING) % VOCAB)
        assert drafter.catch_up()
        assert not drafter.catch_up()
        assert root().reading is None


def test_a_pass_is_counted_once_for_all_that_take_part(shared):
    drafter = drafter_of(tiny_model("llama"))
    with drafter.session():
        for slot in (6, 1):
            shared.start(drafter, PROMPT[: 5 + slot], slot=slot)
        roots = [Frontier(slot, TokenTree.root(int(PROMPT[4 + slot])), np.array([0]), 3) for slot in (6, 1)]
        assert drafter.propose(roots).draft_passes == 1


def test_a_prompt_may_be_longer_than_the_context_of_one_sequence_of_several(shared):
    model = tiny_model("llama")
    drafter = drafter_of(model)
    drafter._context = 20
    both = [shared.Rounds.random(6, VOCAB, 25, (4, 2)), shared.Rounds.random(7, VOCAB, 9, (4, 2))]
    with drafter.session():
        long, short = shared.draft(drafter, both, [None, None], VOCAB, at_once=6)
    assert all(np.isnan(laws).all() for laws in long)
    check_laws(model, with_prefixes(both[1], short))


# What is refused


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, r"needs either model=FOLDER_OR_ID or skip=LAYERS .* got model=None and skip=\(\)"),
        ({"model": "somewhere", "skip": (1,)}, r"needs either .* got model=somewhere and skip=\(1,\)"),
        ({"skip": (4,)}, r"skip names layer 4; the target has layers 0 to 3"),
        ({"skip": "2-5"}, r"skip names layer 4; the target has layers 0 to 3"),
        ({"skip": "0-3"}, r"skip leaves out all 4 layers; at least one must stay"),
        ({"skip": (-1,)}, r"skip names layer -1"),
        ({"model": "./no/such/folder"}, r"'./no/such/folder'"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_words(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        DraftModel(**options).open(target_of(tiny_model("llama")))


@pytest.mark.parametrize("skip", ["a", "1-", "-1", "1..3", "1+x", "9-4", "2+9-4"])
def test_what_are_no_layers_is_refused_in_words(skip):
    with pytest.raises(
        ValueError, match=re.escape(f"skip is '{skip}'; it must be layers such as 4-9+12, counted from 0")
    ):
        DraftModel(skip=skip)


@pytest.mark.parametrize(
    ("skip", "layers"),
    [("3-5+9", (3, 4, 5, 9)), ("7", (7,)), ("2+1+2", (1, 2)), ("4-4", (4,)), ([3, 1], (1, 3))],
)
def test_layers_are_written_as_ranges_or_given_as_numbers(skip, layers):
    assert DraftModel(skip=skip).skip == layers


def test_a_target_that_is_no_transformers_model_is_refused():
    with pytest.raises(ValueError, match="drafts for transformers models, not for a TableTarget"):
        DraftModel(skip="1").open(TableTarget(np.zeros((3, 3))))


def test_another_tokenizer_is_refused(tmp_path):
    folder = saved(tmp_path, tiny_model("llama"), tokenizer(prefix="other"))
    with pytest.raises(ValueError, match=r"has another vocabulary than the target \(97 and 97 tokens\)"):
        DraftModel(model=folder).open(target_of(tiny_model("llama"), tokenizer()))


def test_a_tokenizer_of_another_size_is_refused(tmp_path):
    folder = saved(tmp_path, tiny_model("llama"), tokenizer(90))
    with pytest.raises(ValueError, match=r"has another vocabulary than the target \(90 and 97 tokens\)"):
        DraftModel(model=folder).open(target_of(tiny_model("llama"), tokenizer()))


def of_size(vocab_size):
    config = copy.deepcopy(tiny_model("llama").config)
    config.vocab_size = vocab_size
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def test_without_the_targets_tokenizer_the_numbers_of_ids_must_be_the_same(tmp_path):
    folder = saved(tmp_path, of_size(80), tokenizer(80))
    with pytest.raises(ValueError, match=rf"'{folder}' has 80 token ids and the target 97; they must be the same"):
        DraftModel(model=folder).open(target_of(tiny_model("llama")))


@pytest.mark.parametrize("size", [VOCAB + 7, VOCAB - 7])
def test_a_vocabulary_padded_to_another_size_is_fine_where_the_tokenizers_agree(size, shared, tmp_path):
    words = tokenizer(min(size, VOCAB))
    folder = saved(tmp_path, of_size(size), words)
    target = target_of(tiny_model("llama"), words)
    drafter = DraftModel(model=folder).open(target)
    with drafter.session():
        shared.start(drafter, [5, 6, 7])
        candidates = shared.ask(drafter, TokenTree.root(7), width=VOCAB)
    assert candidates.tokens.shape == (1, min(size, VOCAB))
    assert candidates.tokens.max() < VOCAB
    assert candidates.law(0).shape == (VOCAB,)
    assert candidates.law(0).sum() == pytest.approx(1)
