"""`talon datastore`: an index of texts, made as a whole or not at all, and decoding with it."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from talon_core.retrieval import TokenIndex
from talon_core.retrieval.index import TOKENS
from talon_tests.tiny_gguf import write_gguf

SENTENCE = "hi-🙂é~\n"
"""What the model of these tests says again and again."""


@pytest.fixture(autouse=True)
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two texts, in the folder where commands run."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_text(SENTENCE * 3, encoding="utf-8")
    (folder / "more.jsonl").write_text(json.dumps({"turns": ["abc", ""]}) + "\n" + json.dumps({"text": "abd"}) + "\n")
    return folder


@pytest.fixture
def build(talon: Callable[..., Any], model: str) -> Callable[..., Any]:
    """Runs `talon datastore build texts --out index` for the tiny model."""

    def run(*arguments: str, files: tuple[str, ...] = ("texts",)) -> Any:
        return talon("datastore", "build", *files, "--model", model, "--out", "index", *arguments)

    return run


def beside(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_an_index_is_made_and_decoded_with(build: Any, talon: Any, model: str, tmp_path: Path) -> None:
    bytes_ = 3 * len(SENTENCE.encode()) + 6 + 3  # one token for each byte, and one behind each document
    answer = build("--shard-tokens", "20", "--json").answer
    assert answer.pop("seconds") > 0
    assert answer == {
        "path": "index",
        "model": Path(model).name,
        "documents": 3,
        "tokens": bytes_,
        "shards": 3,
        "bytes": bytes_ * (2 + 4),
    }
    assert beside(tmp_path) == ["index", "texts"]
    arguments = ("generate", "~", "--model", model, "--max-new-tokens", "30", "--json")
    plain = talon(*arguments, "--policy", "none").answer
    drafted = talon(*arguments, "--drafter", "datastore:path=index,shortest=1", "--policy", "chain:length=6").answer
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["stats"]["target_passes"] < 15
    report = talon("doctor", "--model", model, "--drafter", "index", "--json").answer["drafter"]
    assert report["name"] == "datastore"
    assert report["recognised"]["tokens"] == bytes_


def test_tokens_that_were_added_to_a_tokenizer_alone_are_left_out(talon: Any, model: str, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "own")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "own")
    own = len(tokenizer)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(tmp_path / "own")
    (tmp_path / "texts" / "padded.txt").write_text(f"{SENTENCE}[PAD]{SENTENCE}", encoding="utf-8")
    built = talon("datastore", "build", "texts", "--model", "own", "--out", "index", "--json")
    assert built.answer["documents"] == 5
    index = TokenIndex(tmp_path / "index")
    assert index.manifest.vocab_size == own
    for name in ("own", model):
        arguments = ("generate", "~", "--model", name, "--max-new-tokens", "30", "--json")
        drafted = talon(*arguments, "--drafter", "datastore:path=index,shortest=1", "--policy", "chain:length=6")
        assert drafted.answer["stats"]["target_passes"] < 15


@pytest.mark.parametrize("name", ["own.gguf", "own"])
def test_an_index_fits_the_model_that_it_was_built_for(talon: Any, model: str, tmp_path: Path, name: str) -> None:
    if name == "own":
        shutil.copytree(model, tmp_path / "own")
    else:
        write_gguf(tmp_path / name, "Q8_0")
    assert talon("datastore", "build", "texts", "--model", name, "--out", "index").status == 0
    drafted = talon("generate", "ab", "--model", name, "--drafter", "datastore:path=index", "--max-new-tokens", "4")
    assert drafted.status == 0, drafted.err


def test_people_are_told_what_there_is(build: Any, talon: Any, model: str) -> None:
    ran = build()
    assert ran.status == 0
    assert ran.out == f"3 documents, 42 tokens of '{Path(model).name}' in 1 shard, 0.0 MB: index\n"
    assert "tokens a second" in ran.err
    assert talon("datastore", "check", "index").out == ran.out


def test_which_files_and_fields_are_read_can_be_said(build: Any, texts: Path) -> None:
    (texts / "code.py").write_text("pass")
    assert build("--include", "*.py", "--json").answer["tokens"] == 5
    (texts / "pairs.jsonl").write_text(json.dumps({"prompt": "ab", "answer": "c"}))
    fields = ("--field", "answer", "--field", "prompt")
    answer = build("--out", "pairs", *fields, "--json", files=("texts/pairs.jsonl",)).answer
    assert (answer["documents"], answer["tokens"]) == (2, 5)


def test_the_ending_of_json_lines_may_be_in_capitals(build: Any, texts: Path) -> None:
    (texts / "more.jsonl").rename(texts / "MORE.JSONL")
    answer = build("--json", files=("texts/MORE.JSONL",)).answer
    assert (answer["documents"], answer["tokens"]) == (2, 8)


def test_patterns_may_be_paths_from_a_folder_on(build: Any, texts: Path) -> None:
    (texts / "src" / "deep").mkdir(parents=True)
    (texts / "src" / "deep" / "code.py").write_text("pass")
    (texts / "code.py").write_text("passes")
    assert build("--include", "src/**/*.py", "--json").answer["tokens"] == 4 + 1


@pytest.mark.parametrize(
    ("arguments", "files", "says"),
    [
        ((), ("none.txt",), "No such file or directory: 'none.txt'"),
        ((), ("empty.txt",), "the texts are empty; give files with something in them"),
        ((), ("bare",), "the folder 'bare' has no files called *.txt or *.md or *.jsonl"),
        *(
            (
                ("--include", "*.txt", "--include", pattern),
                files,
                f"the pattern '{pattern}' names no files of a folder; ",
            )
            for pattern, files in (
                ("/tmp/*.txt", ("texts",)),
                ("", ("texts",)),
                (".", ("texts",)),
                ("../*.txt", ("bare",)),
                ("/tmp/*.txt", ("texts/one.txt",)),
            )
        ),
        (
            ("--include", "a**.txt"),
            ("texts",),
            "the pattern 'a**.txt' has ** beside something else; ** must stand alone",
        ),
        ((), ("texts", "texts/one.txt"), "'texts/one.txt' is given twice; give each file once"),
        ((), ("bytes.txt",), "'bytes.txt' is not UTF-8 text (byte 0 is 0xff); save it as UTF-8"),
        (("--field", "words"), ("texts",), "line 1 of 'texts/more.jsonl' has no text in 'words'; --field names"),
        (("--shard-tokens", "0"), ("texts",), "--shard-tokens is 0; it must be from 1 to 2147483648"),
        (("--out", "texts"), ("texts",), "'texts' is there already; name a folder that is not, or delete it first"),
        (("--out", "empty.txt"), ("texts",), "'empty.txt' is there already"),
        (("--out", "empty.txt/index"), ("texts",), "empty.txt"),
        (("--model", "smolm2-135m"), ("texts",), "no model 'smolm2-135m'; did you mean 'smollm2-135m'?"),
        (("--model", "bare"), ("texts",), "model 'bare' cannot be loaded"),
    ],
    ids=str,
)
def test_bad_input_is_refused_in_a_sentence_and_leaves_nothing(
    build: Any, tmp_path: Path, arguments: tuple[str, ...], files: tuple[str, ...], says: str
) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bytes.txt").write_bytes(b"\xff")
    (tmp_path / "bare").mkdir()
    assert says in build(*arguments, files=files).refusal
    assert beside(tmp_path) == ["bare", "bytes.txt", "empty.txt", "texts"]


def test_files_must_be_given(talon: Any) -> None:
    assert "FILES" in talon("datastore", "build", "--out", "index").refusal


def told(ran: Any) -> str:
    """All that was said, tables without their line breaks."""
    return " ".join(f"{ran.out} {ran.err}".split())


def test_an_index_is_refused_that_is_damaged_or_another_model_s(
    build: Any, talon: Any, model: str, tmp_path: Path
) -> None:
    assert build().status == 0
    generate = ("generate", "~", "--model", model, "--max-new-tokens", "2", "--drafter", "datastore:path=index")
    manifest = tmp_path / "index" / "index.json"
    whole = manifest.read_text()
    manifest.write_text(json.dumps({**json.loads(whole), "tokenizer_sha256": "other"}))
    assert "'index' was made with the tokenizer of 'parrot" in talon(*generate).refusal
    manifest.write_text(whole)
    tokens = tmp_path / "index" / TOKENS
    tokens.write_bytes(tokens.read_bytes()[::-1])
    said = "the datastore 'index' is damaged: tokens.bin is not as it was written; build it again"
    assert talon("datastore", "check", "index").refusal == said
    os.truncate(tokens, 5)
    for command in (generate, ("datastore", "check", "index"), ("doctor", "--model", model, "--drafter", "index")):
        assert "is damaged: tokens.bin has 5 bytes in place of 84; build it again" in told(talon(*command))
    assert (
        "'texts' is no datastore; give a folder of talon datastore build"
        in talon("datastore", "check", "texts", "--json").refusal
    )


@pytest.mark.parametrize("where", ["corpus.Piece", "writing.suffix_array"])
def test_ctrl_c_leaves_nothing(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"talon_core.retrieval.{where}", interrupted)
    ran = build("--json")
    assert (ran.status, ran.answer) == (130, {"error": "interrupted"})
    assert beside(tmp_path) == ["texts"]


KILLED = """
import os, signal, sys
from talon_core.cli import main
import talon_core.retrieval.writing as writing

writing.suffix_array = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


@pytest.mark.skipif(os.name == "nt", reason="sends SIGKILL")
def test_a_killed_one_leaves_no_index_and_the_next_cleans_up(
    process: Any, build: Any, model: str, tmp_path: Path
) -> None:
    status, _, _ = process(
        KILLED, "datastore", "build", str(tmp_path / "texts"), "--model", model, "--out", str(tmp_path / "index")
    )
    assert status == -signal.SIGKILL
    assert beside(tmp_path) == [".index.unfinished", "texts"]
    assert build().status == 0
    assert beside(tmp_path) == ["index", "texts"]
    TokenIndex(tmp_path / "index").check()
