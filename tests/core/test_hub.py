"""The Hugging Face Hub is asked once whether it is there; nobody waits for the retries of its client."""

import logging
import threading
import time
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError

from talon_core.models import ModelError, hub
from talon_core.models.hub import only_local
from talon_core.models.loading import load_model


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
