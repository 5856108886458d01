"""What Python's logging is told when a decoder is made."""

import logging

import pytest
import torch

import talon_core
from talon_core.attention import AttentionBackend
from talon_core.decoding.announcing import MANY_NODES, announce
from talon_core.decoding.loading import without_graphs
from talon_core.defaults import DEFAULT_POLICY
from talon_core.errors import naming
from talon_drafters.ngram import Ngram
from talon_kernels import SdpaAttention, TritonAttention
from talon_strategies import Match
from talon_tests.tiny_models import tiny_model


def told(caplog: pytest.LogCaptureFixture, level: int, policy: str | None, drafter: str = "auto") -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "talon_core"):
        talon_core.load(tiny_model("llama"), drafter=drafter, policy=policy)
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_the_parts_that_were_chosen_are_told(caplog: pytest.LogCaptureFixture) -> None:
    accelerator, parts, rule, backend = told(caplog, logging.INFO, DEFAULT_POLICY)
    assert accelerator.startswith("accelerator 'native' replaces in LlamaForCausalLM: ")
    assert parts == "drafter 'ngram' drafts for tree policy 'talon-cost'"
    assert rule == "rule 'match' accepts"
    assert backend.startswith("attention backend '")
    assert backend.endswith("compute on cpu")
    assert len(told(caplog, logging.INFO, None)) == 3


def test_a_drafter_that_is_named_where_nothing_is_drafted_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = told(caplog, logging.WARNING, "none", drafter="ngram:max_match=5")
    assert warning == f"{naming('drafter', Ngram)} drafts nothing: there is no tree policy"
    assert told(caplog, logging.WARNING, "none", drafter="none") == []


class OnGpu:
    """What is told of a target on a GPU."""

    accelerator, context_length = None, None
    attention, device = TritonAttention(), torch.device("cuda:0")


@pytest.mark.parametrize(
    ("why", "end"),
    [
        (None, "recorded as CUDA graphs"),
        ("graphs=False", "not recorded as CUDA graphs: graphs=False"),
    ],
)
def test_on_a_gpu_it_is_told_whether_passes_are_recorded(
    why: str | None, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "talon_core"):
        announce(OnGpu(), None, None, Match(), why)
    assert caplog.messages[1:] == [
        "attention backend 'triton' and no accelerator compute on cuda:0",
        f"passes over trees are {end}",
    ]


@pytest.mark.parametrize(
    ("asked", "devices", "attention", "why"),
    [
        (True, ["cuda:0"], TritonAttention(), None),
        (False, ["cuda:0"], TritonAttention(), "graphs=False"),
        (True, ["cuda:0"], SdpaAttention(), "attention backend 'sdpa' needs the host"),
        (True, ["cuda:0", "cuda:1"], TritonAttention(), "the model is on 2 devices"),
        (True, ["cuda:0", "cpu"], TritonAttention(), "the model is on 2 devices"),
        (True, ["cpu"], TritonAttention(), "the model is not on a GPU"),
    ],
)
def test_passes_are_recorded_where_a_device_can_repeat_them(
    asked: bool, devices: list[str], attention: AttentionBackend, why: str | None
) -> None:
    assert without_graphs(asked, {torch.device(name) for name in devices}, attention) == why


@pytest.mark.parametrize("policy", ["talon:budget=65536", "eagle2:budget=2000", "chain:length=5000"])
def test_a_tree_that_takes_minutes_is_warned_of_before_it_is_drafted(
    caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    (warning,) = told(caplog, logging.WARNING, policy)
    assert warning.startswith(f"tree policy '{policy.partition(':')[0]}' may verify ")
    assert "the model's context holds 256 tokens" in warning


@pytest.mark.parametrize("policy", [None, DEFAULT_POLICY, "eagle2", f"talon:budget={MANY_NODES}"])
def test_usual_trees_are_not_warned_of(caplog: pytest.LogCaptureFixture, policy: str | None) -> None:
    assert told(caplog, logging.WARNING, policy) == []
