"""`talon list` and `talon models`."""

import errno
import os
from pathlib import Path

import attrs
import pytest
import torch

from talon_core.cli import listing
from talon_core.cli.helps import attribute_helps
from talon_core.cli.listing import WORDS
from talon_core.models import MODELS
from talon_core.models.loading import load_model
from talon_core.plugins.registry import Registered, Registry, load_registry
from talon_core.policy import TreePolicy
from talon_tests.tiny_gguf import write_gguf

FIELDS = {"name", "plugin", "class", "description", "options"}
SAYS = {"policies": {"purpose", "paper"}, "drafters": {"purpose", "paper"}, "rules": {"purpose", "paper", "lossy"}}
SAYS["schedules"] = SAYS["policies"]
"""What some of them say besides."""


def test_everything_registered_is_listed_with_its_options(talon):
    answer = talon("list", "--json").answer
    assert set(answer) == {*WORDS, "failures"}
    registry = load_registry()
    for word, kind in listing.KINDS.items():
        assert [each["name"] for each in answer[word]] == registry.names(kind)
        assert all(set(each) == FIELDS | SAYS.get(word, set()) for each in answer[word])
    (talon_policy,) = (each for each in answer["policies"] if each["name"] == "talon")
    assert talon_policy["plugin"] == "talon-core:talon-strategies"
    assert talon_policy["description"].startswith("Keeps every candidate at least `mu` times")
    budget, top_k, mu, least = talon_policy["options"]
    assert (budget["name"], budget["default"], budget["required"]) == ("budget", 60, False)
    assert budget["description"].startswith("nodes of the tree, the root included")
    assert (top_k["name"], mu["default"], least["default"]) == ("top_k", 0.03, 0.0)


@pytest.mark.parametrize("word", WORDS)
def test_one_kind_is_listed_alone(talon, word):
    assert set(talon("list", word, "--json").answer) == {word, "failures"} | (
        {"presets"} if word == "policies" else set()
    )
    ran = talon("list", word)
    assert ran.status == 0
    assert ran.out.startswith(word)


GROUPS = {
    "policies": {
        "ablations of talon",
        "chains that stop by confidence",
        "choice among policies",
        "drawn children, for sampling",
        "fixed shapes",
        "lengths by what was accepted",
        "trees by confidence",
        "trees by cost",
    },
    "drafters": {"look-ups", "models", "several drafters", "trained heads"},
    "schedules": {"draft and verify in turn", "draft behind the draft", "prepare for likely outcomes"},
    "rules": {"another law than the target's", "children of any kind", "drawn children"},
}


def test_what_has_a_source_without_a_number_names_it(talon):
    answer = talon("list", "--json").answer
    papers = {word: {each["name"]: each["paper"] for each in answer[word]} for word in ("policies", "drafters")}
    assert papers["policies"]["heuristic"] == "transformers 5.23"
    assert papers["drafters"]["pld"] == "Saxena 2023"
    assert papers["drafters"]["hybrid"] == "Talon (AAAI 2026)"


@pytest.mark.parametrize("word", GROUPS)
def test_every_built_in_says_what_it_is_for(talon, word):
    ours = [one for one in talon("list", word, "--json").answer[word] if one["plugin"].startswith("talon-core:")]
    assert {one["purpose"] for one in ours} == GROUPS[word]


@pytest.mark.parametrize(
    ("word", "name", "purpose", "paper"),
    [
        ("policies", "talon", "trees by confidence", "arXiv 2601.07353"),
        ("policies", "talon-cost", "trees by cost", None),
        ("policies", "gammatune-plus", "lengths by what was accepted", "arXiv 2504.00030"),
        ("drafters", "eagle3", "trained heads", "arXiv 2503.01840"),
        ("rules", "match", "children of any kind", None),
    ],
)
def test_what_it_is_for_and_its_paper_are_told(talon, word, name, purpose, paper):
    (told,) = (one for one in talon("list", word, "--json").answer[word] if one["name"] == name)
    assert (told["purpose"], told["paper"]) == (purpose, paper)
    lines = talon("list", word).out.splitlines()
    (heading,) = (place for place, line in enumerate(lines) if line == f"  {purpose}:")
    (own,) = (place for place, line in enumerate(lines) if line.split()[:1] == [name] and "  from " in line)
    later = [place for place, line in enumerate(lines) if line.endswith(":") and line[2:-1] in GROUPS[word]]
    assert heading < own < min([place for place in later if place > heading], default=len(lines))
    assert lines[own].startswith(f"  {name}  {paper}  from " if paper else f"  {name}  from ")


@attrs.frozen
class SaysNothing(TreePolicy):
    name = "says-nothing"
    budget: int = 4

    def grow(self, tree, candidates, choices):
        raise NotImplementedError


@attrs.frozen
class SaysNonsense(SaysNothing):
    name = "says-nonsense"
    purpose = 5
    paper = " "


@attrs.frozen
class SaysTooMuch(SaysNothing):
    name = "says-too-much"
    purpose = "fixed\nshapes"


def test_whoever_does_not_say_it_comes_last(talon, monkeypatch):
    def load(*_: object) -> Registry:
        registry = load_registry()
        new = {
            cls.name: Registered("tree policy", cls.name, cls, "theirs:plugin")
            for cls in (SaysNothing, SaysNonsense, SaysTooMuch)
        }
        return Registry({**registry.entries, "tree policy": {**registry.entries["tree policy"], **new}}, {})

    monkeypatch.setattr(listing, "load_registry", load)
    told = {one["name"]: (one["purpose"], one["paper"]) for one in talon("list", "--json").answer["policies"]}
    assert told["says-nothing"] == told["says-nonsense"] == (None, None)
    assert told["says-too-much"] == ("fixed shapes", None)
    lines = talon("list", "policies").out.splitlines()
    names = [line.split()[0] for line in lines[lines.index("  other:") :] if "  from " in line]
    assert names == ["says-nonsense", "says-nothing"]
    assert "  fixed shapes:" in lines


def test_lossy_rules_are_marked(talon):
    lossy = {rule["name"]: rule["lossy"] for rule in talon("list", "rules", "--json").answer["rules"]}
    assert lossy["typical"] is True
    assert {name for name, is_so in lossy.items() if is_so} == {"typical"}
    marked = [line.split()[0] for line in talon("list", "rules").out.splitlines() if "lossy: needs --lossy" in line]
    assert marked == ["typical"]


def test_an_unknown_kind_gets_a_sentence(talon):
    ran = talon("list", "polices", "--json")
    assert "nothing is listed under 'polices'; did you mean 'policies'? there are: models, policies" in ran.refusal


def test_a_failed_plugin_is_shown_and_stops_nothing(talon, monkeypatch):
    def load(*_: object) -> Registry:
        registry = load_registry()
        return Registry(registry.entries, {"theirs:broken": "ImportError: no module named 'gone'"})

    monkeypatch.setattr(listing, "load_registry", load)
    assert talon("list", "rules", "--json").answer["failures"] == {
        "theirs:broken": "ImportError: no module named 'gone'"
    }
    ran = talon("list")
    assert ran.status == 0
    assert "theirs:broken: ImportError: no module named 'gone'" in ran.out


@attrs.frozen
class Unlisted(TreePolicy):
    name = "unlisted"
    budget: int = 4
    seed: int = attrs.field(factory=lambda: 1 // 0)

    def grow(self, tree, candidates, choices):
        raise NotImplementedError


def test_a_class_whose_options_cannot_be_described_is_named_and_the_others_are_listed(talon, monkeypatch):
    def load(*_: object) -> Registry:
        registry = load_registry()
        entry = Registered("tree policy", "unlisted", Unlisted, "theirs:plugin")
        policies = {**registry.entries["tree policy"], "unlisted": entry}
        return Registry({**registry.entries, "tree policy": policies}, {})

    monkeypatch.setattr(listing, "load_registry", load)
    answer = talon("list", "policies", "--json").answer
    assert [each["name"] for each in answer["policies"]] == load_registry().names("tree policy")
    assert answer["failures"] == {
        "theirs:plugin (tree policy 'unlisted')": f"{__name__}.Unlisted has an option 'seed' whose default cannot be "
        "made: ZeroDivisionError: integer division or modulo by zero"
    }
    assert "theirs:plugin (tree policy 'unlisted')" in talon("list").out


def test_a_docstring_s_attributes_are_read():
    docstring = "What it is.\n\nAttributes:\n    one: the first,\n        at length.\n    two: the second.\n\nMore.\n"
    assert attribute_helps(docstring) == {"one": "the first, at length.", "two": "the second."}
    assert attribute_helps("What it is.") == {}


def test_embedded_models_are_listed_without_fetching_them(talon, monkeypatch, tmp_path):
    monkeypatch.setenv("TALON_CACHE", str(tmp_path))
    models = talon("models", "list", "--json").answer["models"]
    assert [each["name"] for each in models] == list(MODELS)
    assert {each["state"] for each in models} == {"missing"}
    assert "smollm2-135m" in talon("models").out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_an_unknown_model_is_not_fetched(talon, flags):
    ran = talon("models", "fetch", "smollm2", *flags)
    assert "no embedded model 'smollm2'; did you mean 'smollm2-135m'?" in ran.refusal


def test_fetching_prints_the_folder(talon, monkeypatch, tmp_path):
    asked = []

    def fetch(name: str, *, verify: bool) -> object:
        asked.append((name, verify))
        print("a library talks")
        return tmp_path

    plain = []
    monkeypatch.setattr("talon_core.models.fetch", fetch)
    monkeypatch.setattr(
        "talon_core.models.loading.add_plain_weights", lambda *given, verify: plain.append((*given, verify))
    )
    assert talon("models", "fetch", "smollm2-135m", "--verify", "--json").answer == {
        "name": "smollm2-135m",
        "path": str(tmp_path),
    }
    assert talon("models", "fetch", "smollm2-135m").out.splitlines()[-1] == str(tmp_path)
    assert asked == [("smollm2-135m", True), ("smollm2-135m", False)]
    # so that from_pretrained reads the folder
    assert plain == [("smollm2-135m", tmp_path, True), ("smollm2-135m", tmp_path, False)]


def test_a_model_is_exported_as_plain_weights(talon, tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", {"attn_q": "Q4_1", "token_embd": "Q8_0"})
    folder = tmp_path / "plain"
    assert talon("models", "export", str(file), str(folder), "--json").answer == {
        "name": str(file),
        "path": str(folder),
    }
    (model, _), (plain, _) = load_model(str(file), dequantize=True), load_model(str(folder))
    assert all(torch.equal(plain.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "tiny.gguf"]
    again = talon("models", "export", str(file), str(folder))
    assert "is there already; give the name of a folder that is to be made" in again.refusal


@pytest.mark.parametrize("trusted", [[], ["--trust-remote-code"]])
def test_code_of_an_exported_model_is_run_where_that_is_asked_for(talon, monkeypatch, tmp_path, trusted):
    def load(name: str, *, trust_remote_code: bool, **_: object) -> None:
        raise ValueError(f"{name}: {trust_remote_code}")

    monkeypatch.setattr("talon_core.models.loading.load_model", load)
    assert talon("models", "export", "m", str(tmp_path / "out"), *trusted).refusal == f"m: {bool(trusted)}"


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (
            "README.md/out",
            "the folder is '{folder}/README.md/out', and '{folder}/README.md' is a file; it must be a folder",
        ),
        ("README.md", "'{folder}/README.md' is there already; give the name of a folder that is to be made"),
        ("ro/out", "the folder is '{folder}/ro/out', which cannot be written: Read-only file system"),
    ],
)
def test_the_place_of_an_exported_model_is_looked_at_before_it_is_loaded(talon, monkeypatch, tmp_path, place, says):
    def refuse(dir: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("talon_core.models.loading.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.setattr("talon_core.basics.paths.TemporaryFile", refuse)
    (tmp_path / "README.md").write_text("Read me.")
    assert talon("models", "export", "m", str(tmp_path / place)).refusal == says.format(folder=tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize("columns", ["0", "1", "-5", "abc", "007"])
@pytest.mark.parametrize("arguments", [["list", "rules"], ["--help"]])
def test_whatever_the_terminal_says_of_its_width_something_can_be_read(talon, monkeypatch, columns, arguments):
    monkeypatch.setenv("COLUMNS", columns)
    ran = talon(*arguments)
    assert ran.status == 0
    assert ("block" if "list" in arguments else "generate") in ran.out
    assert os.environ["COLUMNS"] == columns
