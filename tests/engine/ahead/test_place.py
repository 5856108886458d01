"""Where drafting goes on: what this machine has not is refused before anything is loaded or started."""

from typing import Any

import numpy as np
import pytest
import torch

import talon_core
from talon_core import TableTarget
from talon_core.decoding.decoder import Decoder
from talon_core.engine.ahead.place import check_usable, parse_place
from talon_drafters import Ngram
from talon_strategies import Cached, Chain, Match


def gpus(monkeypatch: pytest.MonkeyPatch, count: int | None) -> None:
    """So many GPUs; None for a build of torch for CPUs."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: count is not None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count or 0)


@pytest.mark.parametrize(
    ("count", "place", "sentence"),
    [
        (None, "cuda:0", r"^draft_on is cuda:0, and torch \S+ is built for CPUs only; install a build for GPUs"),
        (0, "cuda:0", "^draft_on is cuda:0, and this process may use 0 GPUs; draft on a thread or cpu:1$"),
        (1, "cuda:1", "^draft_on is cuda:1, and this process may use 1 GPU; take cuda:0 at most$"),
        (2, "cuda:7", "^draft_on is cuda:7, and this process may use 2 GPUs; take cuda:1 at most$"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, count: int | None, place: str, sentence: str
) -> None:
    gpus(monkeypatch, count)
    with pytest.raises(ValueError, match=sentence):
        check_usable(parse_place(place))


def test_what_is_there_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    monkeypatch.setattr("talon_core.engine.ahead.place.usable_cores", lambda: 3)
    for place in ("thread", "cpu:2", "cuda:0", "cuda:1"):
        check_usable(parse_place(place))


@pytest.mark.parametrize("place", ["cpu:4000", "cuda:4000"])
def test_it_is_refused_before_a_model_is_looked_for_and_a_process_is_started(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("talon_core.decoding.hosting.ProcessWorker", started)
    with pytest.raises(ValueError, match=f"^draft_on is {place}, and "):
        talon_core.load("./no-such-model", drafter="ngram", policy="chain", schedule="cached", draft_on=place)
    with pytest.raises(ValueError, match=f"^draft_on is {place}, and "):
        Decoder(TableTarget(np.eye(3)), Match(), Chain(), Ngram(), schedule=Cached(), draft_on=place)


def test_a_drafter_of_texts_is_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)
    sentence = r"^draft_on is cuda:0, and drafter 'ngram' .* reads nothing but texts, for which it uses no GPU; "
    with pytest.raises(ValueError, match=sentence):
        talon_core.load("./no-such-model", drafter="ngram", policy="chain", schedule="cached", draft_on="cuda:0")
    with pytest.raises(ValueError, match=sentence):
        Decoder(TableTarget(np.eye(3)), Match(), Chain(), Ngram(), schedule=Cached(), draft_on="cuda:0")
    with pytest.raises(ValueError, match=r"^.*no-such-model"):  # a network is not, and the model is looked for
        talon_core.load("./no-such-model", drafter="eagle3", policy="chain", schedule="cached", draft_on="cuda:0")


def test_counting_gpus_makes_no_context() -> None:
    if torch.cuda.is_initialized():
        pytest.skip("a test before has made one")
    with pytest.raises(ValueError, match=r"^draft_on is cuda:4000, and "):
        check_usable(parse_place("cuda:4000"))
    assert not torch.cuda.is_initialized()
