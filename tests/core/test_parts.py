"""Parts are resolved once: one look for plugins and one object of each part, for a decoder and for a command."""

import ast
import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
import torch

import talon_core
from talon_core import drawn
from talon_core.cli import main
from talon_core.cli import options as opts
from talon_core.cli.helps import attribute_helps
from talon_core.decoding.loading import decoder_for_model
from talon_core.plugins import registry
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import load_registry
from talon_tests.tiny_models import tiny_model

COUNTED = '''
"""A policy, a rule and a drafter that note when one of them is made."""

import attrs

from talon_core import hookimpl
from talon_drafters.ngram import Ngram
from talon_strategies.chain import Chain
from talon_strategies.rules.match import Match

MADE = []


@attrs.frozen
class CountedChain(Chain):
    name = "counted-chain"
    default_rule = "counted-match"

    def begin(self, info):
        return self  # it remembers nothing

    def __attrs_post_init__(self):
        MADE.append(self.name)


@attrs.frozen
class CountedMatch(Match):
    name = "counted-match"

    def __attrs_post_init__(self):
        MADE.append(self.name)


@attrs.frozen
class CountedNgram(Ngram):
    name = "counted-ngram"

    @classmethod
    def rank_for(cls, model):
        return 10**6

    def __attrs_post_init__(self):
        Ngram.__attrs_post_init__(self)
        MADE.append(self.name)


@hookimpl
def talon_policies():
    return [CountedChain]


@hookimpl
def talon_rules():
    return [CountedMatch]


@hookimpl
def talon_drafters():
    return [CountedNgram]
'''

ONE_OF_EACH = {"counted-chain": 1, "counted-match": 1, "counted-ngram": 1}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the counted parts that were made, one for each time; they are installed as somebody's plugin."""
    record = tmp_path / "counted-1.0.dist-info"
    record.mkdir()
    (tmp_path / "counted.py").write_text(COUNTED)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: counted\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("[talon]\ncounted = counted\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TALON_DATA", str(tmp_path / "data"))
    yield importlib.import_module("counted").MADE
    del sys.modules["counted"]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A line for each look for plugins."""
    found: list[Any] = []
    find = registry._installed_plugins  # in tests it remembers, so that not every look asks for entry points

    def counted() -> Any:
        found.append("looked")
        return find()

    monkeypatch.setattr(registry, "_installed_plugins", counted)
    return found


PARTS: dict[str, dict[str, Any]] = {
    "all are named": {"drafter": "counted-ngram", "policy": "counted-chain:length=2", "rule": "counted-match"},
    "the rule is chosen": {"drafter": "counted-ngram", "policy": "counted-chain"},
    "the rule and the drafter are chosen": {"drafter": "auto", "policy": "counted-chain"},
    "a drafter of several": {"drafter": "hybrid:of=counted-ngram+pld", "policy": "counted-chain"},
    "a drafter of several, one of them chosen": {"drafter": "hybrid:of=auto+pld", "policy": "counted-chain"},
    "the chosen one stands there already": {"drafter": "hybrid:of=auto+counted-ngram", "policy": "counted-chain"},
    "a policy of several": {"drafter": "counted-ngram", "policy": "bandit:of=counted-chain+none"},
    "a policy of another": {
        **{"drafter": "counted-ngram", "policy": "taps:of=counted-chain[length=1]", "rule": "counted-match"},
    },
    "a schedule with a drafter": {
        **{"drafter": "pld", "policy": "counted-chain", "rule": "counted-match"},
        "schedule": "cached:instant=counted-ngram[min_match=2]",
    },
}  # fmt: skip


@pytest.mark.parametrize("case", PARTS)
def test_load_makes_each_part_once(case: str, made: list[str], scans: list[Any]) -> None:
    decoder = talon_core.load(tiny_model("llama"), **PARTS[case])
    assert Counter(made) == ONE_OF_EACH
    assert len(scans) == 1
    assert decoder.generate([5, 6, 7], max_new_tokens=6).token_ids
    assert (Counter(made), len(scans)) == (ONE_OF_EACH, 1)


@pytest.mark.parametrize("case", PARTS)
def test_as_generate_makes_each_part_once(case: str, made: list[str], scans: list[Any]) -> None:
    generate = talon_core.as_generate(**PARTS[case])
    assert generate.lossless == "claimed"
    model = tiny_model("llama")
    for _ in range(2):
        model.generate(
            torch.tensor([[5, 6, 7]]), custom_generate=generate, max_new_tokens=6, do_sample=False, pad_token_id=0
        )
    assert Counter(made) == ONE_OF_EACH
    assert len(scans) == 1


def test_plain_decoding_makes_a_rule_and_nothing_else(made: list[str]) -> None:
    talon_core.load(tiny_model("llama"), policy=None, rule="counted-match")
    assert made == ["counted-match"]


def test_what_was_resolved_can_decode_with_any_model(made: list[str], scans: list[Any]) -> None:
    resolved = resolve(Parts("counted-ngram", "counted-chain"), load_registry())
    decoders = [decoder_for_model(tiny_model(name), None, resolved) for name in ("llama", "gpt2")]
    assert Counter(made) == ONE_OF_EACH
    assert len(scans) == 1
    assert {id(decoder.policy) for decoder in decoders} == {id(resolved.policy)}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with a tokenizer that knows each token as a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = tmp_path_factory.mktemp("models") / "tiny"
    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(97)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(made)
    tiny_model("llama").save_pretrained(made)
    return str(made)


SPECS = ("--drafter", "counted-ngram", "--policy", "counted-chain:length=2")

COMMANDS: dict[str, tuple[tuple[str, ...], dict[str, int] | None]] = {
    "generate": (("generate", "t5 t6", "--max-new-tokens", "4", *SPECS), ONE_OF_EACH),
    "bench": (("bench", "run", "counted-ngram/counted-chain", "auto/counted-chain:length=2"), {
        "counted-chain": 2, "counted-match": 2, "counted-ngram": 2,
    }),
    "certify a model": (("certify", *SPECS, "--limit", "1", "--max-new-tokens", "4"), ONE_OF_EACH),
    "certify": (("certify", "--policy", "counted-chain:length=1", "--worlds", "20"), None),
    "certify a rule": (("certify", "--policy", "none", "--rule", "counted-match", "--worlds", "3"), None),
    "demo": (("demo", "--max-new-tokens", "4", *SPECS), ONE_OF_EACH),
    "doctor": (("doctor", "--drafter", "counted-ngram"), None),
    "list": (("list",), None),
    "train": (("train", "medusa", "--prompts", "no such file", "--out", "drafter"), None),
}  # fmt: skip
WITH_MODEL = {"generate", "bench", "certify a model", "demo", "doctor"}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_command_looks_for_plugins_once(
    case: str, made: list[str], scans: list[Any], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, parts = COMMANDS[case]
    options = ["--model", folder] if case in WITH_MODEL else []
    if case == "bench":
        (tmp_path / "prompts.txt").write_text("t5 t6\n")
        options += ["--prompts", "prompts.txt", "--max-new-tokens", "4", "--warmup", "0"]
    assert main([*command, *options]) == (2 if case == "train" else 0)
    assert len(scans) == 1
    if parts is not None:
        assert Counter(made) == parts


# Where parts are told of, and named


@pytest.mark.parametrize("function", [talon_core.load, talon_core.as_generate])
def test_parts_are_given_by_the_same_names_with_the_same_defaults(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    for field in attrs.fields(Parts):
        assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[field.name].default == field.default


@pytest.mark.parametrize("option", [field.name for field in attrs.fields(Parts)])
def test_each_part_is_told_of_once_and_everybody_else_points_there(option: str) -> None:
    told = attribute_helps(inspect.getdoc(talon_core.load) or "")[option]
    assert len(told) > 40
    points, own = (inspect.getdoc(talon_core.as_generate) or "").split("Args:")
    sentence = points[points.index("The parts, which are") :]
    assert f"`{option}`" in sentence.partition("are options of `talon_core.load`")[0]
    assert option not in attribute_helps(f"Args:{own}")
    assert attribute_helps(inspect.getdoc(Parts) or "") == {}


@pytest.mark.parametrize("option", ["drafter", "policy", "rule", "lossy", "attention"])
def test_the_command_line_says_what_load_says(option: str) -> None:
    said = get_args(getattr(opts, option.capitalize()))[1].help
    sentence = said.partition(" (")[0].rstrip(".").lower()
    assert attribute_helps(inspect.getdoc(talon_core.load) or "")[option].replace('"', "").startswith(sentence)


ROOT = Path(talon_core.__file__).parent
MAY_NAME = {
    *(("cli/doctor.py", "triton"), ("bench/environment.py", "triton"), ("cli/app.py", "datastore")),
    *(("peers/gguf_head.py", "eagle3"), ("peers/llama_cpp.py", "eagle3")),
}
"""The package of that name, which is looked at for its version; the command that makes an index; and what llama.cpp
calls its architecture of heads, with the drafter whose heads it reads."""


def named(path: Path, names: set[str]) -> Iterator[str]:
    """The parts that a module names outside of docstrings and comments."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose:
            yield from names & {node.value.partition(":")[0]}


def test_the_core_names_no_part_of_a_plugin_but_its_defaults() -> None:
    installed = load_registry()
    kinds = ("attention backend", "accelerator", "drafter", "rule")
    names = {name for kind in kinds for name in installed.names(kind)} - {*drawn.KINDS}
    found = {
        (path.relative_to(ROOT).as_posix(), name) for path in ROOT.rglob("*.py") for name in named(path, names)
    } - MAY_NAME
    assert found == {("defaults.py", "match"), ("defaults.py", "draft-model")}
