"""`talon generate`: what it prints, where, and what bad input gets."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader

from talon_core.cli.generate import read_prompt, why_empty
from talon_core.plugins.presets import Preset, save_preset
from talon_core.plugins.registry import load_registry
from talon_core.rounds import Stats
from talon_core.runtime.machine import describe_machine
from talon_tests.tiny_gguf import write_gguf

SENTENCE = "hi-🙂é~\n"
MADE_OF = {"model", "drafter", "policy", "rule", "schedule", "lossless"}
ANSWER = {"lossless", "prompt_tokens", "token_ids", "text", "finish_reason", "stats"}
FIELDS = MADE_OF | ANSWER


def said(tokens: int) -> str:
    """What the model of `conftest.py` says after the sentence, in so many tokens."""
    repeated = (SENTENCE * (tokens // len(SENTENCE.encode()) + 1)).encode()
    return repeated[:tokens].decode(errors="replace")


def test_json_is_one_object_with_the_promised_fields(talon, model):
    ran = talon("generate", SENTENCE, "--model", model, "--max-new-tokens", "24", "--json")
    assert ran.status == 0
    assert set(ran.answer) == FIELDS
    assert ran.answer["model"] == model
    assert (ran.answer["drafter"], ran.answer["rule"], ran.answer["lossless"]) == ("ngram", "match", True)
    assert ran.answer["prompt_tokens"] == len(SENTENCE.encode())
    assert len(ran.answer["token_ids"]) == ran.answer["stats"]["new_tokens"] == 24
    assert ran.answer["text"] == said(24)
    assert ran.answer["finish_reason"] == "length"
    assert set(ran.answer["stats"]) == {field.name for field in Stats.__attrs_attrs__}
    assert ran.answer["stats"]["mean_accepted_tokens"] > 1.5


def test_a_gguf_file_is_a_model(talon, tmp_path):
    file = str(write_gguf(tmp_path / "tiny.gguf", {"attn_q": "Q4_1", "token_embd": "Q6_K"}))
    ran = talon("generate", "ab ab ab", "--model", file, "--max-new-tokens", "5", "--json")
    assert ran.answer["model"] == file
    assert ran.answer["prompt_tokens"] == 8
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    ran = talon("generate", "ab ab ab", "--model", file, "--max-new-tokens", "5", "--json")
    assert "tiny.gguf' cannot be loaded: the GGUF file of 4 bytes is cut short or damaged" in ran.refusal


@pytest.mark.parametrize(
    ("text", "ended_by", "has_template", "told"),
    [("", "eos", False, True), ("", "eos", True, False), ("No.", "eos", False, False), ("", "length", False, False)],
)
def test_an_empty_answer_to_a_question_without_a_template_is_explained(text, ended_by, has_template, told):
    sentence = why_empty(SimpleNamespace(text=text, finish_reason=ended_by), has_template)
    assert (sentence is not None and "has no chat template" in sentence) is told


def test_a_gguf_file_without_a_template_says_so_where_its_answer_is_empty(talon, tmp_path, monkeypatch):
    file = str(write_gguf(tmp_path / "tiny.gguf", "Q8_0"))
    monkeypatch.setattr("talon_core.cli.generate.stream_text", no_text)
    ran = talon("generate", "Why?", "--model", file, "--max-new-tokens", "1")
    assert "this model's tokenizer has no chat template" in ran.err
    assert "no chat template" not in talon("generate", "Why?", "--model", file, "--max-new-tokens", "1", "--raw").err


def no_text(decoder, prompt, **options):
    """What comes of a model that has ended its text at once."""
    return attrs.evolve(decoder.generate(prompt, **options), text="", finish_reason="eos")


@pytest.mark.parametrize("name", [b"blk.0.attn_q.weight", b"blk.0.ffn_up.weight"])
def test_a_gguf_file_of_numbers_that_are_none_gets_one_sentence(talon, tmp_path, name):
    """Of what the package gguf warns while it widens them nothing is shown.

    PyTorch's attention hides on some processors that queries are NaN.
    """
    file = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    content = bytearray(file.read_bytes())
    at = content.index(name) + len(name) + 4 + 2 * 8  # behind the number of dimensions, and two of them
    assert content[at] == GGMLQuantizationType.Q8_0
    content[at] = GGMLQuantizationType.Q2_K  # of which no layer holds blocks
    file.write_bytes(content)
    (weight,) = (tensor for tensor in GGUFReader(file).tensors if tensor.name.encode() == name)
    infinite = np.zeros(42, dtype="<f2")  # a block: scales that are 0, numbers, and two factors
    infinite[-2:] = np.inf
    data = np.tile(infinite, weight.n_bytes // infinite.nbytes).tobytes()
    content[weight.data_offset : weight.data_offset + len(data)] = data
    file.write_bytes(content)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        ran = talon("generate", "ab", "--model", str(file), "--max-new-tokens", "5")
    assert ran.status == 2
    assert " computes logits that are NaN" in ran.err
    assert ran.err.endswith("; look at its weights and dtype\n")
    assert ", without TALON too;" in ran.err or "attn_q" in name.decode()
    assert not [one for one in shown if "invalid value" in str(one.message)]


def test_without_a_policy_the_same_tokens_come_one_by_one(talon, model):
    arguments = ("generate", SENTENCE, "--model", model, "--max-new-tokens", "17", "--json")
    fast, plain = talon(*arguments).answer, talon(*arguments, "--policy", "none").answer
    assert plain["token_ids"] == fast["token_ids"]
    assert (plain["drafter"], plain["policy"]) == (None, "none")
    assert plain["stats"]["target_passes"] == 17
    assert plain["stats"]["mean_accepted_tokens"] == 1
    assert plain["stats"]["draft_passes"] == 0


@pytest.mark.parametrize("tokens", [1, 4, 5, 6, 7, 40])
@pytest.mark.parametrize("policy", ["none", "chain:length=3"])
def test_streamed_text_is_the_whole_text_with_no_character_broken(talon, model, tokens, policy):
    arguments = ("generate", SENTENCE, "--model", model, "--max-new-tokens", str(tokens), "--policy", policy)
    streamed, whole = talon(*arguments), talon(*arguments, "--no-stream")
    assert streamed.status == whole.status == 0
    assert streamed.out == whole.out == said(tokens) + "\n"


@pytest.mark.parametrize(
    ("policy", "rule"), [("none", "match"), ("chain", "match"), ("sampled-chain", "block"), ("specinfer", "rrs")]
)
def test_the_rule_is_the_policys_default_rule(talon, model, policy, rule):
    arguments = ("generate", SENTENCE, "--model", model, "--max-new-tokens", "3", "--policy", policy, "--json")
    for more in ((), ("--rule", "auto")):
        assert talon(*arguments, *more).answer["rule"] == rule
    assert talon(*arguments, "--rule", "match").answer["rule"] == "match"


MARK = "LOSSY: rule 'typical' changes what the model says; this is not its own text"


@pytest.mark.parametrize("stream", ["--stream", "--no-stream", "--json"])
def test_the_text_of_a_lossy_rule_is_marked(talon, model, stream):
    arguments = ("generate", SENTENCE, "--model", model, "--max-new-tokens", "6", stream, "--lossy")
    lossy = talon(*arguments, "--rule", "typical:epsilon=0.5")
    assert lossy.status == 0
    assert MARK in lossy.err
    assert "LOSSY" not in lossy.out
    lossless = talon(*arguments)
    assert (lossless.status, lossless.out == lossy.out) == (0, stream != "--json")  # the permission alone
    assert "LOSSY" not in lossless.err
    if stream == "--json":
        assert (lossy.answer["lossless"], lossless.answer["lossless"]) == (False, True)


def test_the_texts_of_several_prompts_are_marked(talon, model, tmp_path):
    file = lines(tmp_path / "prompts.jsonl", "ab", SENTENCE)
    arguments = ("generate", "--prompt-file", file, "--model", model, "--max-new-tokens", "4", "--lossy")
    ran = talon(*arguments, "--rule", "typical", "--json")
    assert [ran.answer["lossless"], *(result["lossless"] for result in ran.answer["results"])] == [False] * 3
    assert MARK in ran.err
    assert MARK in talon(*arguments, "--rule", "typical").err
    assert "LOSSY" not in talon(*arguments).err


def test_figures_go_to_stderr(talon, model):
    ran = talon("generate", SENTENCE, "--model", model, "--max-new-tokens", "20")
    assert "tokens per target pass" in ran.err
    assert re.search(r"^20 tokens in \d+\.\d\d s, ended by the length limit: ", ran.err, re.MULTILINE)
    assert "verify" in ran.err
    assert "pass" not in ran.out


def test_the_tree_is_drawn_on_stderr_and_saved(talon, model, tmp_path):
    picture = tmp_path / "tree.svg"
    arguments = ("generate", SENTENCE, "--model", model, "--max-new-tokens", "20", "--policy", "chain:length=4")
    ran = talon(*arguments, "--show-tree", "--tree-svg", str(picture), "--json")
    assert ran.status == 0
    assert ran.answer["text"] == said(20)
    assert "5 nodes, depth 4, accepted 4 + 1" in ran.err
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_there_is_no_tree_to_draw_without_a_policy(talon, model):
    ran = talon("generate", SENTENCE, "--model", model, "--max-new-tokens", "3", "--policy", "none", "--show-tree")
    assert ran.status == 0
    assert "no tree to show: nothing was drafted" in ran.err


def test_where_no_guess_joins_a_tree_it_is_said_how_to_see_them(talon, model):
    command = ("generate", SENTENCE, "--model", model, "--max-new-tokens", "6", "--drafter", "ngram", "--show-tree")
    hidden = talon(*command, "--policy", "talon:least=0.999")
    assert "no tree to show: none had more than its root; --policy chain:length=3 takes" in hidden.err
    assert "accepted" in talon(*command, "--policy", "chain:length=3").err


def test_a_stop_string_ends_the_text(talon, model):
    ran = talon("generate", SENTENCE, "--model", model, "--stop", "nowhere", "--stop", "i-", "--json")
    assert ran.answer["finish_reason"] == "stop"
    assert ran.answer["text"] == "hi-"
    assert " s, ended by a stop string: " in ran.err


def test_a_seed_makes_sampling_reproducible(talon, model):
    arguments = ("generate", SENTENCE, "--model", model, "--temperature", "30", "--seed", "7", "--json")
    sampled = [talon(*arguments, "--max-new-tokens", "12").answer["token_ids"] for _ in range(2)]
    assert sampled[0] == sampled[1]


def test_a_sampling_option_without_sampling_is_pointed_out(talon, model):
    ran = talon("generate", SENTENCE, "--model", model, "--max-new-tokens", "2", "--top-k", "5")
    assert ran.status == 0
    assert "--temperature 0" in ran.err


def test_rows_of_keys_and_values_can_be_bounded(talon, model, tmp_path):
    file = lines(tmp_path / "prompts.jsonl", "ab", SENTENCE)
    arguments = ("generate", "--prompt-file", file, "--model", model, "--max-new-tokens", "4", "--policy", "chain")
    ran = talon(*arguments, "--rows", "3")
    assert ran.status == 2
    assert "rows of keys and values more than there are" in ran.err
    assert talon(*arguments, "--rows", "500").out == talon(*arguments).out
    assert "--rows is 0; it must be at least 1" in talon(*arguments, "--rows", "0").err


def test_a_batch_size_for_one_prompt_is_pointed_out(talon, model):
    ran = talon("generate", SENTENCE, "--model", model, "--max-new-tokens", "2", "--batch-size", "4")
    assert ran.status == 0
    assert "--batch-size changes nothing for one prompt" in ran.err


def test_a_prompt_comes_from_a_file_as_it_is(talon, model, text_file):
    file = text_file("\ufeffé~\n".encode())
    ran = talon("generate", "--prompt-file", file, "--model", model, "--max-new-tokens", "3", "--json")
    assert ran.answer["prompt_tokens"] == 4
    assert ran.answer["text"] == "hi-"


def test_a_prompt_comes_from_standard_input(talon, model, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SENTENCE.encode())))
    ran = talon("generate", "--prompt-file", "-", "--model", model, "--max-new-tokens", "3", "--json")
    assert ran.answer["prompt_tokens"] == len(SENTENCE.encode())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["generate"], "no prompt: give it in quotes"),
        (["generate", ""], "the prompt is empty"),
        (["generate", "a", "--prompt-file", "b"], "two prompts"),
        (["generate", "bad \udcff byte"], "not UTF-8"),
        *(
            (
                ["generate", "--prompt-file", file],
                f"the prompt file cannot be read: No such file or directory: '{file}'",
            )
            for file in ("no-such-file.txt", "no-such-file.jsonl")
        ),
        (["generate", "--prompt-file", "."], "the prompt file cannot be read: Is a directory: '.'"),
        (["generate", "a", "--policy", "tallon"], "no tree policy 'tallon'; did you mean 'talon'?"),
        (["generate", "a", "--policy", "talon:budgt=3"], "no option 'budgt'; did you mean 'budget'?"),
        (["generate", "a", "--policy", "talon:budget=x"], "is 'x'; it must be a whole number"),
        (["generate", "a", "--policy", "talon:budget=1"], "'budget' must be >= 2: 1"),
        (["generate", "a", "--policy", "talon:budget"], "'budget' in 'talon:budget' is no option"),
        (["generate", "a", "--drafter", "n-gram"], "no drafter 'n-gram'; did you mean 'ngram'?"),
        (["generate", "a", "--rule", "mach"], "no rule 'mach'; did you mean 'match'?"),
        (["generate", "a", "--rule", "typical"], "is lossy: it changes what the model says; where"),
        (["generate", "a", "--rule", "typical", "--policy", "none"], "(--lossy of talon generate and talon bench run)"),
        (["generate", "a", "--rule", "block", "--lossy"], "is not exact for the deterministic trees"),
        (["generate", "a", "--attention", "fast"], "no attention backend 'fast'"),
        (["generate", "a", "--model", ""], "the model's name is empty"),
        (["generate", "a", "--model", "smolm2-135m"], "did you mean 'smollm2-135m'?"),
        (["generate", "a", "--model", "./nowhere"], "'./nowhere'"),
        (["generate", "a", "--temperature", "-1"], "--temperature is -1.0; it must be 0 (greedy)"),
        (["generate", "a", "--temperature", "nan"], "'--temperature': 'nan' is not a finite number"),
        (["generate", "a", "--temperature", "warm"], "'warm'"),
        (["generate", "a", "--top-p", "1.5"], "--top-p is 1.5; it must be above 0 and at most 1"),
        (["generate", "a", "--top-k", "-1"], "--top-k is -1; it must be at least 1, or 0 for all tokens"),
        (["generate", "a", "--seed", "-3"], "--seed is -3; it must be 0 or more"),
        (["generate", "a", "--max-new-tokens", "0"], "--max-new-tokens is 0; it must be at least 1"),
        (["generate", "a", "--stop", ""], "--stop is empty"),
        (["generate", "a", "--tree-svg", "nowhere/tree.svg"], "must be a file in a folder that exists"),
        (["generate", "a", "--other-machine"], "--other-machine is given without --profile; it says that a profile"),
        (
            ["generate", "a", "--timeline", "tree.svg", "--tree-svg", "./tree.svg"],
            "--timeline and --tree-svg are both 'tree.svg'; name two files",
        ),
        (["generate", "a", "--model", "a" * 300], "cannot be looked for (File name too long); name an existing folder"),
        (["generate", "a", "--model", "./none.gguf"], "there is no file './none.gguf'; name an existing folder"),
        (["generate", "a", "--colour", "red"], "--colour"),
        (["generate", "a", "b"], "b"),
        (["generat", "a"], "generat"),
    ],
)
def test_bad_input_gets_a_sentence_before_any_model_is_loaded(talon, monkeypatch, arguments, sentence):
    def loads(*_: object, **__: object) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", loads)
    for extra in ([], ["--json"] if arguments[0] == "generate" else []):
        assert sentence in talon(*arguments, *extra).refusal


@pytest.mark.parametrize("bytes_", ["café 日本".encode(), b"plain"])
def test_a_prompt_is_utf_8_in_whatever_locale(bytes_):
    assert read_prompt(bytes_.decode("ascii", "surrogateescape"), None) == bytes_.decode()


@pytest.mark.parametrize("prompt", ["caf\udce9", "half a pair \ud83d"])
def test_a_prompt_that_is_no_text_gets_a_sentence(prompt):
    with pytest.raises(ValueError, match="the prompt is not UTF-8 text"):
        read_prompt(prompt, None)


@pytest.mark.parametrize(
    ("content", "sentence"), [(b"", "is empty; it must hold"), (b"caf\xe9", "is not UTF-8 text (byte 3 is 0xe9)")]
)
def test_a_prompt_file_that_is_no_text_gets_a_sentence(talon, text_file, content, sentence):
    file = text_file(content)
    ran = talon("generate", "--prompt-file", file)
    assert ran.status == 2
    assert sentence in ran.err
    assert file in ran.err


def test_a_prompt_without_an_end_gets_a_sentence(talon, text_file, monkeypatch):
    monkeypatch.setattr("talon_core.cli.generate.MOST_BYTES", 1 << 20)
    said = talon("generate", "--prompt-file", text_file(b"a" * ((1 << 20) + 1))).refusal
    assert said.endswith("has more than 1 MB; no model's context is so long")


def test_a_prompt_longer_than_the_context_gets_a_sentence(talon, model):
    ran = talon("generate", "a" * 300, "--model", model)
    assert ran.status == 2
    assert ran.out == ""
    assert "the prompt has 300 tokens; the target's context holds 256" in ran.err
    assert ran.err.count("\n") == 1


def test_output_ends_where_the_context_does(talon, model):
    ran = talon("generate", "a" * 250, "--model", model, "--json")
    assert ran.answer["finish_reason"] == "length"
    assert len(ran.answer["token_ids"]) == 6


def test_a_folder_without_a_model_gets_a_sentence(talon, tmp_path: Path):
    ran = talon("generate", "a", "--model", str(tmp_path))
    assert ran.status == 2
    assert f"model '{tmp_path}' cannot be loaded" in ran.err
    assert "Traceback" not in ran.err


def test_a_mistake_of_ours_is_not_dressed_up(talon, monkeypatch):
    def broken(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("talon_core.cli.generate.read_prompt", broken)
    with pytest.raises(KeyError):
        talon("generate", "a")


def test_debugging_shows_the_traceback(talon, monkeypatch):
    monkeypatch.setenv("TALON_DEBUG", "1")
    with pytest.raises(LookupError, match="no rule"):
        talon("generate", "a", "--rule", "none-such")


def test_a_broken_policy_is_named(talon, model, monkeypatch):
    from talon_strategies import Chain

    def grow(*_: object) -> Callable[..., object]:
        raise RuntimeError("lost")

    monkeypatch.setattr(Chain, "grow", grow)
    ran = talon("generate", SENTENCE, "--model", model, "--policy", "chain")
    assert ran.status == 2
    assert "talon: tree policy 'chain' (talon_strategies.chain.Chain) raised RuntimeError in grow: lost" in ran.err


def lines(file, *values):
    file.write_text("".join(json.dumps(value) + "\n" for value in values))
    return str(file)


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_the_answers_before_an_error_are_shown(talon, model, monkeypatch, tmp_path, as_json):
    from talon_strategies import Chain

    begin, grow, begun = Chain.begin, Chain.grow, []

    def beginning(policy: Chain, sequence: object) -> object:
        begun.append(sequence)
        return begin(policy, sequence)

    def failing(policy: Chain, *how: object) -> object:
        if len(begun) == 2:
            raise RuntimeError("lost")
        return grow(policy, *how)

    monkeypatch.setattr(Chain, "begin", beginning)
    monkeypatch.setattr(Chain, "grow", failing)
    file = lines(tmp_path / "prompts.jsonl", SENTENCE, SENTENCE)
    arguments = ("--prompt-file", file, "--batch-size", "1", "--policy", "chain", "--max-new-tokens", "9")
    ran = talon("generate", *arguments, "--model", model, *as_json)
    assert ran.status == 2
    assert "raised RuntimeError in grow: lost" in ran.err
    assert said(9) in (ran.answer["results"][0]["text"] if as_json else ran.out)


@pytest.mark.parametrize("size", ["1", "2", "8"])
def test_a_file_of_prompts_is_decoded_in_batches(talon, model, tmp_path, size):
    prompts = [SENTENCE, "ab", "xyz" * 5]
    file = lines(tmp_path / "prompts.jsonl", {"prompt": prompts[0]}, {"turns": [prompts[1], "more"]}, prompts[2])
    arguments = ("--model", model, "--max-new-tokens", "13", "--json")
    together = talon("generate", "--prompt-file", file, "--batch-size", size, *arguments)
    assert together.status == 0
    assert set(together.answer) == {*MADE_OF, "results", "stats"}
    for prompt, result in zip(prompts, together.answer["results"], strict=True):
        alone = talon("generate", prompt, *arguments).answer
        assert set(result) == ANSWER
        assert (result["token_ids"], result["text"]) == (alone["token_ids"], alone["text"])
    stats = together.answer["stats"]
    assert (stats["sequences"], stats["new_tokens"]) == (3, 39)
    assert stats["target_passes"] <= stats["rounds"]


def test_answers_to_several_prompts_are_printed_in_their_order(talon, model, tmp_path):
    file = lines(tmp_path / "prompts.jsonl", "ab\ncd", SENTENCE)
    ran = talon("generate", "--prompt-file", file, "--model", model, "--max-new-tokens", "8")
    assert ran.status == 0
    expected = [
        talon("generate", prompt, "--model", model, "--max-new-tokens", "8").out for prompt in ("ab\ncd", SENTENCE)
    ]
    assert ran.out == "".join(expected)
    assert "[1/2] ab" in ran.err
    assert "16 tokens of 2 sequences" in ran.err


@pytest.mark.parametrize(
    ("content", "arguments", "sentence"),
    [
        ("", [], "is empty"),
        ('{"prompt": ""}\n', [], "holds no prompt"),
        ("oops\n", [], "is not JSON"),
        ('"a"\n', ["--batch-size", "0"], "--batch-size is 0"),
        ('"a"\n', ["--show-tree"], "holds several"),
    ],
)
def test_a_bad_file_of_prompts_gets_a_sentence(talon, model, tmp_path, content, arguments, sentence):
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    ran = talon("generate", "--prompt-file", str(file), "--model", model, *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert sentence in ran.err


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_bad_prompt_among_many_is_named_with_its_line(talon, model, tmp_path, monkeypatch, as_json):
    monkeypatch.setattr("talon_core.engine.engine.Engine.step", lambda *_: pytest.fail("something was decoded"))
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'"ab"\n\n"{"x" * 300}"\n"cd"\n')
    ran = talon("generate", "--prompt-file", str(file), "--model", model, *as_json)
    assert ran.refusal.startswith(f"prompt 2 of 3 (line 3 of '{file}'): the prompt has 300 tokens; ")


def test_a_file_of_prompts_may_have_its_ending_in_capitals(talon, model, tmp_path):
    file = lines(tmp_path / "PROMPTS.JSONL", "ab", "cd")
    ran = talon("generate", "--prompt-file", file, "--model", model, "--max-new-tokens", "3", "--json")
    assert ran.answer["stats"]["sequences"] == 2


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        ([["ab"], ["cd"]], None),
        ([["ab", "more"], ["cd"]], "of 1 prompt, 1 later turn is left out; only the first turn of a prompt is decoded"),
        ([["ab", "a", "b"], ["c", "d"], ["e"]], "of 2 prompts, 3 later turns are left out; only the first turn"),
    ],
)
def test_turns_that_are_left_out_are_counted(talon, model, tmp_path, turns, says):
    file = lines(tmp_path / "prompts.jsonl", *({"turns": each} for each in turns))
    ran = talon("generate", "--prompt-file", file, "--model", model, "--max-new-tokens", "3", "--json")
    assert len(ran.answer["results"]) == len(turns)
    told = [line for line in ran.err.splitlines() if "left out" in line]
    assert len(told) == (says is not None)
    assert says is None or f"talon: {says}" in told[0]
    assert "only the first is decoded" in " ".join(talon("generate", "--help").out.replace("│", " ").split())


def test_many_prompts_show_their_progress_in_lines_where_there_is_no_terminal(talon, model, tmp_path, monkeypatch):
    monkeypatch.setattr("talon_core.cli.progress.SECONDS_BETWEEN_NOTES", 0.0)
    file = lines(tmp_path / "prompts.jsonl", "ab", "cd", "ef")
    ran = talon("generate", "--prompt-file", file, "--batch-size", "1", "--model", model, "--max-new-tokens", "3")
    assert ran.status == 0
    assert "talon: 1 of 3 prompts, 0 min left\n" in ran.err
    assert "talon: 3 of 3 prompts\n" in ran.err


def test_a_schedule_is_named_and_its_hits_are_told(talon, model):
    ran = talon(
        "generate", SENTENCE, "--model", model, "--schedule", "cached:budget=5", "--max-new-tokens", "9", "--json"
    )
    assert ran.status == 0
    assert ran.answer["schedule"] == "cached:budget=5"
    assert ran.answer["stats"]["hits"] + ran.answer["stats"]["misses"] > 0
    plain = talon("generate", SENTENCE, "--model", model, "--max-new-tokens", "9", "--json").answer
    assert plain["token_ids"] == ran.answer["token_ids"]
    assert (plain["schedule"], plain["stats"]["hits"]) == ("sync", 0)


def test_the_answer_tells_the_schedule_of_a_preset_that_was_decoded_with(talon, model, tmp_path, monkeypatch):
    monkeypatch.setenv("TALON_DATA", str(tmp_path / "data"))
    kept = {"schedule": "cached:budget=5", "draft_on": "thread", "said": "it pays", "tried": {}}
    for weights, schedule in ((None, "cached:budget=5"), ("0" * 64, "sync")):
        known = {"name": "big", "weights_sha256": weights}
        profile = {"drafter": "ngram", "model": known, "machine": describe_machine()}
        save_preset(Preset("mine", "chain", "tuned", profile=profile, schedule=kept), load_registry())
        # in so many rounds a thread has time to prepare something on a busy machine, too
        how = ("--policy", "mine", "--drafter", "ngram", "--max-new-tokens", "90")
        ran = talon("generate", SENTENCE, "--model", model, *how, "--json")
        assert ran.answer["schedule"] == schedule
        stats = ran.answer["stats"]
        assert (stats["prepare_seconds"] > 0) == (stats["hits"] + stats["misses"] > 0) == (schedule != "sync")
        assert ("found for a model of other weights, big" in ran.err) == (schedule == "sync")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--schedule", "cache"], "no schedule 'cache'; did you mean 'cached'?"),
        (["--schedule", "cached:budget=0"], "schedule 'cached': 'budget' must be >= 1"),
        (["--schedule", "cached", "--draft-on", "cuda:4000", "--model", "./none"], "draft_on is cuda:4000, and "),
        (["--schedule", "cached", "--draft-on", "gpu"], "draft_on is 'gpu'; it must be thread, cpu:1"),
        (["--draft-on", "cpu:1"], "the schedule drafts and verifies in turn"),
        (["--policy", "none", "--schedule", "cached"], "the schedule is 'cached', and there is no tree policy"),
    ],
)
def test_a_bad_schedule_or_place_is_refused_in_a_sentence(talon, model, options, says):
    ran = talon("generate", SENTENCE, "--model", model, *options, "--json")
    assert ran.status == 2
    assert says in ran.answer["error"]


@pytest.mark.parametrize(("ending", "begins"), [("html", b"<!doctype"), ("PNG", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_timeline_is_saved_in_the_form_of_its_ending(talon, model, tmp_path, ending, begins):
    file = tmp_path / f"rounds.{ending}"
    schedule = ("--schedule", "cached:budget=5") if ending == "html" else ()
    ran = talon(
        "generate", SENTENCE, "--model", model, *schedule, "--max-new-tokens", "9", "--timeline", str(file), "--json"
    )
    assert ran.status == 0
    assert file.read_bytes().startswith(begins)
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("rounds.pdf", "rounds.pdf'; it must end in .html, .png or .svg"),
        ("rounds", "rounds'; it must end in .html, .png or .svg"),
        ("nowhere/rounds.png", "rounds.png'; it must be a file in a folder that exists"),
        ("folder.html", "folder.html'; it must be a file in a folder that exists"),
    ],
)
def test_a_timeline_that_cannot_be_saved_is_refused_before_anything_is_decoded(talon, tmp_path, file, says):
    (tmp_path / "folder.html").mkdir()
    ran = talon("generate", SENTENCE, "--model", "no/model", "--timeline", str(tmp_path / file), "--json")
    assert says in ran.refusal


def test_a_timeline_is_of_one_prompt(talon, model, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "ab"}\n')
    prompts = ("--prompt-file", str(tmp_path / "prompts.jsonl"))
    ran = talon("generate", *prompts, "--model", model, "--timeline", str(tmp_path / "rounds.html"), "--json")
    assert "--timeline shows the rounds of one prompt" in ran.refusal
