"""What a recording leaves on disk, and what it does with what it finds there."""

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from safetensors.numpy import load, save
from transformers import PreTrainedTokenizerFast

from talon_core.choices import SeededChoices
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.engine.generation import Generation
from talon_core.plugins.registry import load_registry
from talon_core.table import TableDrafter
from talon_core.trace.columns import NO_ROW, Rows, TextTrace
from talon_core.trace.folder import Trace, find_trace, read_trace
from talon_core.trace.methods import parse_method
from talon_core.trace.observed import Notebook, Notes, Observed
from talon_core.trace.record import Recorder
from talon_core.trace.replay import Replay, Totals
from talon_core.trace.run import replayed
from talon_core.trace.superset import BEAM, Ahead, Superset
from talon_drafters import Ngram


def same(one: TextTrace, other: TextTrace) -> bool:
    """Whether they are equal but for the time they took."""
    if one.rows is None or other.rows is None:
        return one.ids.tolist() == other.ids.tolist() and one.rows is other.rows
    columns = (name for name in ("starts", "above", "nodes", "tokens", "logp", "whole", "passes"))
    pairs = [(getattr(one.rows, name), getattr(other.rows, name)) for name in columns]
    return one.ids.tolist() == other.ids.tolist() and all(np.array_equal(*pair) for pair in pairs)


def test_every_node_that_was_drafted_from_has_its_row(tiny: Any, recorded: Callable[..., Trace]) -> None:
    trace = recorded(tiny, width=16, nodes=6, depth=4)
    for text in trace:
        rows = text.rows
        assert rows is not None
        for position in range(text.positions):
            left = text.positions - position - 1
            first, end = rows.starts[position : position + 2].tolist()
            assert (end > first) == (left > 0)
            depth = {NO_ROW: -1}
            for row in range(first, end):
                above = int(rows.above[row])
                depth[row] = depth[above] + 1
                assert above == NO_ROW or (int(rows.nodes[row]) in rows.offered([above], rows.width)[0])
                assert above == NO_ROW or rows.find(position, [above], [int(rows.nodes[row])]) == [row]
            layers = np.bincount([depth[row] for row in range(first, end)]) if end > first else np.zeros(0)
            assert len(layers) == min(4, left)
            assert layers.max(initial=0) <= 6 + BEAM + 2


def test_the_text_is_followed_as_far_as_the_drafter_offers_it(tiny: Any, recorded: Callable[..., Trace]) -> None:
    trace = recorded(tiny, width=97, nodes=1, depth=5)
    for text in trace:
        assert text.rows is not None
        new = text.ids[text.prompt_tokens :].tolist()
        for position in range(len(new) - 1):
            row = text.rows.root(position)
            left = len(new) - position - 1
            for token in new[position:][: min(4, left - 1)]:
                (row,) = text.rows.find(position, [row], [token])
                assert row != NO_ROW


def test_files_of_the_same_recording_are_equal_and_read_as_they_were(
    tiny: Any, recorder: Callable[..., Recorder], tmp_path: Path
) -> None:
    one, other = (recorder(tiny).run(tmp_path / name).trace for name in ("one", "other"))
    assert [text.set for text in one] == ["other", "some", "some", "some"]
    assert all(same(*pair) for pair in zip(one, other, strict=True))
    assert same(recorder(tiny).text("some", 2), one.text("some", 2))


def test_a_recording_that_was_interrupted_goes_on(
    tiny: Any, recorder: Callable[..., Recorder], recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    def stop(done: int, _all: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder(tiny).run(tmp_path / "trace", stop)
    begun = read_trace(tmp_path / "trace")
    assert len(begun.texts()) == 2
    (begun.folder / "texts" / "tmp123.unfinished").write_bytes(b"half")
    done = recorder(tiny).run(tmp_path / "trace")
    assert (done.texts, len(done.trace.texts()), done.trace.unfinished()) == (2, 4, [])
    assert all(same(*pair) for pair in zip(done.trace, recorded(tiny), strict=True))
    assert len(read_trace(tmp_path / "trace").manifest["sessions"]) == 2
    assert recorder(tiny).run(tmp_path / "trace").texts == 0


def test_a_recording_that_was_killed_before_its_manifest_was_there_goes_on(
    tiny: Any, recorder: Callable[..., Recorder], tmp_path: Path
) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "tmp123.unfinished").write_text("{")
    done = recorder(tiny).run(tmp_path / "trace")
    assert (done.texts, done.trace.unfinished()) == (4, [])


def test_a_target_that_says_something_else_when_it_is_asked_again_is_a_sentence(
    tiny: Any, recorder: Callable[..., Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Generation.result

    def other(generation: Generation) -> Any:
        found = result(generation)
        return attrs.evolve(found, token_ids=[*found.token_ids[:-1], (found.token_ids[-1] + 1) % 97])

    monkeypatch.setattr(Generation, "result", other)
    with pytest.raises(ValueError, match=r"^prompt 0 of the set '.*': the target gave another text when it was asked"):
        recorder(tiny).run(tmp_path / "trace")
    assert not read_trace(tmp_path / "trace").texts()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"max_new_tokens": 25}, "settings: max_new_tokens was 24 and is 25"),
        ({"drafter": "draft-model:skip=1"}, "drafter: spec was draft-model:skip=2 and is draft-model:skip=1"),
        ({"width": 8, "nodes": 3}, "settings: width was 32 and is 8; settings: nodes was 64 and is 3"),
    ],
)
def test_a_trace_of_something_else_is_not_gone_on_with(
    tiny: Any, recorder: Callable[..., Recorder], recorded: Callable[..., Trace], changes: Any, why: str
) -> None:
    with pytest.raises(ValueError, match=f"is another one, give another folder: .*{why}"):
        recorder(tiny, **changes).run(recorded(tiny).folder)


def test_a_trace_of_another_model_is_not_gone_on_with(
    tiny: Any, small: Any, recorder: Callable[..., Recorder], recorded: Callable[..., Trace]
) -> None:
    with pytest.raises(ValueError, match=r"target: vocab_size was 97 and is 11; target: weights_sha256 was"):
        recorder(small).run(recorded(tiny).folder)


class OtherWords(PreTrainedTokenizerFast):
    """Texts are the same token ids, which mean something else."""

    def get_vocab(self) -> dict[str, int]:
        return {f"other {token}": number for token, number in super().get_vocab().items()}


class NoWords(PreTrainedTokenizerFast):
    """As a tokenizer of a model's own code may be."""

    def get_vocab(self) -> dict[str, int]:
        raise NotImplementedError


def test_a_trace_of_another_tokenizer_is_not_gone_on_with(
    tiny: Any, recorder: Callable[..., Recorder], recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    (model, tokenizer), trace = tiny, recorded(tiny, "ngram", max_new_tokens=3)
    wanted = recorder(tiny, "ngram", max_new_tokens=3).wanted

    def by(kind: type[PreTrainedTokenizerFast]) -> Recorder:
        made: Any = kind(tokenizer_object=tokenizer.backend_tokenizer)
        return Recorder(wanted, model, made, Ngram(), "ngram")

    before = trace["environment"]["tokenizer_sha256"]
    with pytest.raises(ValueError, match=f"give another folder: target: tokenizer_sha256 was {before} and is "):
        by(OtherWords).run(trace.folder)
    assert by(NoWords).run(trace.folder).texts == 0  # nobody knows of it
    assert by(NoWords).run(tmp_path / "own").trace["environment"]["tokenizer_sha256"] is None


def test_a_folder_of_something_else_is_left_alone(tiny: Any, recorder: Callable[..., Recorder], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="is no folder of talon trace record"):
        recorder(tiny).run(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]


def test_a_second_recording_waits_outside(tiny: Any, recorder: Callable[..., Recorder], tmp_path: Path) -> None:
    def again(done: int, _all: int) -> None:
        if not done:
            with pytest.raises(ValueError, match="somebody is recording into"):
                recorder(tiny).run(tmp_path / "trace")

    assert recorder(tiny).run(tmp_path / "trace", again).texts == 4


@pytest.mark.parametrize("laws", [False, True])
def test_where_a_file_cannot_be_written_nothing_half_is_left(
    tiny: Any, recorder: Callable[..., Recorder], tmp_path: Path, laws: bool
) -> None:
    made = recorder(tiny, laws=laws, **({"nodes": 2, "depth": 3} if laws else {}))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # as a disk that is full
    try:
        with pytest.raises(OSError, match="File too large"):
            made.run(tmp_path / "trace")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [*(tmp_path / "trace" / "texts").iterdir()] == []
    assert made.run(tmp_path / "trace").texts == 4


def damaged(trace: Trace, folder: Path, damage: Callable[[bytes], bytes]) -> Trace:
    """A copy of a trace whose first text's file was changed."""
    own = Trace(folder, trace.manifest)
    (folder / "texts").mkdir()
    first = trace.texts()[0]
    own.file(*first).write_bytes(damage(trace.file(*first).read_bytes()))
    return own


def changed(change: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    """Damage to the columns of a text."""

    def damage(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        columns = load(data)
        change(columns)
        return save(columns, json.loads(data[8 : 8 + length])["__metadata__"])

    return damage


def with_logp_above_0(columns: Any) -> None:
    columns["logp"][0, 0] = 0.5


def with_foreign_tokens(columns: Any) -> None:
    columns["tokens"][:, 0] = 5_000


def with_tokens_twice(columns: Any) -> None:
    columns["tokens"][:, 1] = columns["tokens"][:, 0]


def with_rising_rows(columns: Any) -> None:
    columns["logp"][:, :2] = [-2.0, -1.0]


def with_passes_below_0(columns: Any) -> None:
    columns["passes"][:] = -3


def with_reach_in_parts(columns: Any) -> None:
    columns["reach"] = columns["reach"].astype(np.float32)


def with_reach_in_columns(columns: Any) -> None:
    columns["reach"] = columns["reach"][:, None]


def with_ranks_below_0(columns: Any) -> None:
    columns["ranks"][0] = -1


def with_shallow_ranks_above_the_others(columns: Any) -> None:
    columns["shallow"][0] = columns["ranks"][0] + 1


def with_fewer_shallow_ranks(columns: Any) -> None:
    columns["shallow"] = columns["shallow"][1:]


def with_a_row_below_no_row(columns: Any) -> None:
    columns["above"][1] = -7


def with_ranks_beyond_the_end(columns: Any) -> None:
    columns["reach"][-1] += 1
    columns["ranks"] = np.append(columns["ranks"], columns["ranks"][-1:])


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"something else",
    ],
    ids=["cut", "empty", "foreign"],
)
def test_a_text_that_is_none_is_told_in_a_sentence(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    trace = damaged(recorded(tiny), tmp_path, damage)
    with pytest.raises(ValueError, match=r"000-00000.safetensors' is no text of a trace, or not a whole one: ."):
        list(trace)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (with_logp_above_0, "holds a log-probability that is none"),
        (with_foreign_tokens, "holds tokens outside the vocabulary, 0 to 96"),
        (with_tokens_twice, "is not sorted, or holds a token twice"),
        (with_rising_rows, "is not sorted, or holds a token twice"),
    ],
)
@pytest.mark.parametrize("spec", ["talon", "adaedl:length=6"])
def test_numbers_that_were_changed_are_told_when_they_are_looked_at(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path, change: Callable[[Any], None], what: str, spec: str
) -> None:
    trace = damaged(recorded(tiny), tmp_path, changed(change))
    with pytest.raises(
        ValueError, match=f"^prompt 0 of the set '.+': a row of the trace {what}; its file was changed$"
    ):
        replayed(trace, [parse_method(spec, trace, load_registry())])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (with_passes_below_0, "it has -3 draft passes of a layer"),
        (with_ranks_beyond_the_end, "its ranks lead beyond its end"),
        (with_reach_in_parts, "its ranks or its rows are no whole numbers"),
        (with_reach_in_columns, "its ranks are not those of "),
        (with_ranks_below_0, "its ranks and their counts differ"),
        (
            with_shallow_ranks_above_the_others,
            r"its 'shallow' has the rank \d+, which must be from 0 to \d+ as in 'ranks'",
        ),
        (with_fewer_shallow_ranks, r"its 'shallow' is no whole number for each of its \d+ 'ranks'"),
        (with_a_row_below_no_row, "rows do not stand in the order of those above them"),
    ],
)
def test_numbers_that_no_recording_writes_are_told_when_the_text_is_read(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path, change: Callable[[Any], None], what: str
) -> None:
    trace = damaged(recorded(tiny), tmp_path, changed(change))
    with pytest.raises(ValueError, match=f"no text of a trace, or not a whole one: {what}"):
        list(trace)


def with_another_prompt(columns: Any) -> None:
    columns["ids"][0] = (columns["ids"][0] + 1) % 97


def with_another_node(columns: Any) -> None:
    columns["nodes"][1] = (columns["nodes"][1] + 1) % 97


def with_more_known(columns: Any) -> None:
    columns["whole"][:] = ~columns["whole"]


def with_another_sum(columns: Any) -> None:
    columns["sums"][0] += 1


def with_more_passes(columns: Any) -> None:
    columns["passes"][0, 0] += 1


@pytest.mark.parametrize(
    "change", [with_another_prompt, with_another_node, with_more_known, with_another_sum, with_more_passes]
)
def test_small_columns_are_those_that_were_recorded_or_the_text_is_not_read(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path, change: Callable[[Any], None]
) -> None:
    trace = damaged(recorded(tiny), tmp_path, changed(change))
    with pytest.raises(ValueError, match="a whole one: its columns are not what was recorded, they were changed"):
        list(trace)


def with_another_likelihood(columns: Any) -> None:
    columns["logp"][:, 0] *= 0.99


def with_another_last_token(columns: Any) -> None:
    tokens = columns["tokens"]
    tokens[:, -1] = np.array([min({*range(97)} - {*row}) for row in tokens.tolist()])


@pytest.mark.parametrize("spec", ["talon", "adaedl:length=6", "chain:length=2"])
@pytest.mark.parametrize("change", [with_another_likelihood, with_another_last_token])
def test_what_was_offered_is_what_was_recorded_or_it_is_not_replayed(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path, change: Callable[[Any], None], spec: str
) -> None:
    trace = damaged(recorded(tiny), tmp_path, changed(change))
    method = parse_method(spec, trace, load_registry())
    said = "^prompt 0 of the set '.+': a row of the trace is not what was recorded; its file was changed: delete it and"
    for replay in (lambda: replayed(trace, [method]), lambda: Replay(trace).text(method, next(iter(trace)))):
        with pytest.raises(ValueError, match=said):
            replay()


def with_another_law(columns: Any) -> None:
    law = columns["law.target"]
    law[:, [0, 1]] = law[:, [1, 0]]


def test_a_law_that_was_changed_is_not_given(tiny: Any, recorded: Callable[..., Trace], tmp_path: Path) -> None:
    trace = damaged(recorded(tiny, laws=True, nodes=1, depth=2), tmp_path, changed(with_another_law))
    text = next(iter(trace))
    assert text.law is not None
    assert text.law("drafter", 0).sum() == pytest.approx(1)
    with pytest.raises(ValueError, match=r"a law in '.+-00000\.safetensors' is not what was recorded"):
        text.law("target", 0)


def with_another_total(columns: Any) -> None:
    columns["totals.law.target"][0] *= 2


def with_fewer_totals(columns: Any) -> None:
    columns["totals.law.target"] = columns["totals.law.target"][1:]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (with_another_total, "its columns are not what was recorded, they were changed"),
        (with_fewer_totals, "its laws are not those of its rows"),
    ],
)
def test_what_laws_sum_to_is_what_was_recorded_or_the_text_is_not_read(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path, change: Callable[[Any], None], what: str
) -> None:
    trace = damaged(recorded(tiny, laws=True, nodes=1, depth=2), tmp_path, changed(change))
    with pytest.raises(ValueError, match=what):
        next(iter(trace))


def without(*names: str) -> Callable[[bytes], bytes]:
    """Makes a text of one as an earlier version has written it: without these columns, and with no checksum."""

    def older(data: bytes) -> bytes:
        columns, length = load(data), int.from_bytes(data[:8], "little")
        told = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["text"])
        for of, name in ((told, "sum"), *((columns, name) for name in names)):
            del of[name]
        return save(columns, {"text": json.dumps(told)})

    return older


def test_laws_of_which_nobody_knows_the_sums_are_the_same(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    trace = recorded(tiny, laws=True, nodes=1, depth=2)
    own = damaged(trace, tmp_path, without("totals.law.target", "totals.law.drafter"))
    old, new = (next(iter(each)) for each in (own, trace))
    assert old.law is not None
    assert new.law is not None
    for name in ("target", "drafter"):
        for row in range(len(new.recorded.above)):
            assert np.array_equal(old.law(name, row), new.law(name, row))


def test_a_trace_without_checksums_is_replayed_as_one_that_has_them(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    trace = recorded(tiny)
    own = damaged(trace, tmp_path, without("sums"))
    old, new = next(iter(own)), next(iter(trace))
    assert old.recorded.sums is None
    assert new.recorded.sums is not None
    method = parse_method("talon", trace, load_registry())
    assert Totals.of(Replay(own).text(method, old)) == Totals.of(Replay(trace).text(method, new))


def test_a_text_of_another_trace_is_told_in_a_sentence(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    trace = recorded(tiny)
    own = Trace(tmp_path, trace.manifest)
    (tmp_path / "texts").mkdir()
    own.file("some", 1).write_bytes(trace.file("some", 2).read_bytes())
    with pytest.raises(ValueError, match="is prompt 2 of the set 'some'; a file was put in its place"):
        own.text("some", 1)
    fewer = {**trace.manifest, "target": {**trace["target"], "vocab_size": 50}}
    with pytest.raises(ValueError, match="is a text of another trace, or the manifest was changed"):
        list(Trace(trace.folder, fewer))
    own.file("some", 2).mkdir()
    with pytest.raises(ValueError, match="is no file; a text of the trace must be there"):
        own.text("some", 2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kind": "other"}, "it must say that its kind is 'talon trace'"),
        ({"format": 2}, "it has format 2; this version reads format 1"),
        ({"drafter": None}, "'drafter' is missing"),
        ({"drafter": {"spec": "x"}}, "'drafter' has no 'name'"),
        ({"sessions": 5}, "'sessions' or 'environment' is missing"),
    ],
)
def test_a_manifest_that_is_none_is_told_in_a_sentence(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path, change: Any, why: str
) -> None:
    told = json.loads((recorded(tiny).folder / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**told, **change}))
    with pytest.raises(ValueError, match=why):
        read_trace(tmp_path)
    assert find_trace(tmp_path / "nothing") is None


def test_a_manifest_that_names_a_set_twice_or_has_no_sizes_is_refused(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    told = json.loads((recorded(tiny).folder / "manifest.json").read_text())
    one = told["settings"]["sets"][0]
    for change, why in (({"sets": [one, one]}, "'sets' names one twice"), ({"width": 0}, "'width' in 'settings' is 0")):
        own = {**told, "settings": {**told["settings"], **change}}
        (tmp_path / "manifest.json").write_text(json.dumps(own))
        with pytest.raises(ValueError, match=why):
            read_trace(tmp_path)


def test_a_manifest_of_very_many_prompts_is_no_work(tiny: Any, recorded: Callable[..., Trace]) -> None:
    trace = recorded(tiny)
    sets = [{**one, "prompts": 10**12} for one in trace["settings"]["sets"]]
    large = Trace(trace.folder, {**trace.manifest, "settings": {**trace["settings"], "sets": sets}})
    assert large.texts() == trace.texts()
    assert large.planned_texts == 2 * 10**12


def test_sizes_that_no_tree_can_have_are_refused(tiny: Any, recorder: Callable[..., Recorder]) -> None:
    with pytest.raises(ValueError, match=r"10000 nodes in each of 8 layers make trees of up to \d+"):
        recorder(tiny, nodes=10000)


def test_two_drafters_are_told_apart_by_their_weights(tiny: Any, small: Any, recorder: Callable[..., Recorder]) -> None:
    drafters = ("draft-model:skip=2", "draft-model:skip=1", "ngram")
    made = (recorder(model, drafter) for model in (tiny, small) for drafter in drafters)
    hashes = {one.manifest()["drafter"]["sha256"] for one in made}
    assert len(hashes) == 5  # ngram has no weights


def test_the_superset_holds_the_chain_the_beam_and_the_text_besides_the_likeliest() -> None:
    rng = np.random.default_rng(0)
    laws = rng.dirichlet(np.full(30, 0.5), 20)
    ahead, notebook = Ahead(np.array([7, 3, 9, 1])), Notebook(Notes(30, 4))
    drafter = Observed(TableDrafter(laws), notebook, TableDrafter(laws), 30)
    assert notebook.notes is not None
    notebook.notes.begin()
    policy = Superset(30, 4, nodes=3, ahead=ahead)
    drafted = draft_tree(policy, drafter, 0, DraftLimits(30, 10), SeededChoices(0))
    tree = drafted.drafted
    assert len(drafted.tree) == 1
    assert tree.follow([7, 3, 9]).tolist()[1:]
    chain = [0]
    while len(chain) < 4:
        chain.append(int(TableDrafter(laws).law_after([0, *tree.tokens[chain[1:]].tolist()]).argmax()))
        chain[-1] = tree.child(chain[-2], chain[-1]) or pytest.fail("the chain is not there")
    assert max(np.bincount(tree.depths)) <= 3 + BEAM + 2


SCRIPT = """
import sys
sys.argv[0] = "talon"
from talon_core.cli import main
sys.exit(main())
"""


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_a_recording_that_is_killed_goes_on_where_it_was(
    smollm: Any, tmp_path: Path, forked_python: str, how: signal.Signals
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"turns": [f"Name {count} rivers."]}) for count in ("two", "three", "ten")))
    out = tmp_path / "trace"
    command = [forked_python, "-c", SCRIPT, "trace", "record", "--drafter", "eagle3", "--prompts", str(prompts)]
    command += ["--max-new-tokens", "12", "--nodes", "4", "--depth", "3", "--out", str(out), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while time.monotonic() < until and not [*out.glob("texts/*.safetensors")]:
        time.sleep(0.02)
    os.kill(process.pid, how)
    process.communicate()  # ends when the process does that holds its streams
    assert process.returncode == -how
    assert 1 <= len(read_trace(out).texts()) < 3
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert 1 <= answer["texts"] < 3
    assert len(read_trace(out).texts()) == 3


def test_rows_that_rise_by_the_rounding_of_half_precision_were_not_changed() -> None:
    def rows(logp: list[float]) -> Rows:
        tokens = np.array([[4, 5, 6, -1]], dtype=np.int32)
        own = np.array([[*logp, -np.inf]])
        return Rows(
            np.array([0, 1]), np.array([-1]), np.array([3]), tokens, own, np.array([True]), np.zeros((1, 1), int)
        )

    rows([-1.0, -0.995, -3.0]).check([0], 3, 10)
    with pytest.raises(ValueError, match="is not sorted, or holds a token twice"):
        rows([-1.0, -0.5, -3.0]).check([0], 3, 10)
