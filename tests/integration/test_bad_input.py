"""Bad input at the command line: one sentence on stderr, none but JSON on stdout, status 2, nothing half-written."""

import json
import os
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from talon_core.cli import main
from talon_tests.tiny_models import tiny_model


def saved(folder: Path, words: int = 97) -> str:
    """A tiny model in a folder, and a tokenizer of so many words."""
    made = Tokenizer(models.WordLevel({f"t{number}": number for number in range(words)}, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_model("llama").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("target"))


Refused = Callable[..., str]


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """What `talon generate` says on stderr, which is one line, about arguments that it refuses."""
    monkeypatch.delenv("TALON_DEBUG", raising=False)

    def run(*arguments: str) -> str:
        capfd.readouterr()
        for extra in ((), ("--json",)):
            status = main(["generate", "t5 t6 t7", "--max-new-tokens", "5", *arguments, *extra])
            out, err = capfd.readouterr()
            assert status == 2
            assert err.startswith("talon: ")
            assert err.count("\n") == 1
            if extra:
                assert json.loads(out) == {"error": err.removeprefix("talon: ").rstrip("\n")}
            else:
                assert out == ""
        return err

    return run


def test_a_drafter_of_another_vocabulary(refused: Refused, model: str, tmp_path: Path) -> None:
    other = saved(tmp_path, 90)
    said = refused("--model", model, "--drafter", f"draft-model:model={other}")
    assert f"the draft model '{other}' has another vocabulary than the target (90 and 97 tokens)" in said


def test_a_drafter_that_leaves_out_layers_that_are_not_there(refused: Refused, model: str) -> None:
    said = refused("--model", model, "--drafter", "draft-model:skip=3-5")
    assert "skip names layer 4; the target has layers 0 to 3" in said


def test_a_drafter_without_a_model(refused: Refused, model: str) -> None:
    assert "needs either model=FOLDER_OR_ID or skip=LAYERS" in refused("--model", model, "--drafter", "draft-model")


def test_a_drafters_model_that_is_not_there(refused: Refused, model: str) -> None:
    assert "'./nowhere'" in refused("--model", model, "--drafter", "draft-model:model=./nowhere")


def test_a_checkpoint_of_an_unknown_layout(refused: Refused, tmp_path: Path) -> None:
    folder = saved(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({f"net.{name}": weight for name, weight in load_file(file).items()}, file, metadata={"format": "pt"})
    said = refused("--model", folder)
    assert f"model '{folder}' cannot be loaded: it lacks 39 of the weights" in said


def test_a_damaged_checkpoint(refused: Refused, tmp_path: Path) -> None:
    folder = saved(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert f"model '{folder}' cannot be loaded: SafetensorError" in refused("--model", folder)


def test_no_network(refused: Refused, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", offline)
    said = refused("--model", "some/model")
    assert "model 'some/model' cannot be loaded: there is no folder 'some/model', and https://" in said
    said = refused("--model", model, "--drafter", "draft-model:model=some/model")
    assert "model 'some/model' cannot be loaded: " in said


def test_a_policy_that_returns_nonsense(refused: Refused, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from talon_strategies import Chain

    monkeypatch.setattr(Chain, "grow", lambda *_: "nonsense")
    said = refused("--model", model, "--policy", "chain", "--drafter", "draft-model:skip=1")
    assert "tree policy 'chain' (talon_strategies.chain.Chain) returned str from grow; it must return a Growth" in said


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        ("1000000000", "has a budget of 1000000000 nodes; it must be at most 65536"),
        (
            "12345678901234567890123",
            "is '12345678901234567890123'; it must be a whole number of at most 922337203685477",
        ),
    ],
)
def test_a_budget_that_no_machine_has_room_for(refused: Refused, model: str, budget: str, why: str) -> None:
    assert why in refused("--model", model, "--policy", f"talon:budget={budget}")


def test_a_backend_that_cannot_run(refused: Refused, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from talon_kernels.backends import NativeAttention

    monkeypatch.setattr(NativeAttention, "unavailable", lambda *_: "there is no compiler")
    said = refused("--model", model, "--attention", "native")
    assert "attention backend 'native' cannot be used here: there is no compiler" in said


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_behind_stdout_is_said_in_a_sentence(model: str, forked_python: str) -> None:
    command = [forked_python, "-c", "import sys; from talon_core.cli import main; sys.exit(main())"]
    options = ["generate", "t5 t6", "--model", model, "--max-new-tokens", "5", "--json"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*command, *options], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1] == "talon: No space left on device"
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_behind_a_picture_is_said_in_a_sentence(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--model", model, "--policy", "chain", "--drafter", "draft-model:skip=1", "--max-new-tokens", "5"]
    assert main(["generate", "t5 t6", *options, "--tree-svg", "/dev/full"]) == 2
    assert capfd.readouterr().err.splitlines()[-1] == "talon: No space left on device: '/dev/full'"


def test_nothing_is_written_where_decoding_fails(
    refused: Refused, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from talon_strategies import Chain

    monkeypatch.setattr(Chain, "grow", lambda *_: None)
    options = ("--policy", "chain", "--drafter", "draft-model:skip=1", "--tree-svg", str(tmp_path / "tree.svg"))
    refused("--model", model, *options)
    assert list(tmp_path.iterdir()) == []
