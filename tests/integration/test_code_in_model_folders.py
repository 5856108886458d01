"""Code that a model's folder brings runs where it was asked for, and nowhere else; nobody is asked on stdin."""

import io
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import talon_core
from talon_core.cli import main
from talon_tests.tiny_models import tiny_model

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
Path({marker!r}).touch()
class OwnConfig(LlamaConfig):
    model_type = {name!r}
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


class Folder:
    """A model's folder with code, and the file which that code makes."""

    def __init__(self, saved: Path, folder: Path, name: str, own_model: bool) -> None:
        self.path = str(folder / name)
        self._marker = folder / f"{name}-ran"
        shutil.copytree(saved, self.path)
        (Path(self.path) / "own.py").write_text(CODE.format(marker=str(self._marker), name=name))
        if own_model:
            classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
            self._change("config.json", model_type=name, architectures=["OwnModel"], auto_map=classes)
        else:
            classes = {"AutoTokenizer": [None, "own.OwnTokenizer"]}
            self._change("tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=classes)

    def _change(self, file: str, **changes: object) -> None:
        path = Path(self.path) / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    @property
    def ran(self) -> bool:
        return self._marker.exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder without code."""
    path = tmp_path_factory.mktemp("saved")
    made = Tokenizer(models.WordLevel({f"t{number}": number for number in range(97)}, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(path)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_model("llama").save_pretrained(path)
    return path


@pytest.fixture
def folder(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[..., Folder]:
    """Makes folders, and answers "y" to whoever asks."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(own_model: bool = True) -> Folder:
        # transformers keeps what was registered, so that each test needs a name of its own
        name = f"own{crc32(request.node.name.encode())}"
        return Folder(saved, tmp_path, name, own_model)

    return make


COMMANDS = {
    "generate": ["generate", "t5", "--max-new-tokens", "4", "--model"],
    "demo": ["demo", "--max-new-tokens", "4", "--model"],
    "certify": ["certify", "--max-new-tokens", "4", "--limit", "1", "--model"],
    "train": ["train", "medusa", "--self-written", "4", "--out", "out", "--model"],
    "bench": ["bench", "run", "ngram", "--prompts", "prompts.txt", "--out", "bench", "--model"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_it_unasked(
    command: str,
    folder: Callable[..., Folder],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = folder()
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("t5\n")
    assert main([*COMMANDS[command], own.path]) == 2
    out, err = capfd.readouterr()
    assert not own.ran
    assert out == ""
    assert err.splitlines()[-1].startswith(f"talon: model '{own.path}' comes with code of its own, which is run only")
    assert "give --trust-remote-code" in err


def test_doctor_does_not_run_it_unasked(folder: Callable[..., Folder], capfd: pytest.CaptureFixture[str]) -> None:
    own = folder()
    assert main(["doctor", "--json", "--model", own.path]) == 1
    (problem,) = json.loads(capfd.readouterr().out)["problems"]
    assert "give --trust-remote-code" in problem
    assert not own.ran


def test_load_does_not_run_it_unasked(folder: Callable[..., Folder]) -> None:
    own = folder()
    with pytest.raises(ValueError, match=r"from Python: trust_remote_code=True"):
        talon_core.load(own.path)
    assert not own.ran


def test_code_of_a_tokenizer_alone_is_not_run_unasked(folder: Callable[..., Folder]) -> None:
    own = folder(own_model=False)
    with pytest.raises(ValueError, match="comes with code of its own"):
        talon_core.load(own.path)
    assert not own.ran
    talon_core.load(own.path, trust_remote_code=True)
    assert own.ran


def test_code_of_a_draft_model_has_an_option_of_its_own(folder: Callable[..., Folder]) -> None:
    own = folder()
    target = tiny_model("llama")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(own.path)
    spec = f"draft-model:model={own.path}"
    with pytest.raises(ValueError, match=f"give the drafter as {spec},trust_remote_code=true"):
        talon_core.load(target, tokenizer=tokenizer, drafter=spec)
    assert not own.ran
    decoder = talon_core.load(target, tokenizer=tokenizer, drafter=f"{spec},trust_remote_code=true")
    assert own.ran
    assert decoder.generate([5, 6, 7], max_new_tokens=4).stats.draft_passes > 0


def test_a_model_is_exported_where_its_code_may_run(
    folder: Callable[..., Folder], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own, plain = folder(), tmp_path / "plain"
    arguments = ["models", "export", own.path, str(plain)]
    assert main(arguments) == 2
    assert "give --trust-remote-code" in capfd.readouterr().err
    assert not own.ran
    assert not plain.exists()
    assert main([*arguments, "--trust-remote-code"]) == 0
    assert own.ran
    assert (plain / "model.safetensors").is_file()


def test_where_it_is_asked_for_it_runs_and_decodes(
    folder: Callable[..., Folder], capfd: pytest.CaptureFixture[str]
) -> None:
    own = folder()
    arguments = ["generate", "t5 t6 t7", "--max-new-tokens", "6", "--model", own.path, "--json"]
    assert main([*arguments, "--trust-remote-code"]) == 0
    assert own.ran
    torch.manual_seed(0)
    same = LlamaForCausalLM.from_pretrained(own.path, dtype=torch.float32)
    ids = torch.tensor([[5, 6, 7]])
    expected = same.generate(ids, max_new_tokens=6, do_sample=False)[0, 3:].tolist()
    assert json.loads(capfd.readouterr().out)["token_ids"] == expected


@pytest.mark.parametrize("given", [None, "yes", 1])
def test_leave_to_run_code_is_given_by_true_and_by_nothing_else(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"trust_remote_code is {given!r}; it must be True or False"):
        talon_core.load(str(tmp_path), trust_remote_code=given)
