"""Text that is streamed: whatever the tokens, and wherever they are cut, the pieces join to the text of the whole."""

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from talon_core.hf.text import DecodedStream

WORDS = ["▁", "▁▁", "▁a", "b", "▁the", "é", "�", "▁.", ".", "'s", "▁n", "'t"]
SPECIAL = ["<pad>", "<turn>"]


@functools.cache
def with_byte_fallback(strip: bool) -> Any:
    """As Gemma's (spaces stay) or Llama's (a space at the beginning is taken off)."""
    symbols = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    made = Tokenizer(models.BPE({symbol: at for at, symbol in enumerate(symbols)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    made.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=made)


@functools.cache
def of_bytes() -> Any:
    """As GPT-2's: every token is a run of bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({symbol: at for at, symbol in enumerate([*SPECIAL, *alphabet])}, []))
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=made)


@functools.cache
def of_word_pieces() -> Any:
    symbols = [*SPECIAL, "the", "##s", "dog", ".", ",", "'", "don", "##n", "##'", "##t", "!", "é"]
    made = Tokenizer(models.WordPiece({symbol: at for at, symbol in enumerate(symbols)}, unk_token="<pad>"))
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=made)


TOKENIZERS = {
    "gemma": functools.partial(with_byte_fallback, False),
    "llama": functools.partial(with_byte_fallback, True),
    "gpt2": of_bytes,
    "bert": of_word_pieces,
}


def streamed(tokenizer: Any, pieces: list[list[int]]) -> tuple[list[str], str]:
    def decode(ids: Any) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))

    stream = DecodedStream(tokenizer, decode)
    texts = [stream.push(piece) for piece in pieces]
    return [*texts, stream.end()], decode([token for piece in pieces for token in piece])


def spelled(text: str) -> list[int]:
    return [len(SPECIAL) + byte for byte in text.encode()]


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_whole(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]()
    some = st.integers(0, len(tokenizer) - 1)
    if kind in ("gemma", "llama"):  # otherwise nearly every token is a byte, and nearly none a character
        characters = st.sampled_from(["é", "€", "🎈", "a"]).map(spelled)
        words = st.sampled_from([*range(len(SPECIAL)), *range(len(SPECIAL) + 256, len(tokenizer))])
        some = st.one_of(words, some)
        run = st.one_of(characters, characters.flatmap(lambda of: st.integers(0, len(of)).map(lambda end: of[:end])))
        pieces = data.draw(st.lists(st.one_of(st.lists(some, max_size=3), run), max_size=12))
    else:
        pieces = data.draw(st.lists(st.lists(some, max_size=4), max_size=12))
    texts, whole = streamed(tokenizer, pieces)
    assert "".join(texts) == whole


@pytest.mark.parametrize("kind", ["gemma", "llama"])
def test_a_byte_that_does_not_fit_spoils_the_characters_before_it_in_both_ways(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    texts, whole = streamed(tokenizer, [spelled("€")[:3], spelled("🎈")[:2]])
    assert "".join(texts) == whole == "�" * 5


def test_characters_of_several_bytes_come_when_they_are_whole() -> None:
    texts, whole = streamed(of_bytes(), [[of_bytes().convert_tokens_to_ids(piece)] for piece in "Ã©a"])
    assert (texts, whole) == (["", "é", "a", ""], "éa")
    word = with_byte_fallback(False).convert_tokens_to_ids("b")
    texts, whole = streamed(with_byte_fallback(False), [spelled("€")[:2], spelled("€")[2:], [word]])
    assert (texts, whole) == (["", "", "€b", ""], "€b")
