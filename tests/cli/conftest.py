"""A model folder that takes milliseconds: it knows one sentence by heart, byte by byte, an emoji among it."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from talon_core.cli import main

SENTENCE = "hi-🙂é~\n"
"""No byte comes twice, so that each byte determines the next; five tokens show nothing by themselves."""
END = "<end>"
CONTEXT = 256


def expected(tokens: int) -> str:
    """What the model says after `~`, in so many tokens; an unfinished character is a replacement character."""
    said = ("\n" + SENTENCE * (tokens // len(SENTENCE.encode()) + 1)).encode()
    return said[:tokens].decode(errors="replace")


@attrs.frozen
class Ran:
    """What a command did."""

    arguments: tuple[str, ...]
    status: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        assert self.out, self.err
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def refusal(self) -> str:
        """The one sentence with which bad input was refused: on stderr, and with `--json` on stdout."""
        assert self.status == 2, self.err
        assert self.err.startswith("talon: ")
        assert self.err.count("\n") == 1
        sentence = self.err.removeprefix("talon: ").rstrip("\n")
        if "--json" in self.arguments:
            assert self.answer == {"error": sentence}
        else:
            assert self.out == ""
        return sentence


@pytest.fixture
def talon(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs a command in this process."""
    monkeypatch.delenv("TALON_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        status = main(arguments)
        out, err = capsys.readouterr()
        return Ran(arguments, status, out, err)

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the model and its tokenizer, one token for each byte."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("parrot")
    vocab = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, clean_up_tokenization_spaces=False)
    fast.save_pretrained(folder)

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
        tie_word_embeddings=False,
    )
    parrot = LlamaForCausalLM(config)
    ids = fast(SENTENCE)["input_ids"]
    with torch.no_grad():
        embedding = parrot.get_input_embeddings().weight.normal_()
        head = parrot.get_output_embeddings().weight.zero_()
        for token, following in zip(ids, [*ids[1:], ids[0]], strict=True):
            head[following] = embedding[token]
        for layer in parrot.model.layers:  # the layers compute something, and change nothing much
            layer.self_attn.o_proj.weight.mul_(0.01)
            layer.mlp.down_proj.weight.mul_(0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parrot.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def text_file(tmp_path: Path) -> Callable[[bytes], str]:
    """Writes a prompt file."""

    def write(content: bytes) -> str:
        file = tmp_path / "prompt.txt"
        file.write_bytes(content)
        return str(file)

    return write
