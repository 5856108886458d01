"""The Hugging Face Hub is asked once whether it is there; nobody waits for the retries of its client."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HFValidationError

from talon_core.models import ModelError, hub
from talon_core.models.hub import only_local
from talon_core.models.loading import load_model
from talon_tests.tiny_models import of_words


def answers(monkeypatch: pytest.MonkeyPatch, with_error: Exception | None) -> None:
    def model_info(*_: Any, **__: Any) -> None:
        if with_error is not None:
            raise with_error

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)


def caches(monkeypatch: pytest.MonkeyPatch, path: str | None) -> None:
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, file: path)


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Whether anything answers; nobody is asked in tests."""
    answered = threading.Event()
    answered.set()
    monkeypatch.setattr(hub, "knock", lambda _: answered)
    return answered


def test_what_is_neither_here_nor_to_be_had_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, ConnectionError("Name or service not known.\nMore of it"))
    caches(monkeypatch, None)
    with pytest.raises(ModelError, match=r"^there is no folder 'a/b', and https://.* \(Name or service not known\)$"):
        only_local("a/b")
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(ValueError, match=r"^model 'a/b' cannot be loaded: there is no folder 'a/b'.*\. Give the name"):
        load_model("a/b")


def test_what_is_in_the_hubs_cache_is_read_without_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, ConnectionError("unreachable"))
    caches(monkeypatch, "/somewhere/config.json")
    asked: dict[str, Any] = {}

    def from_pretrained(path: str, **options: Any) -> None:
        asked.update(options)
        raise OSError("enough")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", from_pretrained)
    with pytest.raises(ValueError, match="enough"):
        load_model("a/b")
    assert asked["local_files_only"] is True


@pytest.mark.parametrize("said", [None, HFValidationError("no such id")])
def test_what_the_hub_says_of_an_id_is_left_to_those_who_ask_for_files(
    monkeypatch: pytest.MonkeyPatch, said: Exception | None
) -> None:
    answers(monkeypatch, said)
    assert not only_local("a/b")


def test_a_hub_that_is_slow_is_waited_for_in_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: over.wait())
    monkeypatch.setattr(hub, "SECONDS_UNTIL_NOTE", 0.01)
    monkeypatch.setattr(hub, "SECONDS_UNTIL_GIVEN_UP", 0.02)
    caches(monkeypatch, None)
    with caplog.at_level(logging.WARNING, "talon_core"), pytest.raises(ModelError, match="nothing came within"):
        only_local("a/b")
    over.set()
    assert [record.getMessage() for record in caplog.records] == ["waiting for https://huggingface.co to answer"]


@pytest.mark.timeout(20)
def test_where_nothing_at_all_answers_it_is_given_up_at_the_time_of_the_note(
    monkeypatch: pytest.MonkeyPatch, network: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    network.clear()
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: over.wait())
    monkeypatch.setattr(hub, "SECONDS_UNTIL_NOTE", 0.05)
    caches(monkeypatch, None)
    with caplog.at_level(logging.WARNING, "talon_core"), pytest.raises(ModelError, match=r"answered within 0.05 sec"):
        only_local("a/b")
    over.set()
    assert caplog.records == []


def test_a_slow_network_that_answers_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: time.sleep(0.3))
    monkeypatch.setattr(hub, "SECONDS_UNTIL_NOTE", 0.05)
    assert only_local("a/b") is False


def in_the_cache(cache: Path, revision: str, words: int) -> None:
    """A tiny model as the hub's client keeps a revision of it, with so many words that are the tokenizer's own."""
    snapshot = cache / "models--a--b" / "snapshots" / revision
    model, tokenizer = of_words()
    tokenizer.add_tokens([f"more{word}" for word in range(words)])
    model.save_pretrained(snapshot / "inside")
    tokenizer.save_pretrained(snapshot / "inside")


@pytest.mark.parametrize("said", [{"local_files_only": True}, {}])
def test_where_files_are_read_from_holds_for_the_tokenizer_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: dict[str, Any]
) -> None:
    answers(monkeypatch, ConnectionError("unreachable"))
    for revision, words in ("1" * 40, 1), ("2" * 40, 2):
        in_the_cache(tmp_path, revision, words)
    for revision, words in ("1" * 40, 1), ("2" * 40, 2):
        where: dict[str, Any] = {"revision": revision, "cache_dir": str(tmp_path), "subfolder": "inside", **said}
        _, tokenizer = load_model("a/b", **where)
        assert [word for word in tokenizer.get_added_vocab() if word.startswith("more")] == [
            f"more{word}" for word in range(words)
        ]
    with pytest.raises(ValueError, match="model 'a/b' cannot be loaded"):
        load_model("a/b", revision="3" * 40, cache_dir=str(tmp_path), subfolder="inside", **said)


def test_a_folder_of_a_folder_is_read(tmp_path: Path) -> None:
    in_the_cache(tmp_path, "1", 3)
    model, tokenizer = load_model(str(tmp_path / "models--a--b" / "snapshots" / "1"), subfolder="inside")
    assert model.config.num_hidden_layers
    assert "more2" in tokenizer.get_added_vocab()


def test_the_older_name_of_the_type_of_numbers_is_understood(tmp_path: Path) -> None:
    in_the_cache(tmp_path, "1", 1)
    folder = str(tmp_path / "models--a--b" / "snapshots" / "1" / "inside")
    assert load_model(folder, torch_dtype=torch.bfloat16)[0].dtype is torch.bfloat16
    assert load_model(folder, torch_dtype=torch.bfloat16, dtype=torch.float32)[0].dtype is torch.float32
