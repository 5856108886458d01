"""Every registered drafter of ours keeps the contract of drafters, for a tiny target with random weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from talon_core.decoding.decoder import Decoder
from talon_core.drafter import Committed, Drafter, Frontier, Part
from talon_core.hf.target import HFTarget
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build
from talon_core.request import Request
from talon_core.runtime import row_bytes
from talon_core.testing import check_drafter
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_core.tree import TokenTree
from talon_strategies import Chain, Match
from talon_tests.random_drafters import DRAFTERS, NETWORKS, drafter_specs, random_target

REGISTRY = load_registry()


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_slot_that_is_not_open_is_refused_in_words(model: Any, specs: dict[str, str], name: str) -> None:
    spec = build(REGISTRY, "drafter", specs[name])
    target = HFTarget(
        model, REGISTRY.get("attention backend", "sdpa").cls(), features=spec.features(model.config.num_hidden_layers)
    )
    drafter = spec.open(target)
    prompt = np.array([0, 1, 2])
    with target.session(), drafter.session():
        target.open(1, 60)
        drafter.open(1, prompt.copy(), 40)
        states = target.read({1: prompt[:-1]})[1]
        drafter.read({1: Part(0, 2, states)})
        root = np.zeros(1, dtype=np.int64)
        calls: dict[str, Callable[[int], Any]] = {
            "read": lambda slot: drafter.read({slot: Part(0, 2, states)}),
            "propose": lambda slot: drafter.propose([Frontier(slot, TokenTree.root(2), root, 2)]),
            "commit": lambda slot: drafter.commit({slot: Committed(np.array([1]), root, states)}),
            "resume": lambda slot: drafter.resume(0, prompt.copy(), 40, slot, 2),
            "close": drafter.close,
        }
        for call, base in ((call, getattr(Drafter, call)) for call in calls):
            if getattr(type(drafter), call) is not base:  # who does not read, or takes nothing over, asks for no slot
                for slot in (0, 9, -1):
                    with pytest.raises(ValueError, match=f"slot {slot} is not open; open are: 1$"):
                        calls[call](slot)
        calls["propose"](1)
        drafter.close(1)
        with pytest.raises(ValueError, match="slot 1 is not open; open are: none"):
            drafter.close(1)


def test_a_slot_of_a_model_that_is_not_open_is_refused_in_words(model: Any) -> None:
    target = HFTarget(model, REGISTRY.get("attention backend", "sdpa").cls())
    tokens = np.array([0])
    calls: dict[str, Callable[[int], Any]] = {
        "resume": lambda slot: target.resume(0, 8, slot, 1),
        "read": lambda slot: target.read({slot: tokens}),
        "read nothing": lambda slot: target.read({slot: tokens[:0]}),
        "prepare": lambda slot: target.prepare([slot], 4),
        "verify": lambda slot: target.verify({slot: TokenTree.root(0)}),
        "commit": lambda slot: target.commit({slot: tokens}),
        "close": target.close,
    }
    with target.session():
        target.open(1, 8)
        for call in calls.values():
            for slot in (0, 9, -1):
                with pytest.raises(ValueError, match=f"slot {slot} is not open; open are: 1$"):
                    call(slot)
        target.close(1)
        with pytest.raises(ValueError, match="slot 1 is not open; open are: none"):
            target.close(1)


CACHES = {"eagle3", "eagle", "hydra-prefix", "draft-model:skip=1"}
"""Drafters that keep keys and values of their own."""


@pytest.mark.parametrize("name", DRAFTERS)
def test_what_a_drafter_keeps_is_counted_in_rows_of_the_target(model: Any, specs: dict[str, str], name: str) -> None:
    spec = build(REGISTRY, "drafter", specs[name])
    target = HFTarget(
        model, REGISTRY.get("attention backend", "sdpa").cls(), features=spec.features(model.config.num_hidden_layers)
    )
    drafter: Any = spec.open(target)
    rooms = {0: 30, 1: 44}
    with target.session(), drafter.session():
        for slot, room in rooms.items():
            prompt = np.array([0, 1, 2, 1])
            target.open(slot, room)
            drafter.open(slot, prompt.copy(), room - 4)
            drafter.read({slot: Part(0, 3, target.read({slot: prompt[:-1]})[slot])})
            drafter.propose([Frontier(slot, TokenTree.root(1), np.zeros(1, dtype=np.int64), 2)])
        text = model.config.get_text_config()
        assert target.own_executor().cache.nbytes == target.rows(rooms) * row_bytes(text, model.dtype)
        rows = drafter.rows(rooms)
        if name in CACHES:  # there may be room for a tree that comes to no row of the cache
            kept = drafter.executor.cache.nbytes
            assert 0 < kept <= rows * row_bytes(text, model.dtype) <= 1.3 * kept + row_bytes(text, model.dtype)
        elif name == "hybrid":
            assert rows == sum(part.rows(rooms) for part in drafter._parts) > 0
        else:
            assert rows == 0


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
