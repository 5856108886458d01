"""The script that writes retrieval-augmented prompts finds the paragraphs that a question is about."""

import runpy
from pathlib import Path

import pytest

from talon_core.bench.prompts import read_sets

HERE = Path(__file__).parent
with pytest.MonkeyPatch.context() as path:
    path.syspath_prepend(HERE)
    SCRIPT = runpy.run_path(str(HERE / "retrieved_prompts.py"))
DRAFTERS = "A drafter proposes candidates, and a policy asks for more of them where it is confident. " * 4
TARGETS = "The target verifies all of a tree in one pass, and the rule keeps a path from its root to a leaf. " * 4


def test_paragraphs_with_the_rare_words_of_a_question_come_first():
    passages = [TARGETS.strip(), DRAFTERS.strip()]
    assert SCRIPT["retrieved"]("Where does a drafter find candidates?", passages, 1) == [passages[1]]
    assert SCRIPT["retrieved"]("Which path of the tree is kept by the rule?", passages, 2) == passages


def test_code_tables_and_what_is_too_short_are_no_passages(tmp_path):
    page = f"# Title\n\n{DRAFTERS}\n\n```python\n{TARGETS}\n```\n\n| {TARGETS} |\n\nToo short.\n"
    (tmp_path / "page.md").write_text(page)
    assert SCRIPT["passages_of"](tmp_path) == [DRAFTERS.strip()]


def test_a_folder_without_paragraphs_is_refused_and_nothing_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr("sys.argv", ["retrieved_prompts.py", str(tmp_path / "rag"), "--docs", str(tmp_path / "docs")])
    with pytest.raises(SystemExit) as ended:
        SCRIPT["main"]()
    assert ended.value.code == 2
    assert "docs' has too few paragraphs of text in .md files; each prompt takes 3" in capsys.readouterr().err
    assert not (tmp_path / "rag").exists()


def test_the_set_is_written_as_the_benchmark_reads_it(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["retrieved_prompts.py", str(tmp_path / "rag")])
    SCRIPT["main"]()
    (one,) = read_sets(tmp_path / "rag")
    prompts = [prompt.turns[0] for prompt in one.prompts]
    assert one.name == "retrieved"
    assert prompts == SCRIPT["prompts_of"](HERE.parents[1] / "docs")
    assert len({*prompts}) == len(SCRIPT["QUESTIONS"])
    assert all(prompt.count("Passage ") >= SCRIPT["PASSAGES"] for prompt in prompts)
