"""Every registered drafter of ours keeps the contract of drafters, for a tiny target with random weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from talon_core.decoding.decoder import Decoder
from talon_core.hf.target import HFTarget
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build
from talon_core.request import Request
from talon_core.testing import check_drafter
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_strategies import Chain, Match
from talon_tests.random_drafters import DRAFTERS, NETWORKS, drafter_specs, random_target

REGISTRY = load_registry()


class RecordsNothing(TapeRecorder):
    """A recorder for devices that nothing can be recorded on."""

    def record(self, function: Callable[[], Any]) -> Any:
        raise RuntimeError("nothing can be recorded here")


@pytest.fixture(scope="module")
def model() -> Any:
    return random_target()


@pytest.fixture(scope="module")
def specs(model: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return drafter_specs(model, tmp_path_factory.mktemp("heads"))


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_keeps_the_contract(model: Any, specs: dict[str, str], name: str) -> None:
    drafter = build(REGISTRY, "drafter", specs[name])
    attention = REGISTRY.get("attention backend", "sdpa").cls()
    target = HFTarget(model, attention, features=drafter.features(model.config.num_hidden_layers))
    check_drafter(drafter, target, max_examples=12)


@pytest.mark.parametrize("name", [*NETWORKS, "hybrid"])
def test_passes_that_are_recorded_keep_it_as_well(model: Any, specs: dict[str, str], name: str) -> None:
    drafter = build(REGISTRY, "drafter", specs[name])
    features = drafter.features(model.config.num_hidden_layers)
    target = HFTarget(model, TapedBackend(PlainDevice()), features=features, graphs=TapeRecorder)
    check_drafter(drafter, target, max_examples=5)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "conflayers"])  # which runs the target's own
@pytest.mark.filterwarnings("ignore:passes run without CUDA graphs:RuntimeWarning")
def test_why_its_passes_are_not_recorded_can_be_asked_of_every_drafter(
    model: Any, specs: dict[str, str], name: str
) -> None:
    drafter = build(REGISTRY, "drafter", specs[name])
    features = drafter.features(model.config.num_hidden_layers)
    target = HFTarget(model, TapedBackend(PlainDevice()), features=features, graphs=RecordsNothing)
    decoder = Decoder(target, Match(), Chain(length=2), drafter)
    opened: Any = decoder.drafter
    assert opened.executor.failure is None
    decoder.run_all([Request(np.array([1, 2, 0, 1]), 4)])
    assert opened.executor.failure == "nothing can be recorded here"
