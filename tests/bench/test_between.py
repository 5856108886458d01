"""Several runs side by side."""

import pytest

from talon_core.bench.between import side_by_side
from talon_core.bench.results import read_results


@pytest.fixture
def run(folder_of, measurement):
    """A run in which plain decoding and another method take so many seconds for each prompt."""

    def make(name, plain, its, passes=5, prompts=range(12), **changes):
        lines = [
            measurement(method, prompt, seconds, target_passes=took)
            for prompt in prompts
            for method, seconds, took in (("none", plain, 10), ("ngram", its, passes))
        ]
        return read_results(folder_of(lines, name, sets={"qa": 12}, **changes))

    return make


def test_runs_of_the_same_prompts_are_paired_prompt_by_prompt(run):
    found = side_by_side([run("old", 1.0, 0.5), run("new", 2.0, 0.5, passes=4)])
    assert list(found.runs) == ["old", "new"]
    assert found.runs["new"].all["ngram"].ratio.median == 4  # to the baseline of its own run
    plain, fast = found.pairs
    assert (plain.method, plain.ratio.median, plain.ratio_of_ratios) == ("none", 0.5, None)
    assert (fast.run, fast.method, fast.prompts) == ("new", "ngram", 12)
    assert (fast.ratio.median, fast.ratio_of_ratios.median) == (1, 2)  # the machine was slower, the method is faster
    assert fast.mat_ratio.median == pytest.approx(5 / 4)
    assert found.notes == [
        "new and old were not measured in turns: what slowed the machine in one of them is in their ratios"
    ]


def test_prompts_that_only_one_run_has_are_left_out(run):
    found = side_by_side([run("old", 1.0, 0.5), run("new", 1.0, 0.25, prompts=range(3, 7))])
    assert {pair.prompts for pair in found.pairs} == {4}
    assert any(note.startswith("new: warning: 4 prompts only") for note in found.notes)


def test_of_a_conversation_only_turns_that_both_runs_have_are_paired(folder_of, measurement):
    """One that was broken off has no turn that is slow, and so would be faster than itself."""

    def run(name, turns):
        lines = [
            measurement(method, prompt, seconds, turn=turn, target_passes=passes)
            for prompt in range(3)
            for turn, plain, its, took in ((0, 1.0, 0.5, 5), (1, 8.0, 2.0, 10))
            if turn < turns[prompt]
            for method, seconds, passes in (("none", plain, 10), ("ngram", its, took))
        ]
        return read_results(folder_of(lines, name, sets={"qa": 3}, all_turns=True))

    found = side_by_side([run("old", (2, 1, 2)), run("new", (2, 2, 1))])
    for pair in found.pairs:
        assert (pair.prompts, pair.ratio.median, pair.ratio.low, pair.ratio.high) == (3, 1, 1, 1)
        assert pair.mat_ratio.median == 1
    assert found.pairs[1].ratio_of_ratios.low == found.pairs[1].ratio_of_ratios.high == 1


def test_a_prompt_set_of_other_contents_is_not_paired(run):
    new = run("new", 1.0, 0.25)
    new.manifest["settings"]["sets"][0]["sha256"] = "1" * 64
    found = side_by_side([run("old", 1.0, 0.5), new])
    assert found.pairs == []
    assert "new and old are not paired: no set of prompts is the same in both" in found.notes


def test_runs_that_decoded_otherwise_are_not_paired_and_the_note_says_why(run):
    changed = run("new", 1.0, 0.25, max_new_tokens=64, environment={"weights_sha256": "abc"})
    found = side_by_side([run("old", 1.0, 0.5), changed])
    assert found.pairs == []
    assert found.notes == [
        "new and old are not paired: max_new_tokens is 64 and 128; the model's weights are not the same"
    ]
    assert found.runs["new"].all["ngram"].ratio.median == 4  # side by side they are nevertheless


def test_what_else_was_different_is_noted(run):
    new = run("new", 1.0, 0.25, environment={"threads": 8})
    new.manifest["settings"]["methods"][1]["policy"] = "chain"
    found = side_by_side([run("old", 1.0, 0.5), new])
    assert len(found.pairs) == 2
    assert "new and old differ in threads is 8 and 1; what ngram stands for" in found.notes


def test_a_run_that_was_gone_on_with_at_another_commit_says_so(run):
    old, new = run("old", 1.0, 0.5), run("new", 1.0, 0.25)
    new.manifest["sessions"][:] = [{"commit": commit} for commit in ("a" * 40, None, "b" * 40 + "+", "a" * 40)]
    note = "warning: the run was measured at several commits, in part by other code: aaaaaaaaaaaa, bbbbbbbbbbbb+"
    assert f"new: {note}" in side_by_side([old, new]).notes
    assert not [said for said in side_by_side([old, run("again", 1.0, 0.25)]).notes if "commits" in said]
    assert note in side_by_side([new]).notes


def test_folders_of_one_name_are_told_apart_by_their_paths_and_none_is_given_twice(run):
    one, other = run("a/results", 1.0, 0.5), run("b/results", 1.0, 0.5)
    assert list(side_by_side([one, other]).runs) == [str(one.folder), str(other.folder)]
    with pytest.raises(ValueError, match="is given twice; give each run once"):
        side_by_side([one, other, one])


def test_every_run_needs_the_baseline(run):
    with pytest.raises(LookupError, match="no method 'chain' in"):
        side_by_side([run("old", 1.0, 0.5), run("new", 1.0, 0.5)], "chain")
