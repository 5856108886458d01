"""The file of kept rounds."""

from pathlib import Path

import pytest

from talon_core.bench.results import RESULTS, append
from talon_core.bench.rounds import ROUNDS, KeptRounds, append_rounds, forget_rounds, read_rounds
from talon_core.bench.schedule import Unit


@pytest.fixture
def kept(tmp_path):
    """A file of three prompts."""
    append_rounds(tmp_path, [KeptRounds("qa\u2028", prompt, 0, 0, "ngram", []) for prompt in range(3)])
    return tmp_path


def prompts(folder):
    return [each.prompt for each in read_rounds(folder)]


def test_what_is_not_measured_in_full_is_taken_away(kept):
    forget_rounds(kept, {Unit("qa\u2028", prompt, 0, 0) for prompt in (0, 2)})
    assert prompts(kept) == [0, 2]


def test_a_line_that_was_cut_is_left_out_and_the_next_one_begins_anew(kept):
    file = kept / ROUNDS
    file.write_bytes(file.read_bytes()[:-5])
    assert prompts(kept) == [0, 1]
    forget_rounds(kept, {Unit("qa\u2028", prompt, 0, 0) for prompt in range(3)})
    append_rounds(kept, [KeptRounds("qa\u2028", 7, 0, 0, "ngram", [])])
    assert prompts(kept) == [0, 1, 7]


@pytest.mark.parametrize("line", ["{", "3", '{"set": 3}', '{"set": "qa"}', "[" * 100_000])
def test_a_line_that_holds_none_is_refused_with_its_number(kept, line):
    file = kept / ROUNDS
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(ValueError, match=r"^line 4 of '.*' holds no rounds of this version: "):
        prompts(kept)


@pytest.mark.parametrize("line", ["null", "7", "[]", '{"set": []}', "[" * 100_000])
def test_a_line_of_something_else_is_refused_in_a_sentence_and_forgotten(tmp_path, line):
    (tmp_path / ROUNDS).write_text(line + "\n")
    with pytest.raises(ValueError, match=r"^line 1 of '.*' holds no rounds of this version: ") as caught:
        list(read_rounds(tmp_path))
    assert "recursion" not in str(caught.value)
    forget_rounds(tmp_path, set())
    assert (tmp_path / ROUNDS).read_text() == ""


def test_rounds_that_are_missing_are_told(kept):
    measured = {Unit("qa\u2028", prompt, 0, 0) for prompt in range(3)}
    forget_rounds(kept, measured, methods=1)
    with pytest.raises(
        ValueError, match=r"rounds.jsonl' has not the rounds of 3 of 6 measurements; it was changed, so"
    ):
        forget_rounds(kept, measured, methods=2)
    assert prompts(kept) == [0, 1, 2]
    (kept / ROUNDS).unlink()
    with pytest.raises(ValueError, match="has not the rounds of 3 of 3 measurements"):
        forget_rounds(kept, measured, methods=1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_names_the_file(tmp_path):
    for name, write in ((ROUNDS, append_rounds), (RESULTS, append)):
        (tmp_path / name).symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left on device") as error:
            write(tmp_path, [Line()])
        assert error.value.filename == str(tmp_path / name)


class Line(KeptRounds):
    """Something that can be written into either file."""

    def __init__(self):
        super().__init__("qa", 0, 0, 0, "ngram", [])

    def line(self):
        return "x\n"
