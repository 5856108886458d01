"""Prompt files."""

import hashlib
import json

import pytest

from talon_core.bench.prompts import Prompt, read_sets


def test_each_form_of_a_line_is_a_prompt(tmp_path):
    file = tmp_path / "mixed.jsonl"
    lines = [
        {"question_id": 7, "turns": ["one", "two"]},
        {"prompt": "three\u2028four"},
        "five",
        {"question_id": "b", "category": "x", "turns": ["six"]},
    ]
    file.write_text("\ufeff" + "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\r\n", "utf-8")
    [found] = read_sets(file)
    assert found.prompts == (
        Prompt(("one", "two"), 7),
        Prompt(("three\u2028four",)),
        Prompt(("five",)),
        Prompt(("six",), "b"),
    )
    assert [prompt.line for prompt in found.prompts] == [1, 3, 5, 7]
    assert found.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_folder_is_a_set_for_each_file_and_a_text_file_is_one_prompt(tmp_path):
    (tmp_path / "b.jsonl").write_text('"one"\n"two"\n"three"\n')
    (tmp_path / "a.txt").write_text("a text\nof two lines\n")
    (tmp_path / "notes.md").write_text("no prompts")
    text, lines = read_sets(tmp_path, limit=2)
    assert (text.name, text.prompts) == ("a", (Prompt(("a text\nof two lines\n",)),))
    assert (lines.name, len(lines.prompts), lines.total) == ("b", 2, 3)


def test_endings_may_be_in_capitals(tmp_path):
    (tmp_path / "B.JSONL").write_text('"one"\n"two"\n')
    (tmp_path / "A.Txt").write_text("a text\n")
    assert [(found.name, found.total) for found in read_sets(tmp_path)] == [("A", 1), ("B", 2)]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2 of '{file}' is not JSON"),
        ("3", "line 2 of '{file}' holds no prompt"),
        ('{"turns": []}', "line 2 of '{file}' holds no prompt"),
        ('{"turns": ["a", ""]}', "line 2 of '{file}' holds no prompt"),
        ('{"turns": "a"}', "line 2 of '{file}' holds no prompt"),
        ('{"question": "a"}', "line 2 of '{file}' holds no prompt"),
        (r'"half \ud83d"', "line 2 of '{file}' holds no prompt"),
        (r'{"prompt": "a", "question_id": "\ud83d"}', "line 2 of '{file}' has a question_id that UTF-8 cannot write"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path, line, sentence):
    file = tmp_path / "set.jsonl"
    file.write_text(f'"good"\n{line}\n')
    with pytest.raises(ValueError, match=r".") as caught:
        read_sets(file, limit=1)
    assert sentence.format(file=file) in str(caught.value)


def test_what_has_no_prompts_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no prompts"):
        read_sets(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ValueError, match=r"empty\.jsonl' is empty"):
        read_sets(tmp_path)
    (tmp_path / "empty.jsonl").write_bytes(b'"caf\xe9"')
    with pytest.raises(ValueError, match="byte 4 is 0xe9"):
        read_sets(tmp_path)
    with pytest.raises(OSError, match="No such file"):
        read_sets(tmp_path / "missing.jsonl")
    with pytest.raises(ValueError, match=r"must end in \.jsonl or \.txt"):
        read_sets(tmp_path / "prompts.csv")


def test_two_files_of_one_name_are_refused(tmp_path):
    for ending in ("jsonl", "txt"):
        (tmp_path / f"a.{ending}").write_text('"one"')
    with pytest.raises(ValueError, match="are both the set 'a'; rename one"):
        read_sets(tmp_path)


@pytest.mark.parametrize("name", [" ", "\x1b[31m", "a\nb", "\u200b", "\udcff", "\xa0\t"])
def test_a_file_whose_name_cannot_be_shown_is_refused(tmp_path, name):
    (tmp_path / f"{name}.jsonl").write_text('"one"')
    with pytest.raises(ValueError, match="names a set that cannot be shown; rename it") as caught:
        read_sets(tmp_path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["é", "two words", "mt\xa0bench", "👩\u200d🔬", "-"])
def test_any_name_that_shows_something_is_a_set(tmp_path, name):
    (tmp_path / f"{name}.jsonl").write_text('"one"')
    assert [one.name for one in read_sets(tmp_path)] == [name]
