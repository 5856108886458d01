"""The policy where none is named: trees that follow measured costs, or a preset of one's own where it was found."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from talon_core.bench.methods import parse_method
from talon_core.costs import Costs
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.defaults import DEFAULT_POLICY, MEASURING_POLICY
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.presets import KEPT, find_preset
from talon_core.plugins.registry import load_registry
from talon_core.policy import TreePolicy
from talon_strategies import Chain, Talon, TalonCost
from talon_tests.tiny_models import tiny_model

REGISTRY = load_registry()
ELSEWHERE = "meta"
"""A kind of device that every machine has, and on which nothing was tuned."""

OWN = "chain:length=2"
"""The policy of a default preset of one's own."""


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder."""
    monkeypatch.setenv("TALON_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def own_default(own_data: Path) -> Callable[[str], None]:
    """Keeps `OWN` as the default preset, found on a kind of device."""
    shipped = KEPT.file_of(DEFAULT_POLICY)
    assert shipped is not None

    def keep(device: str) -> None:
        data = json.loads(shipped.read_text(encoding="utf-8"))
        data["policy"], data["profile"]["machine"]["device"] = OWN, f"{device}:0"
        (own_data / "presets").mkdir()
        (own_data / "presets" / shipped.name).write_text(json.dumps(data), encoding="utf-8")

    return keep


def taken(device: str, **parts: Any) -> tuple[Any, TreePolicy | None]:
    """The spec and the policy for a model on a kind of device."""
    made = resolve(Parts(drafter="ngram", **parts), REGISTRY).for_model(tiny_model("llama").to(device))
    assert made.found_on is None
    assert made.for_model(tiny_model("llama")) is made  # once it is chosen it stays
    return made.parts.policy, made.policy


@pytest.mark.parametrize("device", ["cpu", ELSEWHERE])
def test_the_trees_of_the_preset_that_comes_with_talon_follow_measured_costs(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "talon_core"):
        spec, policy = taken(device)
    assert spec == find_preset(DEFAULT_POLICY).policy
    assert isinstance(policy, TalonCost)
    assert not [one for one in caplog.records if "by default" in one.getMessage()]  # nothing takes its place
    assert resolve(Parts("ngram"), REGISTRY).found_on is None


def test_on_a_device_of_the_kind_that_it_was_found_on_it_is_the_preset(own_default: Callable[[str], None]) -> None:
    own_default("cpu")
    spec, policy = taken("cpu")
    assert spec == OWN
    assert policy == Chain(2)


def test_on_another_kind_of_device_its_trees_follow_measured_costs(
    own_default: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    own_default("cpu")
    with caplog.at_level(logging.INFO, "talon_core"):
        spec, policy = taken(ELSEWHERE)
    assert spec == MEASURING_POLICY
    assert isinstance(policy, TalonCost)
    told = [one.getMessage() for one in caplog.records if "by default" in one.getMessage()]
    assert told == [
        "tree policy 'talon-cost' is taken by default: the preset 'default' was found with a model on cpu, and this "
        "one is on meta"
    ]


@pytest.mark.parametrize("policy", ["talon:budget=5", "default:length=3", "chain", Talon(), "none", None])
def test_what_was_asked_for_is_never_replaced(policy: Any, own_default: Callable[[str], None]) -> None:
    own_default("cpu")
    assert taken(ELSEWHERE, policy=policy) == taken("cpu", policy=policy)


def test_a_drafter_that_is_chosen_for_the_model_and_a_rule_that_was_asked_for_go_with_it(
    own_default: Callable[[str], None],
) -> None:
    own_default("cpu")
    made = resolve(Parts(rule="hybrid"), REGISTRY).for_model(tiny_model("llama").to(ELSEWHERE))
    assert (made.parts.drafter, made.parts.policy, made.parts.rule) == ("ngram", MEASURING_POLICY, "hybrid")


def test_what_was_found_on_another_kind_of_device_is_not_taken_on_a_cpu(own_default: Callable[[str], None]) -> None:
    own_default(ELSEWHERE)
    assert taken(ELSEWHERE)[0] == OWN
    assert taken("cpu")[0] == MEASURING_POLICY


def test_decoders_of_the_default_and_of_what_it_stands_for_are_told_apart(own_default: Callable[[str], None]) -> None:
    """On another kind of device they are not the same."""
    own_default("cpu")
    default, named = (resolve(Parts("ngram", policy), REGISTRY) for policy in (DEFAULT_POLICY, "talon:budget=5"))
    same = resolve(Parts("ngram", default.parts.policy), REGISTRY)
    assert default != same
    assert default != named


def test_a_method_of_a_benchmark_means_the_same_on_every_device(own_default: Callable[[str], None]) -> None:
    own_default("cpu")
    for name in ("ngram/default", "ngram//match"):
        method = parse_method(name, registry=REGISTRY)
        assert method.resolved is not None
        made = method.resolved.for_model(tiny_model("llama").to(ELSEWHERE))
        assert made.parts.policy == method.as_dict()["policy"] == find_preset(DEFAULT_POLICY).policy


@attrs.frozen
class Priced(Costs):
    """A pass takes a second, a layer a twentieth of one.

    Attributes:
        node: seconds of each node behind the first.
    """

    node: float

    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        return 1.0 + self.node * (nodes - 1)

    def draft(self, rows: int, width: int) -> float | None:
        return 0.05


def nodes(node: float) -> float:
    """How many are drafted in a round, in the mean."""
    resolved = resolve(Parts("draft-model:skip=2"), REGISTRY)
    elsewhere = resolved.for_model(tiny_model("llama").to(ELSEWHERE))
    decoder: Decoder = decoder_for_model(tiny_model("llama"), None, elsewhere, Priced(node))
    result = decoder.generate(np.array([5, 6, 7, 8]), max_new_tokens=40)
    plain = decoder_for_model(tiny_model("llama"), None, Parts(policy=None))
    assert result.token_ids == plain.generate(np.array([5, 6, 7, 8]), max_new_tokens=40).token_ids
    return float(np.mean([len(one.tree) - 1 for one in result.rounds]))


def test_its_trees_are_large_where_a_node_is_nearly_free_and_small_where_it_is_not() -> None:
    free, dear, unaffordable = nodes(0.0005), nodes(0.2), nodes(1.5)
    assert free > 3 * dear > 0
    assert free > 8
    assert unaffordable == 0
