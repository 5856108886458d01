"""Time of drawing above temperature 0: node by node on the host, and all nodes at once where the scores are."""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

from talon_core.hf.frontend import HFFrontend
from talon_tests.drawing_ways import ways_to_draw
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
    both = ways(nodes, OPTIONS[warped])
    times: dict[str, list[float]] = {name: [] for name in both}

    def in_turn() -> None:
        found = []
        for name, way in both.items():
            started = perf_counter()
            found.append(way())
            times[name].append(perf_counter() - started)
        assert found[0] == found[1]

    benchmark.pedantic(in_turn, rounds=15, warmup_rounds=2)
    benchmark.extra_info["device_over_host"] = round(median(times["device"]) / median(times["host"]), 3)
