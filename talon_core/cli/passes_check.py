"""What `talon doctor` says about passes over trees: whether they are repeated without Python, or why not."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from talon_core.runtime.executor import Executor

REPEATED = "recorded, and repeated without Python"


def target_passes(target: Any) -> str | None:
    """It of the target's own passes, once some were run; None where nobody knows."""
    from talon_core.runtime.network import NetworkTarget

    return _said([target.own_executor()], target) if isinstance(target, NetworkTarget) else None


def drafter_passes(target: Any) -> str | None:
    """It of the passes that drafters of a target run by themselves; None where they run none, or nobody knows."""
    from talon_core.hf.target import HFTarget

    return _said(target.given_executors, target) if isinstance(target, HFTarget) else None


def _said(executors: "Sequence[Executor]", target: Any) -> str | None:
    found = sorted({why for why in (_why(one, target) for one in executors) if why is not None})
    if found:
        return f"not repeated: {'; '.join(found)}"
    return REPEATED if executors and all(one.recorded for one in executors) else None


def _why(executor: "Executor", target: Any) -> str | None:
    """Why passes are not repeated; None if they are, or nobody knows."""
    from talon_core.decoding.loading import without_graphs
    from talon_core.hf.checks import devices_of

    why = executor.failure
    if why is None and target.device.type == "cuda":
        why = without_graphs(True, devices_of(target.model), executor.attention)
    return why
