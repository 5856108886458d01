"""Seconds of passes on a device that does in its own time what was launched: they are those of the passes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from talon_core.costs import MeasuredCosts
from talon_core.engine.engine import Engine
from talon_core.request import Request
from talon_core.rule import Accepted
from talon_core.table import TableTarget
from talon_core.target import Verified
from talon_core.tree import TokenTree
from talon_strategies import Match
from talon_tests.prices import Prices

VOCAB = 5
LAUNCH, PROMPT, PASS = 0.001, 0.5, 0.1
"""Seconds of a launch, of a prompt's pass and of a tree's."""


class Device:
    """A device with a clock: launching takes the host `LAUNCH`, and the device what it takes, one after another.

    Attributes:
        now: the host's time.
        waits: when the host began to wait.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self._done = 0.0

    def launch(self, seconds: float) -> None:
        self.now += LAUNCH
        self._done = max(self._done, self.now) + seconds

    def synchronize(self) -> None:
        """As a stream's."""
        self.waits.append(self.now)
        self.now = max(self.now, self._done)


class Launches(TableTarget):
    """A target whose passes are launched on a device; where it walks by itself, it waits for the path."""

    def __init__(self, on: Device, walks: bool, prepares: bool = False) -> None:
        super().__init__(np.random.default_rng(0).normal(size=(VOCAB, VOCAB)))
        self.device = torch.device("cuda")
        self.can_walk = walks
        self._on, self._prepares = on, prepares

    def read(self, parts: Mapping[int, Any]) -> Mapping[int, Any]:
        self._on.launch(PROMPT)
        return super().read(parts)

    def verify(self, trees: Mapping[int, TokenTree], greedy: Any = (), *more: Any, **options: Any) -> Verified:
        self._on.launch(PASS)
        found = super().verify(trees)
        if not greedy:
            return Verified(found.outputs, prepared=self._prepares)
        self._on.synchronize()
        root = np.zeros(1, dtype=np.int64)
        accepted = {slot: Accepted(root, int(one.logits[0].argmax())) for slot, one in found.outputs.items()}
        self.commit({slot: one.path for slot, one in accepted.items()})
        return Verified(accepted=accepted)


class Noted(MeasuredCosts):
    """Notes the seconds of the target's passes."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def verified(self, nodes: int, context: int, batch: int, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: made)
    return made


def decoded(device: Device, target: Launches, costs: Any) -> Any:
    engine = Engine(target, Match(), costs=costs, now=lambda: device.now)
    sequence = engine.submit(Request(np.array([1, 2, 3]), 4))
    while not sequence.finished:
        engine.step()
    assert sequence.error is None
    return sequence


@pytest.mark.parametrize("walks", [False, True])
def test_seconds_of_passes_are_those_of_the_device_and_each_is_waited_for_once(device: Device, walks: bool) -> None:
    costs = Noted()
    sequence = decoded(device, Launches(device, walks), costs)
    assert sequence.prefill_seconds == pytest.approx(LAUNCH + PROMPT)
    assert costs.seconds == pytest.approx([LAUNCH + PASS] * 4)
    assert len(device.waits) == 1 + 4  # for the prompt, and for each pass
    verifying = [span for one in sequence.rounds for span in one.spans if span.part == "verify"]
    for span in verifying:
        assert sum(span.start <= wait <= span.end for wait in device.waits) == 1


@pytest.mark.parametrize(("costs", "prepares"), [(Prices(), False), (None, True)])
def test_a_pass_whose_seconds_nobody_learns_is_not_waited_for(device: Device, costs: Any, prepares: bool) -> None:
    """The rule looks at its scores: who does that waits."""
    decoded(device, Launches(device, walks=False, prepares=prepares), costs)
    assert len(device.waits) == 1  # for the prompt
