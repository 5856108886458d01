"""Fitting heads on traces: the examples by another way of reading them, a law that is found again, and the command."""

import json
import math
import shutil
from pathlib import Path

import attrs
import numpy as np
import pytest

from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import spelled
from talon_core.policy import SequenceInfo
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace import answers
from talon_core.trace.asking import rows_of
from talon_core.trace.columns import NO_ROW
from talon_core.trace.folder import Trace, read_trace
from talon_core.trace.record import drafter_hash, write_manifest
from talon_core.trace.replay import weight_bits_of
from talon_drafters import Ngram, Pld
from talon_strategies import SpecKV, speckv, taps
from talon_strategies.acceptance_head import AcceptanceHead
from talon_strategies.entropy import OFFERED
from talon_strategies.fitting import __main__ as command
from talon_strategies.fitting.examples import KINDS, Examples
from talon_strategies.fitting.fit import fitted, loss


@pytest.fixture(scope="module")
def text():
    return next(iter(read_trace(SHIPPED)))


def layers_along(text):
    """For each position the rows on the text, found by their tokens one after the other."""
    rows, new = text.rows, text.ids[text.prompt_tokens :].tolist()
    for position in range(len(new)):
        first, end = rows.starts[position : position + 2].tolist()
        path, row = [], first if end > first else NO_ROW
        while row != NO_ROW and position + len(path) < len(new):
            path.append(row)
            token = new[position + len(path) - 1]
            below = [one for one in range(first, end) if int(rows.above[one]) == row and int(rows.nodes[one]) == token]
            row = below[0] if below else NO_ROW
        yield position, path, new


def test_examples_of_candidates_are_those_of_the_nodes_on_the_text(text):
    examples = KINDS["taps"].read(text, text.rows, None)
    expected = []
    for position, path, new in layers_along(text):
        for depth, row in enumerate(path, start=1):
            tokens, logp = text.rows.offered([row], OFFERED)
            for rank, (token, own) in enumerate(zip(tokens[0].tolist(), logp[0].tolist(), strict=True)):
                expected.append(
                    (math.exp(own), math.log(rank + 1), math.log(depth), token == new[position + depth - 1])
                )
    found = zip(examples.believed, *examples.features.T[1:3], examples.accepted, strict=True)
    assert np.array([*found]) == pytest.approx(np.array(expected, dtype=np.float64))
    assert examples.features.shape == (len(expected), len(taps.FEATURES))
    assert 0.02 < examples.accepted.mean() < 0.07  # one of sixteen, where it is among them


def test_of_siblings_one_comes_at_most(text):
    examples = KINDS["taps"].read(text, text.rows, None)
    assert examples.accepted.reshape(-1, OFFERED).sum(axis=1).max() == 1


def test_examples_of_best_candidates_look_at_what_the_policy_looks_at(text):
    examples, all_of_them = (KINDS[kind].read(text, text.rows, None) for kind in ("specdec-plus-plus", "taps"))
    best = all_of_them.features[:, 1] == 0
    assert examples.accepted.tolist() == all_of_them.accepted[best].tolist()
    assert examples.features[:, 0] == pytest.approx(all_of_them.believed[best])
    assert examples.features[:, 2] == pytest.approx(all_of_them.features[best, 3])
    assert np.log(examples.features[:, 3]) == pytest.approx(all_of_them.features[best, 2])


def test_examples_of_chains_are_rounds_after_rounds(text):
    """By the chains of the policy `chain`: what each accepts, and the one after it."""
    examples = KINDS["speckv"].read(text, text.rows, 4)
    new = text.ids[text.prompt_tokens :].tolist()
    rows = text.rows
    best = []
    for position in range(len(new)):
        chain, row = [], rows.root(position)
        while row != NO_ROW and len(chain) < 8:
            (token,), (logp,) = (column[0] for column in rows.offered([row], 1))
            chain.append((int(token), float(np.exp(logp))))
            (row,) = rows.find(position, [row], [int(token)])
        best.append(chain)
    expected = []
    for position, chain in enumerate(best):
        for length in (2, 4, 6, 8):
            came = [token for token, _ in chain[:length]]
            accepted = next(
                (n for n, token in enumerate(came) if new[position + n : position + n + 1] != [token]), len(came)
            )
            after = position + accepted + 1
            if not chain or after >= len(new):
                continue
            for gamma in (2, 4, 6, 8):
                if after + gamma < len(new):
                    next_one = [token for token, _ in best[after][:gamma]]
                    hits = next((n for n, token in enumerate(next_one) if new[after + n] != token), len(next_one))
                    probs = [prob for _, prob in chain[:length]]
                    expected.append((sum(probs) / len(probs), min(probs), 2, gamma, hits / gamma))
    assert len(expected) > 20
    found = zip(*examples.features.T[[1, 3, 4, 5]], examples.accepted, strict=True)
    assert np.array([*found]) == pytest.approx(np.array(expected))


def known_law(count, seed=0):
    """Examples of one input, accepted with probability sigmoid(2 x - 1)."""
    random = np.random.default_rng(seed)
    seen = random.normal(3.0, 2.0, (count, 1))
    chance = 1 / (1 + np.exp(7 - 2 * seen[:, 0]))
    return Examples(seen, (random.random(count) < chance).astype(float), chance)


def test_a_law_is_found_again():
    examples, others = known_law(4000), known_law(2000, seed=1)
    head = fitted(examples, hidden=4)
    assert loss(head.accepted(others.features), others.accepted) < loss(others.believed, others.accepted) + 0.005
    assert head.accepted([[2.0], [3.5], [5.0]]) == pytest.approx([0.047, 0.5, 0.953], abs=0.04)


def test_shares_are_predicted_as_their_mean():
    examples = Examples(np.array([[0.0], [0.0], [1.0], [1.0]]), np.array([0.25, 0.75, 1.0, 0.5]), np.ones(4))
    assert fitted(examples, hidden=8).accepted([[0.0], [1.0]]) == pytest.approx([0.5, 0.75], abs=0.02)


def test_an_input_that_never_changes_changes_nothing_and_fitting_is_the_same_again():
    examples = known_law(300)
    more = Examples(np.column_stack([examples.features, np.full(300, 7.0)]), examples.accepted, examples.believed)
    head, again = fitted(more, hidden=3), fitted(more, hidden=3)
    assert head == again != fitted(more, hidden=3, seed=1)
    assert head.accepted([[3.0, 7.0]]) == head.accepted([[3.0, 0.0]])


def test_the_loss_by_hand():
    assert loss(np.array([0.5, 0.9]), np.array([1.0, 0.5])) == pytest.approx(
        -(math.log(0.5) + 0.5 * math.log(0.9) + 0.5 * math.log(0.1)) / 2
    )
    assert loss(np.array([0.0]), np.array([1.0])) < 14


@pytest.mark.parametrize("policy", KINDS)
def test_the_command_writes_a_head_that_its_policy_reads(policy, tmp_path, capsys):
    out = tmp_path / "head.safetensors"
    status = command.main([policy, str(SHIPPED), str(SHIPPED), "--out", str(out), "--hidden", "3", "--json"])
    assert status == 0
    head = AcceptanceHead.read(str(out), KINDS[policy].features)
    told = json.loads(capsys.readouterr().out)
    assert head.origin == told
    assert (told["policy"], told["drafter"], told["hidden"], len(head.hidden_bias)) == (policy, "eagle3", 3, 3)
    assert told["texts"] + told["held_out"]["texts"] == 8
    assert [one["prompts"][0]["prompts"] for one in told["traces"]] == [4, 4]
    another = {"taps": speckv.FEATURES, "speckv": taps.FEATURES, "specdec-plus-plus": taps.FEATURES}[policy]
    with pytest.raises(ValueError, match="it was fitted to look at"):
        AcceptanceHead.read(str(out), another)
    assert command.main([policy, str(SHIPPED), str(SHIPPED), "--out", str(out), "--hidden", "3"]) == 0
    assert "cross-entropy on 1 other texts" in capsys.readouterr().out


def changed(tmp_path, part, **values):
    """A trace that says something else of itself."""
    folder = tmp_path / "changed"
    shutil.copytree(SHIPPED, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest[part].update(values)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_what_cannot_be_learned_from_is_refused_in_a_sentence(tmp_path, capsys):
    out = tmp_path / "head.safetensors"

    def said(*arguments):
        assert command.main([*map(str, arguments)]) == 2
        assert not out.exists()
        (line,) = capsys.readouterr().err.splitlines()
        return line

    there = "--out", out
    assert "there is no manifest.json" in said("taps", tmp_path, *there)
    assert "have 4 texts to learn from; there must be at least 5" in said("taps", SHIPPED, *there)
    assert "--hidden is 0; it must be at least 1" in said("taps", SHIPPED, *there, "--hidden", "0")
    assert "it must be a file in a folder that exists" in said("taps", SHIPPED, "--out", tmp_path)
    assert "it must be a file in a folder that exists" in said("taps", SHIPPED, "--out", tmp_path / "no" / "head")
    narrow = changed(tmp_path, "settings", width=8)
    assert "has 8 candidates of each node; record it with --width 16" in said("taps", narrow, *there)
    shutil.rmtree(narrow)
    shallow = changed(tmp_path, "settings", depth=7)
    assert "has 7 layers at each position; record it with --depth 8" in said("speckv", shallow, *there)
    shutil.rmtree(shallow)
    other = changed(tmp_path, "drafter", name="medusa")
    assert "the traces are of the drafters eagle3, medusa" in said("taps", SHIPPED, other, *there)
    shutil.rmtree(other)
    unknown = changed(tmp_path, "drafter", reads_texts=True, spec="ngrm")
    assert "is of the drafter 'ngrm': no drafter 'ngrm'; did you mean 'ngram'" in said("taps", unknown, *there)
    shutil.rmtree(unknown)
    other_files = changed(tmp_path, "drafter", reads_texts=True, spec="ngram")
    assert "the files of 'ngram' are not those that the trace was recorded with" in said("taps", other_files, *there)


def of_texts(folder, spec):
    """The shipped texts as a trace of a drafter of texts, of which nothing is recorded."""
    made, shipped = built(load_registry(), "drafter", spec), read_trace(SHIPPED)
    drafter = {"spec": spec, "name": made.name, "reads_texts": True, "max_depth": None}
    trace = Trace(folder, shipped.manifest | {"drafter": drafter | {"sha256": drafter_hash(spec, made, None)}})
    folder.mkdir()
    write_manifest(trace)
    for text in shipped:
        trace.save(attrs.evolve(text, rows=None, along=None))
    return trace


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """What drafters of texts have said is kept in a folder of the test's own."""
    monkeypatch.setattr(answers, "cache_folder", lambda: tmp_path / "cache")


@pytest.mark.parametrize("spec", [Ngram(max_match=8), Pld()], ids=spelled)
def test_a_drafter_of_texts_is_asked_along_the_texts(tmp_path, capsys, own_cache, spec):
    out, trace = tmp_path / "head.safetensors", of_texts(tmp_path / spec.name, spelled(spec))
    for policy in KINDS:
        assert command.main([policy, *2 * [str(trace.folder)], "--out", str(out), "--hidden", "3", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        head = AcceptanceHead.read(str(out), KINDS[policy].features)
        assert (head.origin["drafter"], told["texts"] + told["held_out"]["texts"], told["left_out"]) == (
            spec.name,
            8,
            0,
        )
        counts = [
            len(KINDS[policy].read(text, rows_of(spec, text, trace, answers.ASKED), None).accepted)
            for text in trace  # as it is asked anew
        ]
        assert told["examples"] == 2 * sum(counts) - counts[0]  # the fifth of eight is held out


def test_texts_of_which_it_knows_too_much_are_left_out_and_counted(tmp_path, capsys, own_cache, monkeypatch):
    out, trace = tmp_path / "head.safetensors", of_texts(tmp_path / "ngram", "ngram")
    arguments = ["taps", *3 * [str(trace.folder)], "--out", str(out), "--hidden", "3"]
    whole, first = answers.Answers.of, next(iter(trace)).prompt
    monkeypatch.setattr(answers.Answers, "of", lambda own, text: None if text.prompt == first else whole(own, text))
    assert command.main(arguments) == 0
    assert (
        "left out: 3 texts, along which the drafter knows more candidates than are asked for" in capsys.readouterr().out
    )
    monkeypatch.setattr(answers.Answers, "of", lambda own, text: None)
    out.unlink()
    assert command.main(arguments) == 2
    assert "have 0 texts to learn from; there must be at least 5 (left out: 12 texts, along" in capsys.readouterr().err


def test_ctrl_c_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "fitted", interrupted)
    out = tmp_path / "head.safetensors"
    assert command.main(["taps", str(SHIPPED), str(SHIPPED), "--out", str(out)]) == command.INTERRUPTED
    assert [*tmp_path.iterdir()] == []


def test_a_trace_says_how_the_weights_were_kept(tmp_path):
    trace = read_trace(changed(tmp_path, "environment", weight_bits=4))
    assert weight_bits_of(trace) == 4
    assert weight_bits_of(read_trace(SHIPPED)) is None  # an earlier version has recorded it
    assert isinstance(trace.folder, Path)


@pytest.mark.parametrize("bits", [None, 32, 16, 8, 6, 5, 4, 2])
def test_a_target_has_the_code_that_it_was_fitted_with(bits):
    """What `speckv` is told of a target while one decodes is what a trace of it says, and the code is the same."""
    trace = read_trace(SHIPPED)
    text = next(iter(trace))
    fitted = KINDS["speckv"].read(text, text.rows, bits).features[:, speckv.FEATURES.index("compression")]
    served = SpecKV().begin(SequenceInfo(30, 64, 0.0, drafter="eagle3", weight_bits=bits))
    assert set(fitted.tolist()) == {served.watched.compression}
