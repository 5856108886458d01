"""Tunings of the trace that ships, with costs that are made up: some in a hundredth of a second."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from talon_core.costs import Costs
from talon_core.plugins.registry import load_registry
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace.folder import Trace, read_trace
from talon_core.tune.run import Tuned, TunePlan, tuned
from talon_core.tune.space import space_of
from talon_tests.tuning import Priced


@pytest.fixture(scope="session")
def shipped() -> Trace:
    return read_trace(SHIPPED)


@pytest.fixture
def tune(shipped: Trace) -> Callable[..., Tuned]:
    """Tunes a policy on it."""

    def run(
        spec: str, *searches: str, costs: Costs | None = None, traces: Sequence[Trace] = (shipped,), **plan: Any
    ) -> Tuned:
        registry = load_registry()
        settings = TunePlan(**{"trials": 8, "folds": 2, **plan})
        return tuned(traces, space_of(registry, spec, searches), costs or Priced(), registry, settings)

    return run
