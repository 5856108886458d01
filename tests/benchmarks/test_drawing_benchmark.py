"""Time of drawing above temperature 0: node by node on the host, and all nodes at once where the scores are."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

from talon_core.hf.frontend import HFFrontend
from talon_core.rule import AcceptanceRule
from talon_strategies import RejectionWithoutReplacement, Traversal
from talon_tests.drawing_ways import ways_to_draw, ways_to_test
from talon_tests.tiny_models import tiny_model

VOCAB, VISITED = 49_152, 3
OPTIONS = {
    "temperature": {"temperature": 0.8},
    "top-k": {"temperature": 0.8, "top_k": 50},
    "top-p": {"temperature": 0.8, "top_k": 0, "top_p": 0.95},
}


def ways(nodes: int, options: dict[str, Any]) -> dict[str, Callable[[], list[int]]]:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    frontend = HFFrontend(tiny_model("llama"))
    request = frontend.request(np.array([1, 2, 3]), {"do_sample": True, **options})
    return ways_to_draw((torch.randn(nodes, VOCAB) * 3).to(device), request, VISITED)


@pytest.mark.parametrize("nodes", [8, 60])
@pytest.mark.parametrize("way", ["host", "device"])
@pytest.mark.parametrize("warped", OPTIONS)
def test_drawing(benchmark: Any, warped: str, way: str, nodes: int) -> None:
    drawn = benchmark(ways(nodes, OPTIONS[warped])[way])
    assert len(drawn) == VISITED


@pytest.mark.parametrize("nodes", [8, 60])
@pytest.mark.parametrize("warped", OPTIONS)
def test_drawing_on_the_device_over_that_on_the_host(benchmark: Any, warped: str, nodes: int) -> None:
    """`extra_info` has the ratio of medians, in turn: below 1 where it pays to draw for nodes that nobody visits."""
    in_turn = InTurn(ways(nodes, OPTIONS[warped]))
    benchmark.pedantic(in_turn, rounds=15, warmup_rounds=2)
    assert in_turn.found["host"] == in_turn.found["device"]
    benchmark.extra_info["device_over_host"] = in_turn.ratio("device", "host")


@pytest.mark.parametrize("rule", [RejectionWithoutReplacement(), Traversal()], ids=["rrsw", "traversal"])
def test_testing_on_the_device_over_that_on_the_host(benchmark: Any, rule: AcceptanceRule) -> None:
    """`extra_info` has the ratio of medians, in turn, for a tree of 57 nodes. On a CPU nothing is won but copies."""
    request = HFFrontend(tiny_model("llama")).request(np.array([1]), {"do_sample": True, "temperature": 0.8})
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    in_turn = InTurn(ways_to_test((torch.randn(57, VOCAB) * 3).to(device), request, rule, 4))
    benchmark.pedantic(in_turn, rounds=5, warmup_rounds=1)
    (host, there) = in_turn.found.values()
    assert (host.path.tolist(), host.token) == (there.path.tolist(), there.token)
    benchmark.extra_info["device_over_host"] = in_turn.ratio("device", "host")


class InTurn:
    """Calls functions one after the other, again and again, and times each call."""

    def __init__(self, ways: Mapping[str, Callable[[], Any]]) -> None:
        self._ways = ways
        self._times: dict[str, list[float]] = {name: [] for name in ways}
        self.found: dict[str, Any] = {}

    def __call__(self) -> None:
        for name, way in self._ways.items():
            started = perf_counter()
            self.found[name] = way()
            self._times[name].append(perf_counter() - started)

    def ratio(self, one: str, other: str) -> float:
        """Of the medians."""
        return round(median(self._times[one]) / median(self._times[other]), 3)
