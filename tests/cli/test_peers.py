"""`talon bench run --peer`, with a plugin's peers and those that come with TALON, on a model of milliseconds."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from talon_core.bench.methods import parse_peer
from talon_core.bench.results import MANIFEST, RESULTS
from talon_tests.module_plugins import install

SENTENCE = "hi-🙂é~\n"
RIVALS = '''
"""Peers of somebody else."""

import json
from pathlib import Path

import attrs
import torch

from talon_core.hf.generated import generated
from talon_core.hookspecs import hookimpl
from talon_core.peer import Peer, PeerAnswer, PeerEngine

CALLS = []


def note(file, what):
    """For the test: peers are in processes of their own."""
    with Path(__file__).with_name(file).open("a") as noted:
        print(json.dumps(what), file=noted)


@attrs.frozen
class Rival(Peer):
    """Does what its mode says.

    Attributes:
        mode: what goes wrong, if anything.
    """

    name = "rival"
    mode: str = "right"

    def unavailable(self):
        return "it is of another world" if self.mode == "absent" else None

    def open(self, setting):
        if self.mode == "unfit":
            raise ValueError("it knows no such model")
        if self.mode == "engineless":
            return "engine"

        def decode(request):
            CALLS.append(request)
            note("calls", request.ids.tolist())
            if self.mode == "fails" and len(CALLS) > 2:
                raise ValueError("out of luck")
            if self.mode == "greedy-for-threads":
                torch.set_num_threads(setting.threads + 1)
            tokens = generated(setting.model, attrs.evolve(request, max_new_tokens=request.max_new_tokens + 5))
            if self.mode == "wrong":
                tokens[3] += 1
            if self.mode == "outside":
                tokens[3] = 5000
            return tokens if self.mode == "bare" else PeerAnswer([] if self.mode == "silent" else tokens, 4)

        own = {"dtype": "q4_1", "threads": setting.threads + 1} if self.mode == "unlike" else {"dtype": setting.dtype}
        return PeerEngine(decode, "1.0", **own, close=lambda: note("closed", self.mode))


@hookimpl
def talon_peers():
    return [Rival]
'''


@pytest.fixture
def rivals(tmp_path, monkeypatch):
    """Installs the plugin, and gives its module."""
    import importlib
    import sys

    install(tmp_path, "rivals", RIVALS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("rivals")
    del sys.modules["rivals"]


@pytest.fixture
def noted(rivals):
    """What the plugin's peers have noted in a file of this name."""

    def read(file):
        return [json.loads(line) for line in Path(rivals.__file__).with_name(file).read_text().splitlines()]

    return read


@pytest.fixture
def bench(talon, model, tmp_path, monkeypatch, forked_python):
    """Runs `talon bench run` with peers, and gives the command's answer and the lines by method."""
    monkeypatch.setattr("sys.executable", forked_python)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": SENTENCE * number}) for number in (1, 2, 3)))

    def run(*peers: str, options: tuple[str, ...] = (), specs: tuple[str, ...] = ("ngram",)):
        out = tmp_path / "out"
        given = [part for peer in peers for part in ("--peer", peer)]
        where = ("--prompts", str(prompts), "--model", model, "--out", str(out), "--warmup", "0")
        ran = talon("bench", "run", *specs, *given, *where, "--max-new-tokens", "12", *options)
        file = out / RESULTS
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return ran, lines

    return run


def test_peers_take_turns_with_methods_and_are_compared_token_by_token(bench, noted, talon, tmp_path):
    ran, lines = bench("rival", "rival:mode=wrong", options=("--json",))
    assert ran.status == 0, ran.err
    assert ran.answer["peers"] == ["rival", "rival:mode=wrong"]
    assert ran.answer["differing"] == {"none": 0, "ngram": 0, "rival": 0, "rival:mode=wrong": 3}
    assert [line["method"] for line in lines[:8]] == [
        *("none", "ngram", "rival", "rival:mode=wrong"),
        *("ngram", "rival", "rival:mode=wrong", "none"),
    ]
    for line in lines:
        of_peer = line["method"].startswith("rival")
        assert line["identical"] is (line["method"] != "rival:mode=wrong")
        assert line["first_difference"] == (None if line["identical"] else 3)
        assert line["lossless"] == ("measured" if of_peer else True)
        # tokens beyond the limit are cut off, and not counted
        assert len(line["token_ids"]) == line["stats"]["new_tokens"] == 12
        if of_peer:
            known = {name for name, value in line["stats"].items() if value is not None}
            assert known == {"new_tokens", "seconds", "tokens_per_second", "target_passes"}
    calls = [tuple(ids) for ids in noted("calls")]
    assert len(calls) == 6
    assert {*calls} == {*calls[::2]}
    assert noted("closed") == ["right", "wrong"]
    compared = talon("bench", "compare", str(tmp_path / "out"))
    assert compared.status == 0  # a peer is nobody's claim to be lossless
    assert "rival (peer) is equal to none on all 3 outputs" in compared.out
    assert "rival:mode=wrong (peer) differs from none on 3 of 3 outputs" in compared.out
    answer = talon("bench", "compare", str(tmp_path / "out"), "--json").answer
    assert answer["all"]["rival"]["mean_accepted_tokens"] == 3.0
    assert answer["all"]["rival"]["lossless"] == "measured"


def test_the_same_difference_of_a_method_of_ours_is_a_failure(bench, rivals, talon, tmp_path):
    bench("rival")
    file = tmp_path / "out" / RESULTS
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for method, status in (("rival", 0), ("ngram", 1)):
        next(line for line in lines if line["method"] == method)["token_ids"][3] += 1
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert talon("bench", "compare", str(tmp_path / "out")).status == status


def test_the_manifest_says_what_a_peer_is_and_tables_mark_what_is_not_alike(bench, rivals, talon, tmp_path):
    import torch

    threads = torch.get_num_threads()
    ran, _ = bench("rival:mode=unlike", "rival:mode=greedy-for-threads")
    assert ran.status == 0, ran.err
    assert torch.get_num_threads() == threads
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    peers = manifest["environment"]["peers"]
    assert peers["rival:mode=unlike"] == {"threads": threads + 1, "version": "1.0", "dtype": "q4_1", "device": "cpu"}
    assert peers["rival:mode=greedy-for-threads"]["dtype"] == "float32"
    assert manifest["settings"]["methods"][2]["peer"] == "rival:mode=unlike"
    assert "peer" not in manifest["settings"]["methods"][1]
    # names are broken in narrow tables, not in what is written for other programs
    markdown = talon("bench", "compare", str(tmp_path / "out"), "--format", "markdown").out
    assert f"`rival:mode=unlike` (peer, q4_1, {threads + 1} threads)" in markdown
    assert "`rival:mode=greedy-for-threads` (peer) |" in markdown


def test_a_run_without_peers_has_no_word_of_them_in_its_manifest(bench, tmp_path):
    bench()
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert "peers" not in manifest["environment"]
    assert all("peer" not in method for method in manifest["settings"]["methods"])


def test_a_run_whose_peer_has_failed_in_the_middle_is_gone_on_with(bench, noted, talon, tmp_path):
    ran, some = bench("rival:mode=fails")
    assert ran.status == 2
    assert "peer 'rival' (rivals.Rival) raised ValueError in decode: out of luck" in ran.err
    assert len(some) == 2 * 3
    assert noted("closed") == ["fails"]
    assert talon("bench", "compare", str(tmp_path / "out")).status == 0
    ran, lines = bench("rival:mode=fails")
    assert ran.status == 0, ran.err
    assert lines[:6] == some
    assert len(lines) == 9


@pytest.mark.parametrize(
    ("peer", "sentence"),
    [
        ("silent", "peer 'rival' (rivals.Rival) decoded no token; it must give at least one"),
        ("outside", "peer 'rival' (rivals.Rival) decoded token 5000; the vocabulary has ids 0 to 256"),
        ("bare", "from decode; it must be a PeerAnswer"),
        ("engineless", "peer 'rival' (rivals.Rival) returned 'engine' from open; it must be a PeerEngine"),
        ("unfit", "peer 'rival:mode=unfit': it knows no such model"),
    ],
)
def test_a_peer_that_breaks_its_contract_is_named(bench, rivals, peer, sentence):
    ran, lines = bench(f"rival:mode={peer}")
    assert ran.status == 2
    assert sentence in ran.err
    assert "Traceback" not in ran.err
    assert lines == []


@pytest.mark.parametrize(
    ("peers", "options", "sentence"),
    [
        (["rivel"], [], "no peer 'rivel'; did you mean 'rival'?"),
        (["rival:mood=x"], [], "peer 'rival' has no option 'mood'; did you mean 'mode'?"),
        (["rival:mode=absent"], [], "peer 'rival:mode=absent' cannot be used here: it is of another world"),
        (["rival"], ["--temperature", "0.5"], "peer 'rival' decodes greedily only, and the temperature is 0.5"),
        (["rival", "rival:mode=right"], [], "'rival' and 'rival:mode=right' are the same peer; give each one once"),
        ([" "], [], "a peer is empty"),
        (["llama-cpp:draft=magic"], [], "peer 'llama-cpp': 'draft' must be in"),
        (["llama-cpp:file=nowhere.gguf"], [], "there is no file 'nowhere.gguf'"),
        (["llama-cpp:draft=draft-simple"], [], "with a small model; give its GGUF file with draft_file="),
        (["llama-cpp:draft=draft-eagle3,draft_file=no.gguf"], [], "there is no file 'no.gguf'"),
        (["llama-cpp:draft_file=pyproject.toml"], [], "draft=none takes no draft_file; leave it out"),
        (["llama-cpp:draft=draft-eagle3,head=eagel3"], [], "head: no drafter 'eagel3'; did you mean 'eagle3'?"),
        (["llama-cpp:draft=draft-eagle3,head=ngram"], [], "a drafter without a head that llama.cpp could be given"),
        (["economize:head=nowhere"], [], "there is no folder 'nowhere'"),
        (["openvino:path=nowhere"], [], "there is no openvino_model.xml in 'nowhere'"),
        (["assistant"], [], "peer 'assistant' needs a value for model"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(
    bench, rivals, monkeypatch, tmp_path, peers, options, sentence
):
    monkeypatch.setattr("talon_core.cli.session.open_session", lambda *_, **__: pytest.fail("a model was loaded"))
    ran, _ = bench(*peers, options=tuple(options))
    assert sentence in ran.refusal
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("peer", "module"),
    [("llama-cpp", "xllamacpp"), ("economize", "economize"), ("openvino", "openvino_genai")],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(bench, monkeypatch, tmp_path, peer, module):
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    given = {"llama-cpp": "", "economize": f":head={tmp_path}", "openvino": f":path={tmp_path}"}[peer]
    monkeypatch.setattr("talon_core.peers.packages.find_spec", lambda name: None if name == module else find_spec(name))
    ran, _ = bench(peer + given)
    said = f"the package '{module}' is not installed; pip install 'talon-core[{peer}]' brings it"
    assert ran.refusal == f"peer '{peer}{given}' cannot be used here: {said}"


def test_a_peer_and_a_method_of_one_name_cannot_be_told_apart(bench, rivals, monkeypatch):
    monkeypatch.setattr(rivals.Rival, "name", "ngram")
    ran, _ = bench("ngram")
    assert "'ngram' is a method and a peer, and a run tells them apart by name" in ran.refusal


def test_llama_cpp_is_found_as_people_write_it(bench):
    for spec in ("", ":draft=ngram-simple"):
        written, registered = (parse_peer(f"{name}{spec}") for name in ("llama.cpp", "llama-cpp"))
        assert written == registered
        assert written.name == f"llama-cpp{spec}"
    ran, _ = bench("llama.cpp:draft=magic")
    assert "peer 'llama-cpp': 'draft' must be in" in ran.refusal


def test_peers_are_listed_with_their_options(talon, rivals):
    answer = talon("list", "peers", "--json").answer
    listed = {each["name"]: each for each in answer["peers"]}
    assert {"assistant", "economize", "llama-cpp", "openvino", "prompt-lookup", "rival"} == set(listed)
    assert [option["name"] for option in listed["prompt-lookup"]["options"]] == ["tokens", "longest"]


@pytest.mark.parametrize("temperature", ["0", "20"])
def test_those_of_transformers_decode_as_plain_decoding_does(bench, model, temperature):
    peers = ("prompt-lookup:tokens=3", f"assistant:model={model},tokens=4")
    ran, lines = bench(*peers, options=("--json", "--temperature", temperature), specs=("none",))
    assert ran.status == 0, ran.err
    assert len(lines) == 3 * 3
    for line in lines:
        assert line["identical"] is (True if temperature == "0" else None)
        assert len(line["token_ids"]) == 12
        if line["method"] in peers and temperature == "0":
            assert line["stats"]["target_passes"] < 12
            assert (line["stats"]["draft_passes"] > 0) is line["method"].startswith("assistant")


def test_the_peer_of_the_manual_decodes_as_plain_decoding_does(bench, rivals):
    """The hooks page's block, in the place of the plugin's own module."""
    page = (Path(__file__).parents[2] / "docs/hooks.md").read_text()
    found = re.search(r"^```python\n(import torch\nfrom talon_core.peer.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    code = "import attrs\nfrom talon_core import hookimpl\n" + found[1]
    Path(rivals.__file__).write_text(code)  # for the peer's own process
    exec(code, vars(rivals))
    ran, lines = bench("uncached", options=("--json",))
    assert ran.status == 0, ran.err
    assert ran.answer["differing"]["uncached"] == 0
    assert len(lines) == 9


def test_an_assistant_of_another_vocabulary_is_refused(bench, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from talon_tests.tiny_models import SMALL

    folder = tmp_path / "other"
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(folder)
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    ran, _ = bench(f"assistant:model={folder}")
    assert "has a vocabulary of 97 tokens, and the model one of 257; it must have the same" in ran.refusal


def test_an_old_folder_is_read_and_gone_on_with(bench, tmp_path):
    """One from before there were peers has no word of them, and neither has a new one without."""
    ran, lines = bench()
    file: Path = tmp_path / "out" / RESULTS
    file.write_text("".join(json.dumps(line) + "\n" for line in lines[:4]))
    ran, again = bench()
    assert ran.status == 0, ran.err
    assert len(again) == len(lines)
