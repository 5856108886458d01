"""GGUF files that are damaged, or whose metadata cannot be right, are refused in one sentence and at once."""

import struct

import numpy as np
import pytest

from talon_core.models.errors import UnreadableFile
from talon_core.models.gguf_checks import check_header
from talon_core.models.gguf_header import GgufHeader
from talon_core.models.loading import load_model
from talon_tests.tiny_gguf import write_gguf


def written(text):
    return struct.pack("<Q", len(text)) + text.encode()


def file_of(tmp_path, *values, tensors=(), version="<I", alignment=32):
    """A file with these values of its metadata, bytes, and these tensors of 8 float32 numbers: names and offsets."""
    begin = b"GGUF" + struct.pack(version, 3) + struct.pack("<QQ", len(tensors), len(values)) + b"".join(values)
    table = b"".join(written(name) + struct.pack("<IQIQ", 1, 8, 0, offset) for name, offset in tensors)
    head = begin + table
    path = tmp_path / "hand-made.gguf"
    path.write_bytes(head.ljust(-(-len(head) // alignment) * alignment, b"\0") + bytes(96))
    return path


LLAMA = written("general.architecture") + struct.pack("<I", 8) + written("llama")


def number(key, value, kind=4, form="<I"):
    return written(key) + struct.pack("<I", kind) + struct.pack(form, value)


def refused(path):
    with pytest.raises(UnreadableFile) as caught:
        GgufHeader.read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_the_metadata_says_is_read(tmp_path):
    tokens = written("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + written("a") + written("b")
    ratio = number("llama.ratio", 0.5, 6, "<f")
    path = file_of(tmp_path, LLAMA, tokens, number("split.count", 1, 2, "<H"), ratio, tensors=[("t", 0)])
    header = GgufHeader.read(path)
    assert header.architecture == "llama"
    assert header.values == {"split.count": 1, "llama.ratio": 0.5}
    assert header.lengths == {"tokenizer.ggml.tokens": 2}
    assert [(one.name, one.shape) for one in header.tensors] == [("t", (8,))]


def test_arrays_in_arrays_are_read_as_deep_as_anybody_nests_them(tmp_path):
    nested = written("deep") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 3 + struct.pack("<IQB", 0, 1, 7)
    assert GgufHeader.read(file_of(tmp_path, nested, LLAMA, tensors=[("t", 0)])).architecture == "llama"


def test_arrays_nested_without_end_are_refused(tmp_path):
    nested = written("deep") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000
    assert "its metadata 'deep' has arrays in arrays more than 8 deep; give another file" in refused(
        file_of(tmp_path, nested)
    )


def test_a_big_endian_file_is_refused_as_what_it_is(tmp_path):
    said = refused(file_of(tmp_path, version=">I"))
    assert "in big-endian order (its version reads 50331648, which is 3 backwards)" in said
    assert "gguf-convert-endian" in said


@pytest.mark.parametrize("alignment", [0, 24])
def test_an_alignment_that_is_none_is_refused(tmp_path, alignment):
    path = file_of(tmp_path, LLAMA, number("general.alignment", alignment), tensors=[("t", 0)])
    assert f"its metadata says general.alignment {alignment}; it must be a power of two, such as 32" in refused(path)


def test_a_tensor_off_the_alignment_is_refused(tmp_path):
    path = file_of(tmp_path, LLAMA, tensors=[("a", 0), ("b", 33)])
    assert "its tensor b is at offset 33, which is no multiple of the file's alignment, 32" in refused(path)


def test_tensors_that_overlap_are_refused(tmp_path):
    path = file_of(tmp_path, LLAMA, tensors=[("a", 32), ("b", 0), ("c", 32)])
    assert "its tensors a and c overlap: one ends at byte " in refused(path)


def test_two_tensors_of_a_name_are_refused(tmp_path):
    path = file_of(tmp_path, LLAMA, tensors=[("a", 0), ("a", 32)])
    assert "it has two tensors of the name a; " in refused(path)


def test_a_tensor_behind_the_end_is_refused(tmp_path):
    path = file_of(tmp_path, LLAMA, tensors=[("a", 2**63 - 32)])
    assert "is cut short or damaged: its tensor a ends at byte 9223372036854775" in refused(path)


def test_a_tensor_without_numbers_is_refused(tmp_path):
    path = file_of(tmp_path, LLAMA, tensors=[("a", 0)])
    path.write_bytes(path.read_bytes().replace(struct.pack("<IQI", 1, 8, 0), struct.pack("<IQI", 1, 0, 0)))
    assert "its tensor a of shape (0,) has no numbers" in refused(path)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a" * 300, "'" + "a" * 96 + "..."), ("a\nb", r"'a\nb'"), ("a\x1b[2Jb", r"'a\x1b[2Jb'")],
    ids=["long", "of two lines", "for the terminal"],
)
def test_a_name_that_no_sentence_can_quote_is_refused_and_shortened(tmp_path, name, shown):
    right = "; it must have at most 255 characters, all of them printable; fetch it again"
    of_tensor = refused(file_of(tmp_path, LLAMA, tensors=[(name, 0)]))
    assert f"the name of a tensor is {shown}{right}" in of_tensor
    of_key = refused(file_of(tmp_path, number(name, 1, 99), tensors=[("t", 0)]))
    assert f"a key of its metadata is {shown}{right}" in of_key
    architecture = written("general.architecture") + struct.pack("<I", 8) + written(name)
    of_architecture = refused(file_of(tmp_path, architecture, tensors=[("t", 0)]))
    assert f"general.architecture is {shown}{right}" in of_architecture


def parts(count):
    def settings(writer):
        writer.add_uint16("split.no", 0)
        writer.add_uint16("split.count", count)

    return settings


def test_a_part_of_a_split_file_is_refused_with_how_to_merge_it(tmp_path):
    without = ["blk.0.ffn_up.weight", "blk.0.ffn_down.weight"]
    path = write_gguf(tmp_path / "tiny-00001-of-00003.gguf", "Q8_0", settings=parts(3), without=without)
    with pytest.raises(ValueError, match=r"it is part 1 of 3 .*\(split\.count 3\); merge the parts first") as caught:
        load_model(str(path))
    assert "llama-gguf-split --merge" in str(caught.value)
    assert GgufHeader.read(path).architecture == "llama"  # llama.cpp reads the other parts by itself


def test_a_split_file_of_one_part_is_whole(tmp_path):
    load_model(str(write_gguf(tmp_path / "tiny.gguf", "Q8_0", settings=parts(1))))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("attention.head_count", 0, "; it must be at least 1"),
        ("attention.head_count", 3, ", and its tensor blk.0.attn_q.weight has 256 rows, which is no multiple of that"),
        ("attention.head_count_kv", 0, "; it must be at least 1"),
        ("attention.head_count_kv", 3, ", and llama.attention.head_count 4, which is no multiple of that"),
        ("attention.head_count_kv", 2**31, ", and llama.attention.head_count 4, which is no multiple of that"),
        ("rope.dimension_count", 0, "; it must be an even number of at least 2"),
        ("rope.dimension_count", 63, "; it must be an even number of at least 2"),
        ("rope.dimension_count", 2**20, ", more than the 256 of the largest dimension of a tensor of its layers"),
        ("attention.key_length", 2**20, ", more than the 256 of the largest dimension of a tensor of its layers"),
        ("context_length", 0, "; it must be at least 1"),
        ("embedding_length", 0, "; it must be at least 1"),
        ("embedding_length", 2**20, ", more than the 256 of the largest dimension of a tensor of its layers"),
        ("feed_forward_length", 2**20, ", more than the 259 of the largest dimension of its tensors"),
        ("vocab_size", 0, "; it must be at least 1"),
        ("block_count", 5000, ", and it has tensors of 1 layer only"),
    ],
)
def test_metadata_that_cannot_be_right_is_refused_before_anything_is_made(tmp_path, monkeypatch, key, value, said):
    monkeypatch.setattr("talon_core.models.gguf_model.blank_model", lambda config: pytest.fail("a model was made"))
    key = f"llama.{key}"
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0", settings=lambda writer: writer.add_uint32(key, value))
    with pytest.raises(ValueError, match="cannot be loaded") as caught:
        load_model(str(path))
    assert f"its metadata says {key} {value}{said}" in str(caught.value)


@pytest.mark.parametrize("token", ["bos", "eos", "padding", "unknown"])
def test_a_token_that_there_is_not_is_refused(tmp_path, token):
    key = f"tokenizer.ggml.{token}_token_id"
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0", settings=lambda writer: writer.add_uint32(key, 259))
    with pytest.raises(ValueError, match=rf"its metadata says {key} 259, and has 259 tokens; .* from 0 to 258"):
        load_model(str(path))


def test_a_token_that_is_no_whole_number_is_refused(tmp_path):
    key = "tokenizer.ggml.eos_token_id"
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0", settings=lambda writer: writer.add_float32(key, 1.0))
    with pytest.raises(ValueError, match=rf"its metadata says {key} 1\.0, and has 259 tokens; .* from 0 to 258"):
        load_model(str(path))


@pytest.mark.parametrize("name", ["block_count", "context_length", "attention.head_count_kv", "vocab_size"])
def test_a_size_that_is_no_whole_number_is_refused(tmp_path, name):
    key = f"llama.{name}"
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0", settings=lambda writer: writer.add_float32(key, 1.5))
    with pytest.raises(ValueError, match=rf"its metadata says {key} 1\.5; it must be a whole number"):
        load_model(str(path))


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        (b"tokenizer.ggml.tokens", r"its metadata has no tokens \(an array tokenizer\.ggml\.tokens\); give "),
        (b"tokenizer.ggml.merges", r"its metadata has no tokenizer\.ggml\.\w+, which its kind of tokenizer is "),
    ],
)
def test_a_file_without_what_its_kind_of_tokenizer_needs_is_refused(tmp_path, missing, why):
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    path.write_bytes(path.read_bytes().replace(missing, b"tokenizer.ggml.others"))
    with pytest.raises(ValueError, match=why):
        load_model(str(path))


def test_layers_without_attention_need_no_heads(tmp_path):
    def settings(writer):
        writer.add_head_count(0)

    names = [f"blk.0.{name}.weight" for name in ("attn_q", "attn_k", "attn_v", "attn_output")]
    more = {"blk.0.ssm_in.weight": np.zeros((8, 256))}
    check_header(
        GgufHeader.read(write_gguf(tmp_path / "tiny.gguf", "Q8_0", without=names, more=more, settings=settings))
    )
