"""llama.cpp's own speculation: the same tokens as without, and of our heads as many accepted as TALON accepts."""

import json
import re
from functools import cache

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from talon_core.decoding.loading import decoder_for_model
from talon_core.peer import PeerSetting
from talon_core.peers import LlamaCpp
from talon_core.peers.gguf_copy import with_made_up_vocabulary
from talon_core.peers.gguf_file import gguf_of, main_type
from talon_core.peers.gguf_head import STATES_READ, gguf_of_head
from talon_core.peers.llama_cpp import head_giver
from talon_core.plugins.parts import Parts
from talon_core.request import Request
from talon_drafters import Eagle3
from talon_drafters.eagle3.network import Eagle3Config, Eagle3Head
from talon_tests.tiny_gguf import write_gguf
from talon_tests.tiny_models import SMALL, tiny_model

PROMPT = np.array([5, 17, 3, 88, 41, 9, 23, 64, 7, 11, 52, 30, 29, 6])
WORDS = [9, 23, 41]
TOKENS, CHAIN, LAYERS = 48, 3, 8
VOCAB, HIDDEN = SMALL["vocab_size"], SMALL["hidden_size"]
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "original_max_position_embeddings": 16},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """Of GGUF files alone; the compiled kernels stay where they are."""
    monkeypatch.setattr("talon_core.peers.gguf_writing.cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache/gguf"


def setting(model, eos=()):
    return PeerSetting(model, None, "tiny", frozenset(eos), 96, torch.get_num_threads())


@cache
def target(architecture="llama", **changes):
    """A random model that writes the same few words most of the time, so that a random head is right now and then."""
    model = tiny_model(architecture, **{"num_hidden_layers": LAYERS, **changes})
    prefer_words(model.get_output_embeddings().weight)
    return model


@torch.no_grad()
def prefer_words(weight):
    """Make the rows of a few words in an LM head large."""
    weight[WORDS] *= 8


def decoded(model, prompt, count, **options):
    """TALON's answer, with layers as PyTorch has them."""
    parts = Parts(**{"policy": None, **options}, accelerate=False, graphs=False)
    return decoder_for_model(model, None, parts).generate(np.array(prompt), max_new_tokens=count)


def plainly(model, prompt, count):
    """The same without drafting, of a model that nothing changes."""
    return _plainly(model, tuple(prompt), count)


@cache
def _plainly(model, prompt, count):
    return list(decoded(model, prompt, count).token_ids)


@pytest.fixture
def opened():
    """Opens the peer where it is installed, and closes it."""
    pytest.importorskip("xllamacpp", reason="the extra llama-cpp is not installed")
    engines = []

    def open_(model, peer, eos=()):
        engines.append(peer.open(setting(model, eos)))
        return engines[-1]

    yield open_
    for engine in engines:
        engine.close()


@attrs.frozen(eq=False)
class Case:
    """A target and a head for it.

    Attributes:
        architecture: of the target.
        changes: entries of the target's configuration.
        rope: the head's positions.
        embedding: the head has an embedding of its own.
        width: of the head; one of another width than the target's has an embedding of its own.
        whole: it drafts the whole vocabulary.
        flags: fields of `Eagle3Config`.
    """

    architecture: str = "llama"
    changes: dict = attrs.field(factory=dict)
    rope: dict = attrs.field(factory=lambda: {"rope_type": "default", "rope_theta": 500.0})
    embedding: bool = False
    width: int = HIDDEN
    whole: bool = False
    flags: dict = attrs.field(factory=dict)


CASES = {
    "llama": Case(),
    "llama, tied": Case(changes={"tie_word_embeddings": True}),
    "qwen3": Case("qwen3"),
    "its own embedding": Case(embedding=True),
    "the whole vocabulary": Case(whole=True),
    "wider": Case(embedding=True, width=64),
    "positions of Llama 3": Case(rope=LLAMA3),
    "positions that are stretched": Case(rope={"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}),
    "norm_before_residual": Case(flags={"norm_before_residual": True}),
    "norm_before_fc": Case(flags={"norm_before_fc": True}),
}


def written_head(folder, case, seed=4):
    """A random head in the authors' layout, in float32, that drafts the words that the target writes most."""
    ids = None if case.whole else torch.tensor(WORDS)
    layer = LlamaConfig(
        **{**SMALL, "hidden_size": case.width, "num_hidden_layers": 1, "head_dim": 12, "rope_parameters": case.rope}
    )
    config = Eagle3Config(layer, HIDDEN, VOCAB if ids is None else len(ids), **case.flags)
    torch.manual_seed(seed)
    head = Eagle3Head(config, ids, (VOCAB, case.width) if case.embedding else None)
    for parameter in head.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=2 * parameter.shape[1] ** -0.5)
        else:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    if case.whole:
        prefer_words(head.lm_head.weight)
    tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in head.state_dict().items()}
    if ids is not None:
        tensors["d2t"] = ids - torch.arange(len(ids))
    said = {
        **{key: getattr(layer, key) for key in ("intermediate_size", "num_attention_heads", "rms_norm_eps")},
        **{"num_hidden_layers": 1, "head_dim": 12, "rope_parameters": case.rope, "vocab_size": VOCAB},
        **case.flags,
    }
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(said))
    return folder


def drafted(model, head, chain):
    """TALON's target passes with a chain, where it begins as llama.cpp does: with the model's first token."""
    first = plainly(model, PROMPT, 1)
    found = decoded(model, [*PROMPT, *first], TOKENS - 1, drafter=Eagle3(str(head)), policy=f"chain:length={chain}")
    return 1 + found.stats.target_passes


def with_head(folder, **options):
    return LlamaCpp(draft="draft-eagle3", head=f"eagle3[path={folder}]", **options)


def test_every_family_whose_states_are_read_is_compared_here():
    assert {case.architecture for case in CASES.values()} == set(STATES_READ)


@pytest.mark.parametrize("name", CASES)
def test_of_a_head_as_many_tokens_are_accepted_as_with_talon(opened, tmp_path, name):
    case = CASES[name]
    model = target(case.architecture, **case.changes)
    head = written_head(tmp_path / "head", case)
    answer = opened(model, with_head(head, tokens=CHAIN)).decode(Request(PROMPT, TOKENS))
    assert list(answer.token_ids) == plainly(model, PROMPT, TOKENS)
    ours = drafted(model, head, CHAIN)
    assert ours < TOKENS - 5  # else nothing is compared
    assert answer.target_passes == ours


def test_the_length_of_chains_is_what_was_asked_for(opened, tmp_path):
    model = target()
    head = written_head(tmp_path / "head", Case())
    for chain in (1, 6):
        answer = opened(model, with_head(head, tokens=chain)).decode(Request(PROMPT, TOKENS))
        assert answer.target_passes == drafted(model, head, chain)


def test_a_model_drafts_for_itself_and_all_is_accepted(opened, tmp_path):
    model = target()
    file = tmp_path / "small.gguf"
    gguf_of(setting(model)).rename(file)
    for model_file in ("", str(file)):
        peer = LlamaCpp(file=model_file, draft="draft-simple", draft_file=str(file), tokens=CHAIN)
        answer = opened(model, peer).decode(Request(PROMPT, 1 + 4 * (CHAIN + 1)))
        assert list(answer.token_ids) == plainly(model, PROMPT, 1 + 4 * (CHAIN + 1))
        assert answer.target_passes == 1 + 4


def test_another_model_changes_the_passes_alone(opened, tmp_path):
    model = target()
    other = gguf_of(setting(tiny_model("qwen2", seed=1))).rename(tmp_path / "small.gguf")
    answer = opened(model, LlamaCpp(draft="draft-simple", draft_file=str(other))).decode(Request(PROMPT, TOKENS))
    assert list(answer.token_ids) == plainly(model, PROMPT, TOKENS)
    assert TOKENS / 4 < answer.target_passes <= TOKENS


def test_a_model_that_is_not_sure_drafts_less(opened, tmp_path):
    model = target()
    file = gguf_of(setting(model)).rename(tmp_path / "small.gguf")
    passes = [
        opened(model, LlamaCpp(draft="draft-simple", draft_file=str(file), confidence=confidence))
        .decode(Request(PROMPT, TOKENS))
        .target_passes
        for confidence in (0.0, 0.9, 0.9999)
    ]
    assert passes == sorted(passes)
    assert passes[0] < passes[-1]


def test_passes_are_counted_to_the_end_of_a_text(opened, tmp_path):
    """What was accepted behind the token that ends the text took no pass of its own."""
    model = target()
    end = plainly(model, PROMPT, TOKENS)[7]
    file = gguf_of(setting(model)).rename(tmp_path / "small.gguf")
    peer = LlamaCpp(draft="draft-simple", draft_file=str(file), tokens=CHAIN)
    request = Request(PROMPT, TOKENS, eos=frozenset([end]))
    answer = opened(model, peer, [end]).decode(request)
    tokens = plainly(model, PROMPT, TOKENS)
    tokens = tokens[: tokens.index(end) + 1]
    assert list(answer.token_ids) == tokens
    assert answer.target_passes == 1 + -(-(len(tokens) - 1) // (CHAIN + 1))


def test_a_small_model_of_any_vocabulary_gets_the_targets_made_up_one(tmp_path, cache_folder):
    from gguf import GGUFReader

    file = write_gguf(tmp_path / "small.gguf", "Q8_0")
    copy = with_made_up_vocabulary(file, [3])
    own, made = GGUFReader(file), GGUFReader(copy)
    assert [bytes(one.data) for one in own.tensors] == [bytes(one.data) for one in made.tensors]
    assert made.fields["tokenizer.ggml.tokens"].contents()[:2] == ["<0>", "<1>"]
    kept = {name for name in own.fields if not name.startswith(("tokenizer.", "GGUF."))}
    assert {name: own.fields[name].contents() for name in kept} == {name: made.fields[name].contents() for name in kept}
    written = copy.stat().st_mtime_ns
    assert with_made_up_vocabulary(file, [3]) == copy
    assert copy.stat().st_mtime_ns == written
    assert with_made_up_vocabulary(file, []) != copy


def test_two_vocabularies_are_refused_in_a_sentence(opened, tmp_path):
    model = target()
    file = gguf_of(setting(model)).rename(tmp_path / "own.gguf")
    other = write_gguf(tmp_path / "small.gguf", "Q8_0")
    peer = LlamaCpp(file=str(file), draft="draft-simple", draft_file=str(other))
    with pytest.raises(ValueError, match=r"for '.*own\.gguf' with '.*small\.gguf'; .* of the same vocabulary"):
        opened(model, peer)


def test_the_file_of_a_head_is_made_once(tmp_path, cache_folder):
    model = target()
    heads = [written_head(tmp_path / str(seed), Case(), seed) for seed in (1, 2)]

    def made(head, eos=()):
        weights = head_giver(f"eagle3[path={head}]").head_weights(model)
        return gguf_of_head(weights, setting(model, eos))

    file = made(heads[0])
    assert main_type(file) == "float32"
    written = file.stat().st_mtime_ns
    assert made(heads[0]) == file
    assert file.stat().st_mtime_ns == written
    assert len({file, made(heads[1]), made(heads[0], [3])}) == 3


@attrs.frozen
class Changed:
    """A head that is not as llama.cpp has it, and what is said of it."""

    sentence: str
    without: str = ""
    more: str = ""
    fields: dict = attrs.field(factory=dict)
    config: dict = attrs.field(factory=dict)


@pytest.mark.parametrize(
    "changed",
    [
        Changed("has a weight 'fc.bias', for which llama.cpp's heads have no place", more="fc.bias"),
        Changed("has a weight 'layers.1.mlp.up_proj.weight'", more="layers.1.mlp.up_proj.weight"),
        Changed("has a weight 'fc_norm.0.weight'", more="fc_norm.0.weight"),
        Changed("has no weight 'norm.weight', which all of llama.cpp's heads have", without="norm.weight"),
        Changed("feeds its next step what has gone through its last norm", fields={"norm_output": True}),
        Changed("fuses 2 states; llama.cpp fuses 3", fields={"states": (1, 2)}),
        Changed("reads what the last of 8 layers returns", fields={"states": (1, 2, 8)}),
        Changed("activation is 'gelu'; llama.cpp's is 'silu'", config={"hidden_act": "gelu"}),
        Changed(
            "positions are of the kind 'dynamic'",
            config={"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        ),
    ],
    ids=lambda changed: changed.sentence[:30],
)
def test_what_llama_cpp_has_no_place_for_is_refused(tmp_path, changed):
    model = target()
    weights = head_giver(f"eagle3[path={written_head(tmp_path / 'head', Case())}]").head_weights(model)
    tensors = {name: tensor for name, tensor in weights.tensors.items() if name != changed.without}
    if changed.more:
        tensors[changed.more] = torch.ones(HIDDEN)
    for name, value in changed.config.items():
        setattr(weights.config, name, value)
    with pytest.raises(ValueError, match=re.escape(changed.sentence)):
        gguf_of_head(attrs.evolve(weights, tensors=tensors, **changed.fields), setting(model))


def test_a_model_without_a_head_is_refused(opened):
    with pytest.raises(ValueError, match="'eagle3' needs path=FOLDER_OR_ID; none is shipped for this target"):
        opened(target(), LlamaCpp(draft="draft-eagle3"))


@pytest.mark.parametrize(("architecture", "arch"), [("qwen2", "qwen2"), ("gemma3", "gemma3")])
def test_a_target_whose_states_it_does_not_read_is_refused(tmp_path, architecture, arch):
    """It would abort."""
    changes = {"num_hidden_layers": 7, "use_bidirectional_attention": False} if architecture == "gemma3" else {}
    model = tiny_model(architecture, **changes)
    head = written_head(tmp_path / "head", Case())
    with pytest.raises(ValueError, match=f"from models of the architecture '{arch}'; it does of llama, qwen3"):
        with_head(head).open(setting(model))


def test_a_head_that_leaves_open_what_it_reads_is_refused(tmp_path):
    head = written_head(tmp_path / "head", Case())
    with pytest.raises(ValueError, match="does not say how it counts; add layer_ids_are=boundary or =block"):
        head_giver(f"eagle3[path={head};layers=1+3+6]").head_weights(target())
    weights = head_giver(f"eagle3[path={head};layers=1+3+6;layer_ids_are=block]").head_weights(target())
    assert weights.states == (2, 4, 7)


def test_an_older_package_that_cannot_draft_so_is_named(opened, monkeypatch, tmp_path):
    import xllamacpp

    older = type("common_speculative_type", (), {"COMMON_SPECULATIVE_TYPE_NONE": 0})
    monkeypatch.setattr(xllamacpp, "common_speculative_type", older)
    with pytest.raises(ValueError, match=r"xllamacpp [\d.]+ cannot draft with 'ngram-mod'; install a newer one"):
        opened(target(), LlamaCpp(draft="ngram-mod"))


@pytest.mark.models
@pytest.mark.slow
def test_the_shipped_head_is_as_good_there_as_here(smollm, shared_target, opened):
    model, tokenizer = smollm
    prompt = np.array(tokenizer("The capital of France is Paris. The capital of Italy is")["input_ids"])
    peer = LlamaCpp(widened=True, draft="draft-eagle3", tokens=CHAIN)
    answer = opened(model, peer, [2]).decode(Request(prompt, 32, eos=frozenset([2])))
    ours = shared_target(model, tokenizer, Parts(drafter="eagle3", policy=f"chain:length={CHAIN}"))
    found = ours.generate(prompt, max_new_tokens=32)
    assert list(answer.token_ids) == list(found.token_ids)
    # llama.cpp drafts nothing in the pass that reads the prompt, and rounds states to the head's bfloat16
    assert abs(answer.target_passes - found.stats.target_passes) <= 3
    assert answer.target_passes < len(answer.token_ids)
