"""Passes of a host that are written down: what is told of the time that they take."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import talon_core
import talon_core.runtime.executor as executor_module
from talon_core.costs import MeasuredCosts
from talon_core.runtime.passes import TreePass
from talon_core.runtime.repeating import MOST_KINDS, RECORDED_AFTER, RepeatedPasses
from talon_kernels.native import unavailable
from talon_tests.tiny_models import tiny_model

PROMPT = torch.tensor([[5, 9, 33, 9, 33, 41, 5, 9]])


def test_what_passes_take_that_are_being_recorded_is_not_taken_for_what_others_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if (why := unavailable()) is not None:
        pytest.skip(f"passes are recorded by the native kernels, and {why}")
    decoder = talon_core.load(
        tiny_model("llama", hidden_size=128), drafter="draft-model:skip=1", policy="chain:length=2"
    )
    slow, told = [False], {"verified": 0, "drafted": 0}

    class Noticed(TreePass):
        """A pass that the network itself runs."""

        def __init__(self, *given: Any) -> None:
            slow[0] = True
            super().__init__(*given)

    def asked(of: Any, name: str) -> None:
        ask = getattr(of, name)

        def fresh(*given: Any, **named: Any) -> Any:
            slow[0] = False
            return ask(*given, **named)

        monkeypatch.setattr(of, name, fresh)

    def heard(name: str) -> None:
        tell = getattr(MeasuredCosts, name)

        def noted(costs: MeasuredCosts, *given: Any) -> None:
            assert not slow[0]
            told[name] += 1
            tell(costs, *given)

        monkeypatch.setattr(MeasuredCosts, name, noted)

    monkeypatch.setattr(executor_module, "TreePass", Noticed)
    asked(decoder.target, "verify")
    asked(decoder.drafter, "propose")
    heard("verified")
    heard("drafted")
    rounds = decoder.generate(PROMPT, max_new_tokens=60).rounds
    drafts = sum(round_.draft_passes for round_ in rounds)
    # not those before a pass is written down, nor the first with one node, nor the first with several
    assert 1 <= len(rounds) - RECORDED_AFTER - told["verified"] <= 2
    assert 1 <= drafts - RECORDED_AFTER - told["drafted"] <= 2


@pytest.mark.parametrize(("kinds", "prepared"), [(MOST_KINDS, 3 * MOST_KINDS), (MOST_KINDS + 1, MOST_KINDS)])
def test_kinds_that_push_each_other_out_take_no_longer_than_others_like_them(kinds: int, prepared: int) -> None:
    recorded = SimpleNamespace(fits=lambda queries, more: True, run=lambda inputs, more, choosing: 1)
    recorder: Any = SimpleNamespace(most=64, record=lambda *given: recorded)
    cache: Any = SimpleNamespace(make_room_for=lambda counts: None)
    inputs: Any = SimpleNamespace(layout=SimpleNamespace(queries=1), counts=[1])
    passes = RepeatedPasses(recorder, cache)
    for _ in range(20):
        for kind in range(kinds):
            passes.run(inputs, lambda view: 1, kind, {}, lambda: 1, lambda: None)
    assert passes.prepared == prepared


def short_of_memory() -> Any:
    """What PyTorch raises where the system gives it no more memory."""
    return RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried")


@pytest.mark.parametrize("when", ["record", "run"])
def test_a_pass_for_which_memory_was_short_once_is_repeated_later(when: str) -> None:
    short = [False]

    def tried(*given: Any) -> Any:
        if short[0]:
            raise short_of_memory()
        return recorded if len(given) == 4 else 1

    def always(*given: Any) -> Any:
        return recorded if len(given) == 4 else 1

    recorded = SimpleNamespace(fits=lambda queries, more: True, run=tried if when == "run" else always)
    recorder: Any = SimpleNamespace(most=64, record=tried if when == "record" else always)
    cache: Any = SimpleNamespace(make_room_for=lambda counts: None)
    inputs: Any = SimpleNamespace(layout=SimpleNamespace(queries=1), counts=[1])
    passes = RepeatedPasses(recorder, cache)
    plain = []

    def run() -> None:
        passes.run(inputs, lambda view: 1, "kind", {}, lambda: plain.append(1) or 1, lambda: None)

    for _ in range(RECORDED_AFTER):
        run()
    short[0] = True
    with pytest.raises(RuntimeError, match="can't allocate"):
        run()
    short[0] = False
    for _ in range(20):
        run()
    before = len(plain)
    run()
    assert len(plain) == before
    assert passes.failure is None
